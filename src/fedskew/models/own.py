"""Makes a model of the user's own code: a `torch.nn.Module` class, or a function that returns a module."""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedskew.core.errors import BadInput, first_line, require
from fedskew.core.trees import ParameterSpace
from fedskew.models.initial import WithFeatures, draws_from
from fedskew.models.sequences import mean_over_symbols

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

T = TypeVar("T")


class OwnNet(nn.Module):
    """Wraps a module that returns only logits. It also returns the features, which are the input of the output layer."""

    def __init__(self, inner: nn.Module, classes: int) -> None:
        super().__init__()
        self.inner, self.stacks, self.ids, self.per_place = inner, True, False, False
        linear = [part for part in inner.modules() if isinstance(part, nn.Linear) and part.out_features == classes]
        require(
            bool(linear),
            f"model: its output layer must be a torch.nn.Linear with {classes} outputs, one for each class",
        )
        self.last = linear[-1:]  # in a list, because it is part of ``inner`` already

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inputs: list[Tensor] = []
        hook = self.last[0].register_forward_hook(lambda part, args, _: inputs.append(args[0]))
        try:
            result = self.inner(x)
        finally:
            hook.remove()
        if isinstance(result, tuple):
            return result
        require(
            bool(inputs),
            f"model {type(self.inner).__name__}: its forward does not call the layer with one output for each class; call it, "
            "or return (features, logits)",
        )
        z = inputs.pop()
        return mean_over_symbols(z, x) if z.dim() == 3 and self.ids else z, result


@dataclass(frozen=True, kw_only=True)
class OwnModel(WithFeatures):
    """A user's `torch.nn.Module` class or function. It is called with the shape of a row, the number of classes, and its options.

    The module takes rows (B, *shape) and returns logits (B, classes), or features and logits. For rows (B, T) of symbols it may
    return logits (B, T, symbols) of the next symbols. If it accepts only integers, like an embedding, it gets integers.
    Parameters without gradient are frozen. Dropout is off. BatchNorm is refused.
    """

    make: ClassVar[Callable[..., nn.Module]]

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        """Build the module, with parameters drawn from ``generator``. Raises `BadInput` if the module fails on two rows."""
        cls, options = type(self), vars(self)
        with draws_from(generator):
            module = called(lambda: self.make(shape, classes, **options), f"model {cls.__name__}: cannot be made")
            if not isinstance(module, nn.Module):
                raise BadInput(f"model {cls.__name__} makes {type(module).__name__}, not a torch.nn.Module")
            net = OwnNet(module, classes).eval()
        for part in net.modules():
            statistics = isinstance(part, BATCH_NORMS) or getattr(part, "running_mean", None) is not None
            require(
                not statistics,
                f"model {cls.__name__}: clients cannot share the statistics of batches; use torch.nn.GroupNorm",
            )
        require(any(p.requires_grad for p in net.parameters()), f"model {cls.__name__} has no trainable parameters")
        x = torch.zeros(2, *shape)
        net.ids = not works(net, x) and works(net, x.long())
        x = x.long() if net.ids else x
        z, logits = called(net, f"model {cls.__name__}: fails on rows of shape {shape}", x)
        got = tuple(getattr(logits, "shape", ()))
        net.per_place = net.ids and len(shape) == 1 and got == (2, *shape, classes)
        require(
            net.per_place or got == (2, classes),
            f"model {cls.__name__} returns shape {got} for two rows, but {classes} classes need shape (2, {classes})",
        )
        if net.per_place:
            padded = f"model {cls.__name__}: fails on -1, which fills a row after its last symbol; use x.clamp(min=0)"
            z, _ = called(net, padded, torch.full_like(x, -1))
        require(
            z.dim() == 2, f"model {cls.__name__}: features must be (B, D), their shape for two rows is {tuple(z.shape)}"
        )
        net.stacks = stacks(net, x)
        return net


def adapted(thing: object, what: str) -> type | None:
    """Return the component of a module class or a function, and None for anything else."""
    if isinstance(thing, nn.Module):
        raise BadInput(
            f"{what}: give the class, or a function of (shape, classes) that makes the module, so that runs can be repeated"
        )
    if not (isinstance(thing, FunctionType) or (isinstance(thing, type) and issubclass(thing, nn.Module))):
        return None
    try:
        inspect.signature(thing).bind((), 0)
    except TypeError as error:
        raise BadInput(
            f"{what} is called with the shape of a row and the number of classes: {error}; write __init__(self, shape, classes), "
            "and give other arguments defaults"
        ) from None
    return component(thing)  # type: ignore[arg-type]


@cache
def component(function: FunctionType | type[nn.Module]) -> type:
    """Return a component. Its options are the arguments from the third on whose default is a number, text or bool."""
    options = [(p.name, type(p.default), p.default) for p in [*inspect.signature(function).parameters.values()][2:]]
    return dataclasses.make_dataclass(
        function.__name__,
        [option for option in options if option[1] in (bool, int, float, str)],
        bases=(OwnModel,),
        namespace={"make": staticmethod(function), "__doc__": function.__doc__},
        frozen=True,
        kw_only=True,
    )


def called(function: Callable[..., T], failing: str, *args: object) -> T:
    """Call the user's code. Any exception becomes a `BadInput` with one line, which starts with ``failing``."""
    try:
        return function(*args)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{failing}: {type(error).__name__}: {first_line(error)}") from None


def works(net: nn.Module, x: Tensor) -> bool:
    """Return True if the module accepts these rows."""
    try:
        with torch.no_grad():
            net(x)
    except BadInput:
        return True
    except Exception:
        return False
    return True


def stacks(net: nn.Module, x: Tensor) -> bool:
    """Return True if `vmap` can compute results and gradients of two models at once. With recurrent layers it cannot."""
    space = ParameterSpace(net)
    w = space.flatten(net)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return functional_call(net, space.unflatten(w), (x,))[1].sum()

    two = torch.stack([w, w]), torch.stack([x, x])
    try:
        vmap(grad(loss))(*two)
        with torch.no_grad():
            vmap(loss)(*two)
    except Exception:
        return False
    return True

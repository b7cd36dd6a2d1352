"""The user's own module: a class in a file or in an importable package."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedskew.core import own
from fedskew.core.errors import BadInput, require
from fedskew.core.places import read_small
from fedskew.core.trust import admit, admit_module
from fedskew.core.vectors import ParameterSpace
from fedskew.models.initial import draws_from

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

T = TypeVar("T")

HOW = "write module:FILE.py::CLASS or module:PACKAGE.MODULE.CLASS"


class OwnNet(nn.Module):
    """Adds the features, the input of the output layer, to a module that returns only logits."""

    def __init__(self, inner: nn.Module, classes: int) -> None:
        super().__init__()
        self.inner, self.stacks, self.ids = inner, True, False
        linear = [part for part in inner.modules() if isinstance(part, nn.Linear) and part.out_features == classes]
        require(
            bool(linear),
            f"model module: its output layer must be a torch.nn.Linear with {classes} outputs, one a class",
        )
        self.last = linear[-1:]  # in a list: it is a part of ``inner`` already

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        taken: list[Tensor] = []
        hook = self.last[0].register_forward_hook(lambda part, args, _: taken.append(args[0]))
        try:
            result = self.inner(x)
        finally:
            hook.remove()
        if isinstance(result, tuple):
            return result
        require(
            bool(taken),
            f"model {type(self.inner).__name__}: its layer of one output a class is not called; call it, or return "
            "(features, logits)",
        )
        return taken.pop(), result


@dataclass(frozen=True, kw_only=True)
class Module:
    """A `torch.nn.Module` class of yours, called as ``CLASS(shape, classes)`` with the shape of a row and the number of classes.

    It takes rows (B, *shape) and returns logits (B, classes), or (features, logits). Integer rows stay integers if it takes no
    others, like an embedding. Parameters without gradient are frozen. Dropout is off; BatchNorm is refused.
    """

    source: str
    file_hash: str = ""

    takes: ClassVar[str] = "source"
    has_features: ClassVar[bool] = True
    idea: ClassVar[str] = "a torch.nn.Module of yours: module:FILE.py::CLASS or module:PACKAGE.MODULE.CLASS"

    def __post_init__(self) -> None:
        found, contents = "", b""
        if own.MARK in self.source:
            path, _, name = self.source.rpartition(own.MARK)
            resolved = Path(path).expanduser().resolve()
            try:
                contents = read_small(resolved)
            except OSError as error:
                raise BadInput(f"cannot read {resolved}: {error.strerror}; {HOW}") from None
            found = own.digest(contents)
            object.__setattr__(self, "source", f"{resolved}{own.MARK}{name}")
        require(
            self.file_hash in ("", found),
            f"{self.source} has changed (hash {self.file_hash} before, now {found}); put the old file back, or "
            "start a new run",
        )
        if found:
            admit(contents, str(resolved))
        else:
            admit_module(self.source)
        object.__setattr__(self, "file_hash", found)

    def loaded(self) -> type[nn.Module]:
        """The user's class. Raises `BadInput` if it is missing or its file has changed."""
        if own.MARK in self.source:
            file, _, name = self.source.rpartition(own.MARK)
            contents = read_small(Path(file))
            require(own.digest(contents) == self.file_hash, f"model module: {file} has changed; start a new run")
            module: object = own.run(Path(file), contents, self.file_hash, "model module")
        else:
            package, _, name = self.source.rpartition(".")
            try:
                module = importlib.import_module(package)
            except (ImportError, ValueError) as error:
                raise BadInput(f"model module: cannot import {package!r}: {error}; {HOW}") from None
        cls = getattr(module, name, None)
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            raise BadInput(f"model module: {self.source} is not a torch.nn.Module class; {HOW}")
        return cls

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        """The module, with parameters drawn from ``generator``. Raises `BadInput` if it does not work on two rows."""
        cls = self.loaded()
        with draws_from(generator):
            net = OwnNet(called(cls, f"model {cls.__name__}: cannot be made", shape, classes), classes).eval()
        for part in net.modules():
            statistics = isinstance(part, BATCH_NORMS) or getattr(part, "running_mean", None) is not None
            require(
                not statistics, f"model {cls.__name__}: statistics of a batch do not federate; use torch.nn.GroupNorm"
            )
        require(any(p.requires_grad for p in net.parameters()), f"model {cls.__name__} has no trainable parameters")
        x = torch.zeros(2, *shape)
        net.ids = not works(net, x) and works(net, x.long())
        x = x.long() if net.ids else x
        z, logits = called(net, f"model {cls.__name__}: fails on rows of shape {shape}", x)
        got = tuple(getattr(logits, "shape", ()))
        require(
            got == (2, classes),
            f"model {cls.__name__} gives an output of shape {got} for two rows, the {classes} classes need (2, {classes})",
        )
        require(
            z.dim() == 2, f"model {cls.__name__}: features must be (B, D), their shape for two rows is {tuple(z.shape)}"
        )
        net.stacks = stacks(net, x)
        return net


def called(function: Callable[..., T], failing: str, *args: object) -> T:
    """Call the user's code. Raises `BadInput` with its exception as one line."""
    try:
        return function(*args)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{failing}: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from None


def works(net: nn.Module, x: Tensor) -> bool:
    """Whether the module accepts these rows."""
    try:
        with torch.no_grad():
            net(x)
    except BadInput:
        return True
    except Exception:
        return False
    return True


def stacks(net: nn.Module, x: Tensor) -> bool:
    """Whether `vmap` can compute results and gradients of two models at once; it cannot with recurrent layers."""
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

"""Initial parameters from a generator of our own: PyTorch's default distribution, without its global generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedskew.core.errors import BadInput
from fedskew.core.memory import require_memory

COPIES = 4
"""Of a model in a round at least: the global one, a client's, its gradient, and its update."""


def drawn(make: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """The module that ``make`` builds, with its parameters drawn from ``generator``.

    It is built without memory first, since constructors draw from the global generator otherwise.
    """
    try:
        with torch.device("meta"):
            module = make()
    except RuntimeError as error:
        raise BadInput(f"model: cannot be built: {error}") from None
    size = sum(leaf.nbytes for leaf in module.parameters())
    require_memory(COPIES * size, f"a round of a model of {size / 1e9:,.1f} GB", "use a smaller model")
    # `to_empty` would take the empty tensors from their meta ones, at the price of importing PyTorch's compiler
    module = module._apply(lambda leaf: torch.empty(leaf.shape, dtype=leaf.dtype))
    initialise(module, generator)
    return module


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Weights and biases of linear and convolution layers from U(-b, b) with b = 1 / sqrt(inputs of a unit).

    In an LSTM b is 1 / sqrt(hidden units). Normalisation layers start as the identity after normalising: weight 1, bias 0.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
            bound = 1 / math.sqrt(part.weight[0].numel())
            with torch.no_grad():
                part.weight.uniform_(-bound, bound, generator=generator)
                if part.bias is not None:
                    part.bias.uniform_(-bound, bound, generator=generator)
        elif isinstance(part, nn.LSTM):
            bound = 1 / math.sqrt(part.hidden_size)
            for p in part.parameters():
                p.detach().uniform_(-bound, bound, generator=generator)
        elif isinstance(part, nn.GroupNorm):
            part.reset_parameters()


class Draws(TorchFunctionMode):
    """Within it, code that we did not write draws from ``generator`` where it would use the global one."""

    NAMES = frozenset(
        {"uniform_", "normal_", "trunc_normal_", "orthogonal_", "sparse_", "bernoulli_", "exponential_", "random_"}
        | {"log_normal_", "cauchy_", "geometric_", "poisson"}
        | {f"{kind}_{shape}_" for kind in ("kaiming", "xavier") for shape in ("uniform", "normal")}
        | {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"}
    )

    LIKE: ClassVar[dict[str, Callable[..., Tensor]]] = {
        "rand_like": torch.Tensor.uniform_,
        "randn_like": torch.Tensor.normal_,
        "randint_like": torch.Tensor.random_,
    }
    """What takes no generator, and what draws the same numbers from one."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in self.LIKE:
            like, *ends = args
            ends += [kwargs.pop(end) for end in ("low", "high") if end in kwargs]
            drawn = torch.empty_like(like, **{**kwargs, "requires_grad": False})
            drawn = self.LIKE[name](drawn, *([0] if len(ends) == 1 else []), *ends, generator=self.generator)
            return drawn.requires_grad_(kwargs.get("requires_grad", False))
        if name in self.NAMES and kwargs.get("generator") is None:
            kwargs["generator"] = self.generator
        return func(*args, **kwargs)


Normalisation = Literal["none", "group"]


def normalisation(kind: Normalisation, channels: int, groups: int = 8) -> nn.Module:
    """GroupNorm over so many groups, or as many as divide the channels; or nothing."""
    return nn.GroupNorm(math.gcd(groups, channels), channels) if kind == "group" else nn.Identity()

"""Draws initial parameters from PyTorch's default distribution, but with our own generator instead of the global one."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

import torch
from torch import nn

from fedskew.core.errors import BadInput, require
from fedskew.core.machine import require_memory

COPIES = 4
"""Minimum number of copies of a model in a round: the global model, a client's model, its gradient and its update."""


def with_drawn_parameters(make: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """Build a module with ``make`` and draw its parameters from ``generator``.

    Raises `BadInput` if the module cannot be built, or if this machine has too little memory for a round of training.
    """
    try:
        with torch.device("meta"):
            size = sum(leaf.nbytes for leaf in make().parameters())
    except RuntimeError as error:
        raise BadInput(f"model: cannot be built: {error}") from None
    require_memory(COPIES * size, f"a round of a model of {size / 1e9:,.1f} GB", "use a smaller model")
    # The module is built again: `to_empty` could give memory to the first one, but imports PyTorch's compiler
    with torch.random.fork_rng(devices=[]):
        module = make()
    initialise(module, generator)
    return module


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw weights and biases of linear and convolution layers from U(-b, b) with b = 1 / sqrt(number of inputs of a unit).

    In an LSTM b is 1 / sqrt(number of hidden units). Normalisation layers start with weight 1 and bias 0.
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


@contextmanager
def draws_from(generator: torch.Generator) -> Iterator[None]:
    """Seed PyTorch's global generator from ``generator``, for code that draws from it. Its old state is restored at the end."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
        yield


def require_rows(model: str, shape: tuple[int, ...], rank: int, what: str) -> None:
    """Raise `BadInput` unless a row has this number of axes. ``what`` says what it is: ``(channels, samples)``, ``token ids``."""
    require(len(shape) == rank, f"model {model} needs rows of {what}, these have shape {shape}")


def require_images(model: str, shape: tuple[int, ...], least: int) -> None:
    """Raise `BadInput` unless a row has shape (channels, height, width) with height and width of at least ``least``."""
    require_rows(model, shape, 3, "(channels, height, width)")
    if min(shape[1:]) < least:
        raise BadInput(f"model {model} needs images of at least {least} x {least}, these are {shape[1]} x {shape[2]}")


class WithFeatures:
    """A model whose networks return the features of a hidden layer."""

    has_features: ClassVar[bool] = True


Normalisation = Literal["none", "group"]


def normalisation(kind: Normalisation, channels: int, groups: int = 8) -> nn.Module:
    """Return GroupNorm with gcd(``groups``, ``channels``) groups, or the identity for "none"."""
    return nn.GroupNorm(math.gcd(groups, channels), channels) if kind == "group" else nn.Identity()

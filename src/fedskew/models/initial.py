"""Initial parameters from a generator of our own: PyTorch's default distribution, without its global generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn


def drawn(make: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """The module that ``make`` builds, with its parameters drawn from ``generator``.

    It is built without memory first, since constructors draw from the global generator otherwise.
    """
    with torch.device("meta"):
        module = make()
    # `to_empty` would take the empty tensors from their meta ones, at the price of importing PyTorch's compiler
    module = module._apply(lambda leaf: torch.empty(leaf.shape, dtype=leaf.dtype))
    initialise(module, generator)
    return module


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Weights and biases of linear and convolution layers from U(-b, b) with b = 1 / sqrt(inputs of a unit).

    Normalisation layers start as the identity after normalising: weight 1, bias 0.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
            bound = 1 / math.sqrt(part.weight[0].numel())
            with torch.no_grad():
                part.weight.uniform_(-bound, bound, generator=generator)
                if part.bias is not None:
                    part.bias.uniform_(-bound, bound, generator=generator)
        elif isinstance(part, nn.GroupNorm):
            part.reset_parameters()


Normalisation = Literal["none", "group"]


def normalisation(kind: Normalisation, channels: int, groups: int = 8) -> nn.Module:
    """GroupNorm over so many groups, or as many as divide the channels; or nothing."""
    return nn.GroupNorm(math.gcd(groups, channels), channels) if kind == "group" else nn.Identity()

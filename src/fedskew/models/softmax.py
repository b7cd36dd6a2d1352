"""Softmax regression: one linear layer, a convex problem."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedskew.models.initial import drawn


class SoftmaxNet(nn.Module):
    def __init__(self, inputs: int, classes: int, bias: bool) -> None:
        super().__init__()
        self.out = nn.Linear(inputs, classes, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = x.flatten(1)
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """Softmax regression. With ``zero_init`` all parameters start at 0, so that all classes are equally likely."""

    bias: bool = True
    zero_init: bool = True

    has_features: ClassVar[bool] = False
    idea: ClassVar[str] = "softmax regression: one linear layer, a convex problem"

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        net = drawn(lambda: SoftmaxNet(prod(shape), classes, self.bias), generator)
        if self.zero_init:
            for p in net.parameters():
                nn.init.zeros_(p)
        return net

"""Softmax regression, and a multi-layer perceptron with ReLU."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedskew.core.limits import Widths
from fedskew.models.initial import Normalisation, WithFeatures, normalisation, with_drawn_parameters


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
        net = with_drawn_parameters(lambda: SoftmaxNet(prod(shape), classes, self.bias), generator)
        if self.zero_init:
            for p in net.parameters():
                nn.init.zeros_(p)
        return net


class MlpNet(nn.Module):
    def __init__(self, widths: list[int], classes: int, norm: Normalisation) -> None:
        super().__init__()
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.hidden = nn.ModuleList(
            layers if norm == "none" else [nn.Sequential(x, normalisation(norm, x.out_features, 1)) for x in layers]
        )
        self.out = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = x.flatten(1)
        for layer in self.hidden:
            z = torch.relu(layer(z))
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class Mlp(WithFeatures):
    """Hidden layers with the given widths. (200, 200) is the network 2NN of McMahan et al. 2017.

    ``norm="group"`` normalises each hidden layer before its ReLU in one group, which is layer normalisation.
    """

    hidden: Widths = (64,)
    norm: Normalisation = "none"

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        return with_drawn_parameters(lambda: MlpNet([prod(shape), *self.hidden], classes, self.norm), generator)

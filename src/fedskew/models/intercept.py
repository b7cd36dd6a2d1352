"""An intercept of each site: one number more for each output of a model, added to it. It is the last part of the parameters."""

import dataclasses
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedskew.core.trees import ParameterSpace

NAME = "site_intercept"
"""Name of the intercept's module in a network."""

Model = TypeVar("Model")


class Intercept(nn.Module):
    """Adds its bias, which starts at 0. With SGD the bias steps ``rate`` times as far as other parameters; 0: not at all."""

    def __init__(self, outputs: int, rate: float) -> None:
        super().__init__()
        self.bias, self.rate = nn.Parameter(torch.zeros(outputs)), rate

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs + (self.rate**0.5 * self.bias if self.rate else self.bias.detach())


def added(module: nn.Module, inputs: object, results: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the features, and the outputs with the intercept of the module that computed them."""
    features, outputs = results
    return features, getattr(module, NAME)(outputs)


def with_intercept(model: Model, rate: float) -> Model:
    """Return a model with the same options, whose networks have an intercept. Other initial parameters are the same."""
    options = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}  # type: ignore[arg-type]
    cls: Any = type(model)
    return class_with_intercept(cls, rate)(**options)


@cache
def class_with_intercept(cls: type, rate: float) -> Any:
    def build(self: Any, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        net: nn.Module = cls.build(self, shape, classes, generator)  # type: ignore[attr-defined]
        net.add_module(NAME, Intercept(classes, rate))
        net.register_forward_hook(added)
        return net

    return type(cls.__name__, (cls,), {"build": build})


def positions(space: ParameterSpace) -> Tensor:
    """Return the positions (outputs,) of the intercept in the vector of parameters."""
    [part] = space.layers()[NAME]
    return torch.arange(part.start, part.stop)

"""Clients with different architectures. One parameter vector contains the models of all architectures, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import torch
from msgspec import Meta
from torch import Tensor, nn

from fedskew.core.component import build
from fedskew.core.contract import Setup
from fedskew.models.cnn import Cnn, Cnn1d
from fedskew.models.mlp import Mlp, Softmax

PLAIN: Mapping[str, type] = {"softmax": Softmax, "mlp": Mlp, "cnn": Cnn, "cnn1d": Cnn1d}
"""Models that can be mixed."""


class MixedNet(nn.Module):
    """The modules of all architectures. The forward pass uses only the module with number ``used``."""

    def __init__(self, nets: list[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.used = 0

    def using(self, number: int) -> MixedNet:
        """Return a `MixedNet` with the same modules, which uses module ``number``."""
        other = MixedNet(list(self.nets))
        other.used = number
        return other

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.nets[self.used](x)


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Client k has architecture k mod m, where m is the number of architectures. Architectures share no parameters.

    Each entry of ``models`` is a model in short form, such as ``mlp:hidden=[32]``. A client trains only its architecture's
    part of the parameter vector.
    """

    models: Annotated[tuple[str, ...], Meta(min_length=2)] = ("softmax", "mlp")

    idea: ClassVar[str] = "clients of different architectures, in turn; for methods that do not exchange models"

    def __post_init__(self) -> None:
        assert self.parts

    def accepts(self, setup: Setup) -> str:
        if setup.simulated:
            return ""
        return "gives clients different architectures, which works only in simulations; use another model"

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        return tuple(build("model", PLAIN, spec, "models") for spec in self.models)

    @property
    def has_features(self) -> bool:
        return all(part.has_features for part in self.parts)

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        return MixedNet([part.build(shape, classes, generator) for part in self.parts])

"""Sharings: they say which part of the model clients share. Each client keeps the rest.

A kept entry is never sent, averaged or counted in bytes. A client starts each round from the received shared part and its own
kept part. The server's model has its initial values in the kept entries, so its test accuracy is not meaningful.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedskew.core.contract import Setup
from fedskew.core.errors import require
from fedskew.core.limits import PositiveInt
from fedskew.core.privacy import alone
from fedskew.core.trees import ParameterSpace


def whole_models_needed(setup: Setup) -> str:
    """Return why clients cannot keep a part of their models in this setup; empty if they can."""
    if not setup.tries_models:
        return ""
    return (
        "keeps a part of each model on its client, but the method or the refinement evaluates complete models on the server's "
        "rows; use --sharing all, or a method without rows on the server, e.g. fedavg"
    )


@dataclass(frozen=True, kw_only=True)
class All:
    """Shares the whole model."""

    idea: ClassVar[str] = "the whole model is shared"
    private = alone

    def kept(self, model: nn.Module, space: ParameterSpace) -> Tensor | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Personal:
    """Keeps the layers with names that match a pattern in ``layers``; without patterns, the last ``head`` layers.

    Each weight matrix counts as one layer. A normalisation layer belongs to the layer before it.
    """

    head: PositiveInt = 1
    layers: tuple[str, ...] = ()

    idea: ClassVar[str] = "each client keeps the last layers, or those whose names match, and shares the rest"
    private = alone

    def accepts(self, setup: Setup) -> str:
        return whole_models_needed(setup)

    def kept(self, model: nn.Module, space: ParameterSpace) -> Tensor:
        """Return the positions (n,), ascending, of the kept entries in the vector."""
        places = space.layers()
        for pattern in self.layers:
            layer_names = ", ".join(places)
            require(
                any(fnmatchcase(n, pattern) for n in places),
                f"sharing: no layer is called {pattern!r}; they are {layer_names}",
            )
        if self.layers:
            return positions(space, [n for n in places if any(fnmatchcase(n, pattern) for pattern in self.layers)])
        weights = [n for n, shape in zip(space.names, space.shapes, strict=True) if len(shape) > 1]
        require(
            self.head <= len(weights), f"sharing: a head of {self.head} layers, but the model has {len(weights)} in all"
        )
        first = places[weights[-self.head].rpartition(".")[0]][0].start
        return torch.arange(first, space.size)


@dataclass(frozen=True, kw_only=True)
class Norm:
    """Keeps the normalisation layers GroupNorm and LayerNorm (FedBN's rule).

    Running statistics, which BatchNorm has, are not part of the parameter vector. No model of this package has them.
    """

    idea: ClassVar[str] = "each client keeps its normalisation layers and shares the rest"
    private = alone

    def accepts(self, setup: Setup) -> str:
        return whole_models_needed(setup)

    def kept(self, model: nn.Module, space: ParameterSpace) -> Tensor:
        """Return the positions (n,), ascending, of the kept entries in the vector."""
        norms = {n for n, part in model.named_modules() if isinstance(part, nn.GroupNorm | nn.LayerNorm)}
        norm_layers = [n for n in space.layers() if n in norms]
        require(
            bool(norm_layers),
            "sharing norm keeps normalisation layers on the clients, but this model has none; use a model with "
            "norm=group, e.g. --model mlp:norm=group",
        )
        return positions(space, norm_layers)


def positions(space: ParameterSpace, layers: list[str]) -> Tensor:
    """Return the positions of the layers' parameters in the vector."""
    places = space.layers()
    return torch.cat([torch.arange(part.start, part.stop) for layer in layers for part in places[layer]])

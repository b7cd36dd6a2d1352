"""A stacked step of a small model is dispatch overhead, not arithmetic: trace it once per shape into a flat graph of ATen calls.

The graph runs the same operations on the same numbers; what goes is the interpretation of `vmap` and `grad` in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten


class Traced:
    """A function of trees of tensors, traced anew for each combination of shapes it is called with."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.graphs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        flat, structure = tree_flatten(args)
        key = (structure, tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in flat))
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = self.trace(args)
        return graph(*args)

    def trace(self, args: Any) -> Callable[..., Any]:
        """The flat graph for arguments of these shapes."""
        with torch.no_grad():
            graph = make_fx(self.function)(*args)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        return graph

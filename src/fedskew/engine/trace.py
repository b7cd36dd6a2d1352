"""A stacked step of a small model is dispatch overhead, not arithmetic: trace it once per shape into a flat graph of ATen calls.

The graph runs the same operations on the same numbers; what goes is the interpretation of `vmap` and `grad` in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten

aten = torch.ops.aten

SAME_DATA = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.detach.default, aten.alias.default}
"""Calls that look at the data of their first argument anew."""


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

    def trace(self, args: Any) -> GraphModule:
        """The flat graph for arguments of these shapes."""
        with torch.no_grad():
            module: GraphModule = make_fx(self.function)(*args)
        drop_idle_calls(module.graph)
        module.recompile()
        return module


def drop_idle_calls(graph: Graph) -> None:
    """Remove calls that return what they are given: `vmap` and `grad` leave one in three of them behind."""
    for node in graph.nodes:
        if node.op == "call_function" and node.args and isinstance(node.args[0], Node) and idle(node):
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()


def idle(node: Node) -> bool:
    """Whether the call's result is its first argument, with the same shape and strides."""
    source: Any = node.args[0]
    if node.target in SAME_DATA:
        made, given = node.meta.get("tensor_meta"), source.meta.get("tensor_meta")
        return bool(made and given and (made.shape, made.stride) == (given.shape, given.stride))
    return node.target is aten.mul.Scalar and bool(node.args[1] == 1)

"""A stacked step of a small model is dispatch overhead, not arithmetic: trace it once per shape into a flat graph of ATen calls.

The graph runs the same operations on the same numbers; what goes is the interpretation of `vmap` and `grad` in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

aten = torch.ops.aten

SAME_DATA = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.detach.default, aten.alias.default}
"""Calls that look at the data of their first argument anew."""


class Traced:
    """A step ``(view, carry, *rest) -> carry`` over trees of tensors, traced anew for each combination of shapes."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.step = step
        self.graphs: dict[Any, GraphModule] = {}

    def repeat(self, view: Any, carry: Any, rests: Iterable[tuple[Tensor, ...]]) -> Any:
        """The carry after one step for each of ``rests``, all of the same shapes; trees are taken apart only once."""
        fixed, view_tree = tree_flatten(view)
        moving, carry_tree = tree_flatten(carry)
        graph: GraphModule | None = None
        for rest in rests:
            if graph is None:
                leaves = (*fixed, *moving, *rest)
                key = (view_tree, carry_tree, *((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves))
                if key not in self.graphs:
                    self.graphs[key] = self.trace(leaves, view_tree, carry_tree)
                graph = self.graphs[key]
            moving = graph(*fixed, *moving, *rest)
        return tree_unflatten(moving, carry_tree)

    def trace(self, leaves: tuple[Tensor, ...], view_tree: TreeSpec, carry_tree: TreeSpec) -> GraphModule:
        """The flat graph for leaves of these shapes."""
        a, b = view_tree.num_leaves, view_tree.num_leaves + carry_tree.num_leaves

        def flat(*leaves: Tensor) -> list[Tensor]:
            view, carry = tree_unflatten(leaves[:a], view_tree), tree_unflatten(leaves[a:b], carry_tree)
            return tree_flatten(self.step(view, carry, *leaves[b:]))[0]

        with torch.no_grad():
            module: GraphModule = make_fx(flat)(*leaves)
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

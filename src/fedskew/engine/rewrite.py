"""What a recorded step can do without: the loss that nobody reads, calls that come out alike in every step, copies of the weights.

A step of a small model costs its calls, one of a larger model its passes over the weights. What is computed stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten
SOFTMAX, DERIVATIVE = aten._log_softmax.default, aten._log_softmax_backward_data.default

VIEWS = {
    aten.view.default: torch.Tensor.view,
    aten.expand.default: torch.Tensor.expand,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.t.default: torch.t,
    aten.split_with_sizes.default: torch.split_with_sizes,
    getitem: getitem,
}
"""Calls whose result shows the numbers of their argument, and the same function with the least on the way to its kernel."""

DIRECT = VIEWS | {
    aten.bmm.default: torch.bmm,
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.mul.Tensor: torch.mul,
    aten.div.Tensor: torch.div,
    aten.eq.Tensor: torch.eq,
    aten.neg.default: torch.neg,
    aten.relu.default: torch.relu,
    aten.clamp.default: torch.clamp,
    aten.sum.dim_IntList: torch.sum,
    aten.cat.default: torch.cat,
    aten.addcmul.default: torch.addcmul,
}

NARROW = 16
"""Classes up to which a softmax is faster along the first axis, where its kernel takes many rows at a time."""


class Step(NamedTuple):
    """A step in two parts; it changes the moving leaves at the places ``owned`` themselves."""

    once: Callable[..., list[Tensor]]  # (*fixed, *moving) -> what every step takes as it is
    each: Callable[..., list[Tensor]]  # (*those, *moving, *rest) -> moving
    owned: frozenset[int]


def rewritten(recorded: GraphModule, fixed: int, moving: int) -> Step:
    """The step of a graph whose inputs are so many fixed leaves, so many that change from step to step, and the step's own."""
    graph = recorded.graph
    if any(mutates(node) for node in graph.nodes):
        # a value may change after it was made: nothing is moved or replaced
        return Step(lambda *leaves: list(leaves[:fixed]), recorded.forward, frozenset())
    for node in list(graph.nodes):
        if node.target is aten.ones_like.default:
            without_value(graph, node)
        elif node.target in (SOFTMAX, DERIVATIVE):
            by_columns(graph, node)
    graph.eliminate_dead_code()
    return parted(recorded, fixed, moving, in_place(graph, inputs_of(graph)[fixed : fixed + moving]))


def mutates(node: Node) -> bool:
    """Whether a call changes one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def random(node: Node) -> bool:
    tags = node.target.tags if isinstance(node.target, torch._ops.OpOverload) else []
    return torch.Tag.nondeterministic_seeded in tags


def inputs_of(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def without_value(graph: Graph, node: Node) -> None:
    """Ones in the shape of something do not need its value: for nothing else is the loss computed."""
    shape, dtype, device = node.meta["like"]
    with graph.inserting_before(node):
        node.replace_all_uses_with(graph.call_function(torch.ones, (list(shape),), {"dtype": dtype, "device": device}))


def by_columns(graph: Graph, node: Node) -> None:
    """A softmax over few classes, or its derivative, on the transposed matrix: its kernel is several times faster there."""
    shape, _, device = node.meta["like"]
    count = 2 if node.target is DERIVATIVE else 1
    matrices, dim = node.args[:count], node.args[count]
    if device.type != "cpu" or shape[-1] > NARROW or dim not in (-1, len(shape) - 1):
        return

    def transposed(matrix: Any) -> Node:
        if "transposed" in matrix.meta:
            known: Node = matrix.meta["transposed"]
            return known
        flat = graph.call_function(torch.reshape, (matrix, [-1, shape[-1]]))
        return graph.call_function(torch.Tensor.contiguous, (graph.call_function(torch.t, (flat,)),))

    with graph.inserting_before(node):
        columns: tuple[Any, ...] = (*map(transposed, matrices), 0, *node.args[count + 1 :])
        made = graph.call_function(node.target, columns)  # type: ignore[arg-type]
        result = graph.call_function(torch.Tensor.view, (graph.call_function(torch.t, (made,)), list(shape)))
    result.meta.update(node.meta, transposed=made)
    node.replace_all_uses_with(result)


def in_place(graph: Graph, moving: list[Node]) -> dict[int, Node]:
    """Let a step that returns ``w - lr * g`` change ``w`` itself, part by part where the gradient is joined of parts.

    Returns the leaves that it changes, by their place among the moving ones.
    """
    results: Any = graph.output_node().args[0]
    owned = {}
    for i, w in enumerate(moving):
        update: Any = results[i]
        if update.target is not aten.addcmul.default or update.args[0] is not w:
            continue
        order = {node: at for at, node in enumerate(graph.nodes)}
        before, shown = seen_through(w), seen_through(w) | seen_through(update)
        late = any(order[user] > order[update] for view in before for user in view.users)
        if late or sum(result in shown for result in results) > 1:
            continue  # the old weights are needed later, or something else that is returned would change with the new ones
        _, g, factor = update.args
        last = len(w.meta["like"][0]) - 1
        if last not in (0, 1) or g.meta["like"] != w.meta["like"]:
            continue
        joined = (
            g.target is aten.cat.default
            and (*g.args[1:], 0)[0] == last
            and len(g.users) == 1
            and factor.meta["like"][0] == ()
        )
        parts = g.args[0] if joined and not any(part in shown for part in g.args[0]) else [g]
        with graph.inserting_before(update):
            split = graph.call_function(
                torch.split_with_sizes, (w, [part.meta["like"][0][last] for part in parts], last)
            )
            for j, part in enumerate(parts):
                place = graph.call_function(getitem, (split, j))
                graph.call_function(torch.Tensor.addcmul_, (place, part, factor), update.kwargs)
        update.replace_all_uses_with(w)
        graph.erase_node(update)
        if not g.users:
            graph.erase_node(g)
        owned[i] = w
    return owned


def seen_through(node: Node) -> set[Node]:
    """The node and all that may be views of it."""
    found, waiting = {node}, [node]
    while waiting:
        new = {user for user in waiting.pop().users if views(user)} - found
        found |= new
        waiting += new
    return found


def views(node: Node) -> bool:
    """Whether a call's result may show its argument's numbers."""
    if isinstance(node.target, torch._ops.OpOverload):
        return any(result.alias_info is not None for result in node.target._schema.returns)
    return node.op == "call_function" and node.target not in (torch.ones, torch.Tensor.addcmul_)


def parted(recorded: GraphModule, fixed: int, moving: int, owned: dict[int, Node]) -> Step:
    """What depends on the fixed leaves alone, and where the weights lie, is found once; the rest in each step."""
    inputs = inputs_of(recorded.graph)
    steady, places = set(inputs[:fixed]), set(owned.values())
    for node in recorded.graph.nodes:
        if node.op == "get_attr" or (
            node.op == "call_function" and steady.issuperset(node.all_input_nodes) and not random(node)
        ):
            steady.add(node)
        elif (node.target in VIEWS or node.target in VIEWS.values()) and places.issuperset(node.all_input_nodes):
            places.add(node)
    first = (steady | places) - set(owned.values())
    later = [node for node in recorded.graph.nodes if node.op in ("call_function", "output") and node not in first]
    handed = [node for node in recorded.graph.nodes if node in first and not first.issuperset(node.users)]

    once, each = Graph(), Graph()
    copied = {node: once.placeholder(node.name) for node in inputs[: fixed + moving]}
    for node in recorded.graph.nodes:
        if node in first and node not in copied:
            copied[node] = once.node_copy(node, copied.__getitem__)
    once.output([copied[node] for node in handed])
    once.eliminate_dead_code()
    copied = {node: each.placeholder(node.name) for node in (*handed, *inputs[fixed:])}
    for node in later:
        copied[node] = each.node_copy(node, copied.__getitem__)
        copied[node].target = DIRECT.get(node.target, node.target)
    return Step(GraphModule(recorded, once).forward, GraphModule(recorded, each).forward, frozenset(owned))

"""A stacked step of a small model is dispatch overhead, not arithmetic: record it once per shape as a flat graph of ATen calls.

The graph runs the same operations on the same numbers; what goes is the interpretation of `vmap` and `grad` in every step, and
what a rewrite of the graph saves, which one client's step of a large model gains from as well.
PyTorch's own tracer gives the same graph, but imports the compiler, which takes longer than many a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_iter, tree_map, tree_unflatten

from fedskew.core.records import Batch, Carry, View
from fedskew.engine.gradient import grad_and_value
from fedskew.engine.rewrite import Step, rewritten
from fedskew.loop.local import Program

aten = torch.ops.aten

SAME_DATA = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.detach.default, aten.alias.default}
"""Calls that look at the data of their first argument anew."""


class Unrecordable(TypeError):
    """A step reads a tensor's value, which a graph would freeze."""


def live(program: Program) -> Callable[..., Carry]:
    """A program's step on the parts of a batch."""

    def step(view: View, carry: Carry, x: Tensor, y: Tensor, mask: Tensor) -> Carry:
        return program.step(grad_and_value, view, carry, Batch(x, y, mask))

    return step


class Traced:
    """A step ``(view, carry, *rest) -> carry`` over trees of tensors, traced anew for each combination of shapes.

    ``refused`` once it was found to be `Unrecordable`.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self.step = step
        self.graphs: dict[Any, Step] = {}
        self.refused = False

    def repeat(self, view: Any, carry: Any, rests: Iterable[tuple[Tensor, ...]]) -> Any:
        """The carry after one step for each of ``rests``, all of the same shapes; trees are taken apart only once."""
        fixed, view_tree = tree_flatten(view)
        moving, carry_tree = tree_flatten(carry)
        step: Step | None = None
        for rest in rests:
            if step is None:
                leaves = (*fixed, *moving, *rest)
                key = (view_tree, carry_tree, *map(like, leaves))
                if key not in self.graphs:
                    self.refused = True
                    self.graphs[key] = self.trace(leaves, view_tree, carry_tree)
                    self.refused = False
                step = self.graphs[key]
                contiguous = torch.contiguous_format
                moving = [v.clone(memory_format=contiguous) if i in step.owned else v for i, v in enumerate(moving)]
                steady = step.once(*fixed, *moving)
            moving = step.each(*steady, *moving, *rest)
        return tree_unflatten(moving, carry_tree)

    def trace(self, leaves: tuple[Tensor, ...], view_tree: TreeSpec, carry_tree: TreeSpec) -> Step:
        """The flat step for leaves of these shapes."""
        a, b = view_tree.num_leaves, view_tree.num_leaves + carry_tree.num_leaves

        def flat(*leaves: Tensor) -> list[Tensor]:
            view, carry = tree_unflatten(leaves[:a], view_tree), tree_unflatten(leaves[a:b], carry_tree)
            return tree_flatten(self.step(view, carry, *leaves[b:]))[0]

        return rewritten(recorded(flat, leaves), a, b - a)


def recorded(function: Callable[..., list[Tensor]], inputs: tuple[Tensor, ...]) -> GraphModule:
    """The ATen calls of a function of tensors, as a graph; tensors that are not its inputs become constants.

    Raises `Unrecordable`.
    """
    # each input under an identity of its own: two leaves may be one tensor
    given = [leaf.detach() for leaf in inputs]
    recorder = Recorder(given)
    with torch.no_grad(), recorder:
        results = function(*given)
    recorder.graph.output([recorder.node(result) for result in results])
    recorder.graph.eliminate_dead_code()
    return GraphModule(recorder.constants, recorder.graph)


class Recorder(TorchDispatchMode):
    """Writes down every ATen call."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.graph = Graph()
        self.constants: dict[str, Any] = {}
        self.nodes = {id(leaf): self.graph.placeholder(f"in{i}") for i, leaf in enumerate(inputs)}
        for leaf in inputs:
            note(self.nodes[id(leaf)], leaf)
        self.alive: list[Any] = list(inputs)  # an identity counts as long as its tensor lives

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether to guard against the compiler; the guard imports it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.alive.append(out)
        if idle(func, args, out):
            self.nodes[id(out)] = self.node(args[0])
            return out
        if not all(value is None or isinstance(value, Tensor) for value in tree_iter(out)):
            raise Unrecordable(
                f"a step reads a tensor's value ({func}); to be stacked, write it with torch.where and masks"
            )
        if func is aten.lift_fresh.default:
            # made of Python numbers: what the step does to it must not reach the constant
            func, args = aten.clone.default, (args[0].clone(),)
        made = self.graph.call_function(func, *tree_map(self.node, (args, kwargs)))
        if isinstance(out, Tensor):
            note(made, out)
            self.nodes[id(out)] = made
        else:
            for i, part in enumerate(out):
                self.nodes[id(part)] = self.graph.call_function(getitem, (made, i))
                if part is not None:
                    note(self.nodes[id(part)], part)
        return out

    def node(self, value: Any) -> Any:
        """What stands for a value in the graph."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self.nodes:
            name = f"constant{len(self.constants)}"
            self.constants[name] = value
            self.alive.append(value)
            self.nodes[id(value)] = self.graph.get_attr(name)
            note(self.nodes[id(value)], value)
        return self.nodes[id(value)]


def idle(func: Any, args: Any, out: Any) -> bool:
    """Whether the result is the first argument, of the same shape and strides: `vmap` and `grad` make one call in three so."""
    if func in SAME_DATA:
        return bool((out.shape, out.stride(), out.dtype) == (args[0].shape, args[0].stride(), args[0].dtype))
    return func is aten.mul.Scalar and bool(args[1] == 1) and out.dtype == args[0].dtype


def note(node: Node, value: Tensor) -> None:
    """Keep what a rewrite of the graph needs to know of a value."""
    node.meta["like"] = like(value)


def like(value: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    """What is alike in values that can take each other's place."""
    return value.shape, value.dtype, value.device

"""Record a local step once for each shape, as a flat graph of ATen calls. Then execute the graph for every step.

For small models a stacked step's time is dispatch, not arithmetic: the graph skips the interpretation of `vmap` and `grad`. For
large models it is passes over the weights: the graph changes the weights in place. The numbers do not change.

PyTorch's own tracer, `make_fx`, records the same calls, but imports PyTorch's compiler. That takes 1.4 s of CPU time, longer than
many runs. Only this file uses private parts of PyTorch. If they do not exist, `PRIVATE` is False, and steps are not recorded.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import getitem
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value as public_grad_and_value
from torch.fx import Graph, GraphModule, Node

from fedskew.core.records import Batch, Carry, View
from fedskew.loop.work import Program

try:
    from torch._functorch.eager_transforms import (
        _create_differentiable,
        _undo_create_differentiable,
        _wrap_tensor_for_grad,
        grad_increment_nesting,
    )
    from torch._ops import OpOverload
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import TreeSpec, tree_flatten, tree_iter, tree_map, tree_unflatten

    PRIVATE = True
except ImportError:
    TorchDispatchMode, PRIVATE = object, False  # type: ignore[assignment,misc]

aten = torch.ops.aten
SOFTMAX, SOFTMAX_GRADIENT = aten._log_softmax.default, aten._log_softmax_backward_data.default

FEW_CLASSES = 16
"""Up to this number of classes, a softmax is faster along the first axis, because its kernel then takes many rows at a time."""

C = TypeVar("C")


class Unrecordable(TypeError):
    """A step reads a tensor's value. In a graph this value would be constant."""


class Mutates(Exception):
    """A step changes a tensor in place."""


def grad_and_value(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function that computes the gradient (P,) and the value () of ``function``; it can be differentiated and stacked.

    It does the same as `torch.func.grad_and_value`, whose first call would import the compiler.
    """
    if not PRIVATE:
        return public_grad_and_value(function)

    def grad_fn(w: Tensor) -> tuple[Tensor, Tensor]:
        with grad_increment_nesting() as level, torch.enable_grad():
            leaf = _create_differentiable(_wrap_tensor_for_grad(w, level), level)
            value = function(leaf)
            g = None
            if value.requires_grad:
                g = torch.autograd.grad(value, leaf, create_graph=True, allow_unused=True)[0]
            g = torch.zeros_like(leaf) if g is None else g
            return _undo_create_differentiable(g, level), _undo_create_differentiable(value, level)

    return grad_fn


def live(program: Program) -> Callable[..., Carry]:
    """Return a program's step as a function of tensors instead of a batch."""

    def step(view: View, carry: Carry, x: Tensor, y: Tensor, mask: Tensor) -> Carry:
        return program.step(grad_and_value, view, carry, Batch(x, y, mask))

    return step


class Step(NamedTuple):
    """A recorded step in two parts."""

    once: Callable[..., list[Tensor]]  # (*fixed) -> shared, the same for all steps
    each: Callable[..., list[Tensor]]  # (*moving, *rest, *shared) -> moving, called for each step
    in_place: frozenset[int]  # positions of the moving leaves that ``each`` changes in place


class Traced(Generic[C]):
    """A step ``(view, carry, *rest) -> carry`` on trees of tensors, with one recording for each combination of shapes."""

    def __init__(self, step: Callable[..., C]) -> None:
        self.step = step
        self.graphs: dict[object, Step] = {}

    def repeat(self, view: object, carry: C, rests: Iterable[Sequence[Tensor]]) -> C:
        """Execute one step for each of ``rests``, which have equal shapes; return the carry. Raises `Unrecordable`."""
        if not PRIVATE:
            for rest in rests:
                carry = self.step(view, carry, *rest)
            return carry
        fixed, view_tree = tree_flatten(view)
        moving, carry_tree = tree_flatten(carry)
        step: Step | None = None
        for rest in rests:
            if step is None:
                moving = [leaf.contiguous() for leaf in moving]
                step = self.recorded((*fixed, *moving, *rest), view_tree, carry_tree)
                moving = [leaf.clone() if i in step.in_place else leaf for i, leaf in enumerate(moving)]
                shared = step.once(*fixed)
            moving = step.each(*moving, *rest, *shared)
        return tree_unflatten(moving, carry_tree)

    def recorded(self, leaves: tuple[Tensor, ...], view_tree: TreeSpec, carry_tree: TreeSpec) -> Step:
        """Return the recorded step for leaves of these shapes: leaves of a view, of a carry, and of the step's other inputs."""
        fixed, moving = view_tree.num_leaves, carry_tree.num_leaves

        def flat(*leaves: Tensor) -> list[Tensor]:
            view = tree_unflatten(leaves[:fixed], view_tree)
            carry = tree_unflatten(leaves[fixed : fixed + moving], carry_tree)
            return tree_flatten(self.step(view, carry, *leaves[fixed + moving :]))[0]

        key = (view_tree, carry_tree, *((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves))
        if key not in self.graphs:
            self.graphs[key] = recorded(flat, leaves, fixed, moving)
        return self.graphs[key]


def recorded(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor], fixed: int, moving: int) -> Step:
    """Record a function. Its inputs are ``fixed`` leaves that stay constant, ``moving`` leaves that it returns, and others.

    Tensors that are no inputs become constants. Raises `Unrecordable`.
    """
    for split in (True, False):
        # copies, because inputs must not share memory, as when the graph runs
        recorder = Recorder([leaf.clone() for leaf in inputs], fixed, split)
        try:
            with torch.no_grad(), recorder:
                results = function(*recorder.inputs)
        except Mutates:
            continue
        return recorder.step(results, moving)
    raise AssertionError("a recording that is not split never raises Mutates")


class Recorder(TorchDispatchMode):
    """Records every ATen call: in ``once`` if it depends on fixed inputs only, else in ``each``.

    Without ``split``, all calls are recorded in ``each``, in order, because values may change in place.
    """

    def __init__(self, inputs: list[Tensor], fixed: int, split: bool) -> None:
        super().__init__()
        self.inputs, self.split = inputs, split
        self.once, self.each = Graph(), Graph()
        self.constants: dict[str, Tensor] = {}
        self.shared: dict[Node, Node] = {}  # by value of `once`: its placeholder in `each`
        self.nodes: dict[object, tuple[Node, Tensor]] = {}  # by `key`
        for i, leaf in enumerate(inputs):
            self.nodes[self.key(leaf)] = (self.once if i < fixed else self.each).placeholder(f"in{i}"), leaf
        self.moving = inputs[fixed:]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Skip a guard against the compiler, because the guard would import the compiler."""
        return False

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None) -> object:
        kwargs = kwargs or {}
        if func in (SOFTMAX, SOFTMAX_GRADIENT) and has_few_classes(*args[-3:-1]):
            with self:
                return by_columns(func, *args)
        if torch.Tag.inplace_view in func.tags:
            # It changes only the shape. Record a view instead: the graph's tensor must keep its shape for the next step.
            before, name = tree_map(self.node, args), func.overloadpacket.__name__.rstrip("_")
            out = func(*args, **kwargs)
            self.write(getattr(getattr(aten, name), func._overloadname), before, kwargs, out)
            return out
        if func._schema.is_mutable and self.split:
            raise Mutates
        if func is aten.lift_fresh.default:
            # a constant from Python numbers: copy it, so that the step cannot change it
            func = aten.clone.default
        elif func is aten.ones_like.default:
            # do not refer to the argument: its value, the loss, would be computed for nothing
            kind = {"dtype": kwargs.get("dtype") or args[0].dtype, "device": args[0].device}
            func, args, kwargs = aten.ones.default, (list(args[0].shape),), kind
        # find the nodes before the call, which may change tensors in place
        arguments, keywords = tree_map(self.node, (args, kwargs))
        out = func(*args, **kwargs)
        if not all(value is None or isinstance(value, Tensor) for value in tree_iter(out)):
            raise Unrecordable(
                f"a step reads a tensor's value ({func}); to be stacked, write it with torch.where and masks"
            )
        # a third of the calls by `vmap` and `grad` return a tensor that is known already
        if not isinstance(out, Tensor) or self.key(out) not in self.nodes or func._schema.is_mutable:
            self.write(func, arguments, keywords, out)
        return out

    def write(self, func: OpOverload, args: Any, kwargs: Any, out: Any) -> None:
        """Record a call."""
        depends = any(value.graph is self.each for value in tree_iter((args, kwargs)) if isinstance(value, Node))
        random = torch.Tag.nondeterministic_seeded in func.tags
        graph = self.each if depends or random or not self.split else self.once
        if graph is self.each:
            args, kwargs = tree_map(self.in_each, (args, kwargs))
        node = graph.call_function(direct(func), args, kwargs)
        if isinstance(out, Tensor):
            self.nodes[self.key(out)] = node, out
            return
        for i, part in enumerate(out):
            if part is not None:
                self.nodes[self.key(part)] = graph.call_function(getitem, (node, i)), part

    def key(self, tensor: Tensor) -> object:
        """Return a key that is equal for tensors with the same memory, shape and strides; without `split`, a unique key.

        `nodes` keeps the tensors alive, so that no later tensor gets the same memory or identity.
        """
        if not self.split:
            return id(tensor)
        place = memory(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()
        return *place, tensor.dtype, tensor.device

    def node(self, value: Any) -> Any:
        """Return the node of a tensor; any other value unchanged."""
        if not isinstance(value, Tensor):
            return value
        key = self.key(value)
        if key not in self.nodes:
            name = f"constant{len(self.constants)}"
            self.constants[name] = value
            self.nodes[key] = self.once.get_attr(name), value
        return self.nodes[key][0]

    def in_each(self, value: Any) -> Any:
        """Return the node in `each` for a node of either graph."""
        if not isinstance(value, Node) or value.graph is self.each:
            return value
        if value not in self.shared:
            self.shared[value] = self.each.placeholder(f"shared{len(self.shared)}")
        return self.shared[value]

    def step(self, results: list[Tensor], moving: int) -> Step:
        """Return the recorded step with these results; the first ``moving`` inputs after the fixed ones are moving."""
        output = self.each.output([self.in_each(self.node(result)) for result in results])
        self.each.eliminate_dead_code()
        places = self.update_in_place(output, results, moving) if self.split else []
        self.once.output(list(self.shared))
        self.once.eliminate_dead_code()
        once, each = (GraphModule(self.constants, graph) for graph in (self.once, self.each))
        return Step(once.forward, each.forward, frozenset(places))

    def update_in_place(self, output: Node, results: list[Tensor], moving: int) -> list[int]:
        """If the step returns ``w + value * g * lr`` for a leaf ``w``, change ``w`` in place, as the step's last call.

        This is possible if no other result is the same node or shares memory with ``w``. Returns the positions of these leaves.
        """
        tensors = dict(self.nodes.values())
        tensors |= {there: tensors[node] for node, there in self.shared.items()}
        nodes: Any = output.args[0]
        places = []
        for i, leaf in enumerate(self.moving[:moving]):
            w, update = self.node(leaf), nodes[i]
            if update.target is not torch.addcmul or update.args[0] is not w or list(update.users) != [output]:
                continue
            (g, lr), last = update.args[1:], leaf.dim() - 1
            # use the layers' gradients before they are concatenated: this saves a pass over memory
            joined = g.target is torch.cat and g.args[1:] == (last,) and len(g.users) == 1 and tensors[lr].dim() == 0
            parts = g.args[0] if joined else [g]
            needed = [*(result for j, result in enumerate(results) if j != i), *map(tensors.__getitem__, (*parts, lr))]
            if nodes.count(update) > 1 or any(memory(part) == memory(leaf) for part in needed):
                continue
            with self.each.inserting_before(output):
                sizes = [tensors[part].shape[last] for part in parts]
                split = self.each.call_function(torch.split_with_sizes, (w, sizes, last))
                for j, part in enumerate(parts):
                    place = self.each.call_function(getitem, (split, j)) if joined else w
                    self.each.call_function(torch.Tensor.addcmul_, (place, part, lr), update.kwargs)
            update.replace_all_uses_with(w)
            self.each.erase_node(update)
            for unused in (g, split):
                if not unused.users:
                    self.each.erase_node(unused)
            places.append(i)
        return places


def memory(tensor: Tensor) -> int:
    """Return the address of a tensor's memory."""
    return tensor.untyped_storage().data_ptr()


def has_few_classes(rows: Tensor, dim: int) -> bool:
    """True if a softmax of these rows (..., K), or its gradient, is faster on the transposed matrix."""
    last = rows.dim() - 1
    return bool(rows.device.type == "cpu" and 0 < rows.shape[-1] <= FEW_CLASSES and dim % rows.dim() == last > 0)


def by_columns(func: OpOverload, *args: Any) -> Tensor:
    """Compute a softmax of rows (..., K), or its gradient, on the transposed matrix."""
    *rows, _, dtype = args
    columns = [part.reshape(-1, part.shape[-1]).t().contiguous() for part in rows]
    return func(*columns, 0, dtype).t().view(rows[0].shape)


def direct(func: OpOverload) -> Callable[..., object]:
    """Return PyTorch's built-in function for an ATen call, which has less overhead, if there is one; else ``func``."""
    if not func._schema.is_mutable:
        name = func._schema.name.partition("::")[2]
        for home, kind in ((torch, BuiltinFunctionType), (Tensor, MethodDescriptorType)):
            function = getattr(home, name, None)
            if isinstance(function, kind):
                return function
    return func

"""Trees of tensors and flat vectors of parameters, with the arithmetic that methods and loops share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from math import prod
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

Tree = dict[str, Any]
"""Nested dicts whose leaves are tensors, and nothing else. In records None means absent: it has no leaves."""


T = TypeVar("T")
"""A tree, or a record whose fields are trees, tensors or None."""


def map_leaves(function: Callable[..., Tensor | None], first: T, *others: T) -> T:
    """Apply ``function`` to corresponding leaves of trees of one shape."""
    mapped: object
    if isinstance(first, dict):
        mapped = {key: map_leaves(function, first[key], *(cast(Tree, tree)[key] for tree in others)) for key in first}
    elif isinstance(first, tuple):
        parts = zip(first, *cast(tuple[tuple[object, ...], ...], others), strict=True)
        values = tuple(map_leaves(function, *part) for part in parts)
        mapped = type(first)(*values) if hasattr(first, "_fields") else values
    else:
        mapped = None if first is None else function(first, *others)
    return cast(T, mapped)


def leaves(tree: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every leaf with its path, ``"a/b"``, in a fixed order."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from leaves(tree[key], f"{path}/{key}" if path else key)
    elif isinstance(tree, tuple):
        for key, part in zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True):
            yield from leaves(part, f"{path}/{key}" if path else str(key))
    elif isinstance(tree, Tensor):
        yield path, tree


def from_leaves(flat: dict[str, Tensor]) -> Tree:
    """Inverse of `leaves` for trees made of dicts."""
    tree: Tree = {}
    for path, value in flat.items():
        *parents, last = path.split("/")
        here = tree
        for part in parents:
            here = here.setdefault(part, {})
        here[last] = value
    return tree


def stack(trees: list[T]) -> T:
    """Stack trees of one shape along a new leading axis."""
    return map_leaves(lambda *parts: torch.stack(parts), *trees)


def concatenate(trees: list[T]) -> T:
    """Join trees along their leading axis."""
    return trees[0] if len(trees) == 1 else map_leaves(lambda *parts: torch.cat(parts), *trees)


def pick(tree: T, index: object) -> T:
    """Index the leading axis of every leaf (an int, a slice, or a tensor of positions)."""
    return map_leaves(lambda leaf: leaf[index], tree)


Signature = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Path of a leaf to its shape and type."""


def signature(tree: object) -> Signature:
    """Return names, shapes and types of the leaves."""
    return {path: (tuple(leaf.shape), leaf.dtype) for path, leaf in leaves(tree)}


def num_bytes(tree: object) -> int:
    """Bytes of all leaves in memory, and in a message."""
    return sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(tree))


def project_onto_simplex(v: Tensor) -> Tensor:
    """Return the point of the simplex nearest to ``v`` (K,).

    It is max(v - theta, 0) for the one theta that gives the sum 1. The r largest entries stay above 0.
    """
    v = v - v.max()  # does not change the result, but avoids rounding errors of large numbers
    u = v.sort(descending=True).values
    count = torch.arange(1, len(v) + 1, device=v.device)
    theta = (u.cumsum(0) - 1) / count
    r = int((u > theta).sum())
    return (v - theta[r - 1]).clamp(min=0)


CHUNK = 1 << 19
"""Number of values in a chunk when a matrix (clients, parameters) is reduced in float64. Such a chunk stays in cache."""


class ParameterSpace:
    """Names, shapes and positions of a module's trainable parameters in the flat vector ``w`` (P,).

    A parameter is trainable if it requires a gradient. Frozen parameters and buffers are not in the vector; they stay in the
    module.
    """

    def __init__(self, module: nn.Module) -> None:
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trainable]
        self.shapes = [tuple(p.shape) for _, p in trainable]
        self.sizes = [prod(shape) for shape in self.shapes]
        self.size = sum(self.sizes)

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """Return views into ``w`` (P,), by parameter name. The backward pass is a single concatenation."""
        return {
            name: part.view(shape)
            for name, part, shape in zip(self.names, w.split(self.sizes), self.shapes, strict=True)
        }

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the module's current trainable parameters as a new vector (P,)."""
        parameters = dict(module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def of_entries(self, mask: Tensor) -> ParameterSpace:
        """Return the space of the entries where a mask (P,) is True. Each tensor keeps its name, but becomes one-dimensional."""
        counts = {name: int(part.sum()) for name, part in self.unflatten(mask).items()}
        space = copy(self)
        space.names = [name for name, count in counts.items() if count]
        space.sizes = [counts[name] for name in space.names]
        space.shapes = [(count,) for count in space.sizes]
        space.size = sum(space.sizes)
        return space

    def layers(self) -> dict[str, list[slice]]:
        """Return the slices of the vector for each layer, by the name of the module that has weight and bias."""
        places: dict[str, list[slice]] = {}
        start = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            places.setdefault(name.rpartition(".")[0] or name, []).append(slice(start, start + size))
            start += size
        return places


def column_chunks(rows: Tensor) -> Iterator[Tensor]:
    """Yield the matrix (C, P) in float64, some columns at a time.

    Each chunk is a copy that the caller may change. The next chunk overwrites it, because allocating memory would cost more time
    than the sums.
    """
    columns = min(max(CHUNK // max(rows.shape[0], 1), 1), rows.shape[1])
    room = rows.new_empty(rows.shape[0] * columns, dtype=torch.float64)
    for chunk in rows.split(columns, dim=1):
        yield room[: chunk.numel()].view(chunk.shape).copy_(chunk)


def weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """Return ``sum_c weights[c] * rows[c]`` for weights (C,) and rows (C, ...).

    The sum is computed in float64, then converted to the type of ``rows``.
    """
    w = weights.double()
    if rows.dim() != 2:
        return torch.tensordot(w, rows.double(), dims=1).to(rows.dtype)
    return torch.cat([(w @ chunk).to(rows.dtype) for chunk in column_chunks(rows)])


class Dispersion(NamedTuple):
    """Weighted sum, lengths and distances to the mean of rows (C, P), computed in float64."""

    rows: Tensor  # (C, P)
    weights: Tensor  # (C,) float64; they need not add up to 1
    total: Tensor  # (P,) weights @ rows, in the type of the rows
    squares: Tensor  # (C,) square lengths
    to_weighted: Tensor  # (C,) square distances to the weighted mean
    to_uniform: Tensor  # (C,) square distances to the plain mean
    of_mean: Tensor  # () square length of the weighted mean


def dispersion(weights: Tensor, rows: Tensor) -> Dispersion:
    """Compute weighted mean, norms and distances of rows (C, P) with weights (C,), in one pass over memory."""
    w = weights.double()
    whole, equal = w.sum(), torch.full_like(w, 1 / len(w))
    totals = []
    squares, to_weighted, to_uniform = rows.new_zeros(3, len(w), dtype=torch.float64)
    of_mean = rows.new_zeros((), dtype=torch.float64)
    for part in column_chunks(rows):
        squares += torch.linalg.vector_norm(part, dim=1).square()
        total = w @ part
        totals.append(total.to(rows.dtype))
        mean = total / whole
        of_mean += mean.square().sum()
        part -= mean  # in place, without another copy of the chunk
        weighted, uniform = square_lengths(part, equal @ part)
        to_weighted += weighted
        to_uniform += uniform
    return Dispersion(rows, w, torch.cat(totals), squares, to_weighted, to_uniform.clamp(min=0), of_mean)


def square_lengths(rows: Tensor, between: Tensor) -> tuple[Tensor, Tensor]:
    """Return the square lengths (C,) of rows (C, P), and of the rows minus ``between`` (P,)."""
    lengths = torch.linalg.vector_norm(rows, dim=1).square()
    return lengths, lengths - 2 * (rows @ between) + between.square().sum()


def unit(v: Tensor) -> Tensor:
    """Return ``v / ||v||`` for ``v`` (P,), with the norm computed in float64; 0 if ``v`` is 0."""
    return v / torch.linalg.vector_norm(v, dtype=torch.float64).clamp(min=1e-12).to(v.dtype)


def all_finite(values: Tensor) -> bool:
    """True if all numbers are finite. It looks at the smallest and the largest only, in a tenth of the time of `isfinite`."""
    return not values.numel() or all(bool(end.isfinite()) for end in values.aminmax())


def finite_rows(rows: Tensor) -> Tensor:
    """Return the rows of (C, P) that have only finite numbers."""
    finite = rows.isfinite().all(1)
    return rows if bool(finite.all()) else rows[finite]


def trimmed_mean(rows: Tensor, cut: int) -> Tensor:
    """Return the mean (P,) of each column of (C, P) without its ``cut`` smallest and largest values. At least the median stays."""
    cut = min(cut, (len(rows) - 1) // 2)
    parts = [part.sort(dim=0).values[cut : len(rows) - cut].mean(0) for part in column_chunks(rows)]
    return torch.cat(parts).to(rows.dtype)


def square_distances(rows: Tensor) -> Tensor:
    """Return the square distances (C, C) between the rows of (C, P), in float64; infinite on overflow."""
    gram = sum((part @ part.T for part in column_chunks(rows)), rows.new_zeros((), dtype=torch.float64))
    squares = gram.diagonal()
    return (squares[:, None] + squares - 2 * gram).nan_to_num(nan=torch.inf, posinf=torch.inf).clamp(min=0)

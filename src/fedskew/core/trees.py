"""Nested dicts and named tuples of tensors, and the few operations on them that the loops need."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

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
        mapped = type(first)(*(map_leaves(function, *part) for part in parts))
    else:
        mapped = None if first is None else function(first, *others)
    return cast(T, mapped)


def leaves(tree: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every leaf with its path, ``"a/b"``, in a fixed order."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from leaves(tree[key], f"{path}/{key}" if path else key)
    elif isinstance(tree, tuple):
        keys = getattr(tree, "_fields", range(len(tree)))
        for key, part in zip(keys, tree, strict=True):
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


def num_bytes(tree: object) -> int:
    """Bytes of all leaves in memory, and in a message."""
    return sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(tree))

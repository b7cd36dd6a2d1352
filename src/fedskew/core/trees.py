"""Nested dicts and named tuples of tensors, and the few operations on them that the loops need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]
"""Nested dicts whose leaves are tensors, and nothing else. In records None stands for what is not there: it has no leaves."""


def map_leaves(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply ``function`` to corresponding leaves of trees of one shape."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_leaves(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return type(first)(*(map_leaves(function, *parts) for parts in zip(*trees, strict=True)))
    return None if first is None else function(*trees)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every leaf with its path, ``"a/b"``, in a fixed order."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from leaves(tree[key], f"{path}/{key}" if path else key)
    elif isinstance(tree, tuple):
        keys = getattr(tree, "_fields", range(len(tree)))
        for key, part in zip(keys, tree, strict=True):
            yield from leaves(part, f"{path}/{key}" if path else str(key))
    elif tree is not None:
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


def stack(trees: list[Any]) -> Any:
    """Stack trees of one shape along a new leading axis."""
    return map_leaves(lambda *parts: torch.stack(parts), *trees)


def concatenate(trees: list[Any]) -> Any:
    """Join trees along their leading axis."""
    return trees[0] if len(trees) == 1 else map_leaves(lambda *parts: torch.cat(parts), *trees)


def pick(tree: Any, index: Any) -> Any:
    """Index the leading axis of every leaf (an int, a slice, or a tensor of positions)."""
    return map_leaves(lambda leaf: leaf[index], tree)


def num_bytes(tree: Any) -> int:
    """Bytes of all leaves as they are stored, hence as they are sent."""
    return sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(tree))

"""Rows of a cohort that are not all in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fedskew.core.trees import leaves, map_leaves
from fedskew.core.vectors import Spread, column_chunks, spread, square_lengths, weighted_sum
from fedskew.engine.group import Group
from fedskew.skew.partition import Ints

NOBODY: Ints = np.zeros(0, dtype=np.int64)


class Apart(Tensor):
    """Rows (C, ...), each in the process that trained its client.

    How they add up and lie about their mean is worked out where they are, and one sum over the processes is exchanged. They can be
    moved from one process to another. Whatever else is done with them brings all rows to every process first, where they then are.
    All processes ask for the same, in the same order.
    """

    group: Group
    shares: Sequence[Ints]
    mine: Tensor
    gathered: Tensor | None
    elsewhere: Apart | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, group: Group, shares: Sequence[Ints], mine: Tensor) -> Apart:
        shape = (sum(len(at) for at in shares), *mine.shape[1:])
        rows: Apart = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=mine.dtype, device=mine.device)
        rows.group, rows.shares, rows.mine, rows.gathered, rows.elsewhere = group, shares, mine, None, None
        return rows

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:  # type: ignore[override]
        arguments, named = tree_map_only(cls, cls.whole, (arguments, named or {}))
        return operation(*arguments, **named)

    def whole(self) -> Tensor:
        """All rows, here too."""
        if self.gathered is None:
            self.gathered = self.group.gather(self.mine, self.shares)
        return self.gathered

    @property
    def own(self) -> Tensor:
        """Which rows are here."""
        return torch.as_tensor(self.shares[self.group.rank], device=self.device)

    def moved(self, shares: Sequence[Ints]) -> Apart:
        """The same rows, each in the process that ``shares`` say; moved once, if they are asked for there again."""
        for known in (self, self.elsewhere):
            if known is not None and all(map(np.array_equal, known.shares, shares)):
                return known
        rank, at = self.group.rank, range(self.group.size)
        old, new = self.shares[rank], shares[rank]
        if self.gathered is not None:
            return Apart(self.group, shares, self.gathered[torch.as_tensor(new, device=self.device)])
        leaving, arriving = (
            [np.intersect1d(one, other[process]) if process != rank else NOBODY for process in at]
            for one, other in ((old, shares), (new, self.shares))
        )
        go, come = np.concatenate(leaving), np.concatenate(arriving)
        rows = self.group.swap(
            self.mine[np.searchsorted(old, go)], [len(some) for some in leaving], [len(some) for some in arriving]
        )
        if len(come) < len(new):
            # any row for those that come first: one pass over memory for the others
            place = np.where(np.isin(new, come), 0, np.searchsorted(old, new))
            mine = self.mine.index_select(0, torch.as_tensor(place, device=self.device))
            mine[np.searchsorted(new, come)] = rows
        else:
            mine = rows[np.argsort(come)]
        self.elsewhere = Apart(self.group, shares, mine)
        return self.elsewhere

    def by_row(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        return self.group.gather(function(self.mine), self.shares) if self.gathered is None else function(self.gathered)

    def weighted_sum(self, weights: Tensor, kind: torch.dtype) -> Tensor:
        if self.gathered is not None:
            return weighted_sum(weights, self.gathered, kind)
        part = weighted_sum(weights[self.own], self.mine, torch.float64)
        return self.group.add_up(part).to(kind)

    def spread(self, weights: Tensor) -> Spread:
        if self.gathered is not None:
            return spread(weights, self.gathered)._replace(rows=self)
        own, equal = self.own, torch.full_like(weights, 1 / len(weights))
        total, middle = self.group.add_up(
            torch.stack([weighted_sum(w[own], self.mine, torch.float64) for w in (weights, equal)])
        )
        mean = total / weights.sum()
        found, done = weights.new_zeros(3, len(weights)), 0
        for part in column_chunks(self.mine):
            here = slice(done, done + part.shape[1])
            squares = torch.linalg.vector_norm(part, dim=1).square()
            part -= mean[here]
            found[:, own] += torch.stack([squares, *square_lengths(part, middle[here] - mean[here])])
            done = here.stop
        squares, to_weighted, to_uniform = self.group.add_up(found).clamp(min=0)
        return Spread(self, weights, total.to(self.dtype), squares, to_weighted, to_uniform, mean.square().sum())


def share_of(tree: Any, shares: Sequence[Ints], rank: int) -> Any:
    """One process's rows of a tree that has all of them, here or apart."""
    at = shares[rank]
    return map_leaves(lambda leaf: leaf.moved(shares).mine if isinstance(leaf, Apart) else leaf[at], tree)


def scattered(tree: Any) -> list[Apart]:
    """The leaves that are apart."""
    return [leaf for _, leaf in leaves(tree) if isinstance(leaf, Apart)]

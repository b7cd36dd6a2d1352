"""A partition: which rows of the pooled data belong to which client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream

Ints = NDArray[np.int64]


class Skew(Protocol):
    """A way to deal rows to clients."""

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Disjoint row indices for each client; rows that no client gets are left out."""
        ...


@dataclass(frozen=True, eq=False)
class Partition:
    """Row indices of all clients in one array, cut by offsets, so that a hundred thousand clients cost no objects.

    Clients without rows are not among them; ``empty`` counts those. ``held_out`` is the same layout for rows that are
    kept from training to measure each client.
    """

    indices: Ints  # (rows,)
    offsets: Ints  # (clients + 1,)
    names: tuple[str, ...]  # what to call each client
    empty: int  # clients that got no rows
    unassigned: int  # rows that no client got
    held_out: tuple[Ints, Ints] | None = None  # indices, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """Training rows of each client."""
        return np.diff(self.offsets)

    def rows(self, client: int) -> Ints:
        """The client's training rows."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def measured_rows(self, client: int) -> Ints:
        """The rows on which the client is measured: those held out, or its training rows if there are none."""
        if self.held_out is None:
            return self.rows(client)
        indices, offsets = self.held_out
        return indices[offsets[client] : offsets[client + 1]]

    def label_counts(self, labels: Ints, num_classes: int) -> Ints:
        """(clients, classes) counts of the training rows."""
        client = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(client * num_classes + labels[self.indices], minlength=len(self) * num_classes)
        return flat.reshape(len(self), num_classes)


def deal(
    skew: Skew,
    labels: Ints,
    groups: Ints | None,
    num_clients: int,
    seed: int,
    held_out: float = 0.0,
) -> Partition:
    """Partition the rows; the same seed gives the same partition.

    ``held_out`` is the share of each client's rows (rounded down, never all) that is kept from training. Raises `BadInput` if the
    skew cannot be had from these rows.
    """
    dealt = skew.deal(labels, groups, num_clients, stream(seed, "partition"))
    names = [str(k) for k in range(len(dealt))]
    if groups is not None and getattr(skew, "by_groups", False):
        names = [str(groups[rows[0]]) for rows in dealt]
    kept = [k for k, rows in enumerate(dealt) if len(rows)]
    require(bool(kept), "the partition gives no client any rows")
    require(0 <= held_out < 1, f"held_out is a share, at least 0 and below 1, got {held_out}")
    train, aside = [], []
    shuffle = stream(seed, "holdout")
    for k in kept:
        rows = shuffle.permutation(dealt[k])
        cut = min(int(held_out * len(rows) + 1e-9), len(rows) - 1)
        train.append(rows[cut:])
        aside.append(rows[:cut])
    return Partition(
        indices=np.concatenate(train),
        offsets=offsets(train),
        names=tuple(names[k] for k in kept),
        empty=len(dealt) - len(kept),
        unassigned=len(labels) - sum(len(rows) for rows in dealt),
        held_out=(np.concatenate(aside), offsets(aside)) if held_out else None,
    )


def offsets(parts: list[Ints]) -> Ints:
    return np.cumsum([0, *(len(part) for part in parts)])

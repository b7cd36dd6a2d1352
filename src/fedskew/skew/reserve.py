"""Rows that are kept from what is dealt to the clients: a class-balanced draw, a partition of the others, a share for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.skew.partition import Ints, Partition, Skew, deal, offsets


def class_balanced(labels: Ints, rows: Ints, size: int, rng: np.random.Generator, what: str) -> Ints:
    """``size`` of the ``rows`` in ascending order, as many of one class as of another.

    A class gives at most half of its rows, so that clients keep seeing it; what it lacks the others give. Raises `BadInput`,
    naming ``what`` the rows are for, if they are fewer than the classes.
    """
    by_class = [rows[labels[rows] == c] for c in np.unique(labels[rows])]
    require(
        size >= len(by_class),
        f"{what}: {size} of {len(rows)} rows cannot hold each of {len(by_class)} classes; ask for a larger share",
    )
    counts = level([len(own) // 2 for own in by_class], size)
    return np.sort(np.concatenate([rng.permutation(own)[:count] for own, count in zip(by_class, counts, strict=True)]))


def level(room: Sequence[int], size: int) -> list[int]:
    """Whole numbers that sum to ``size``, or to all the room there is, as equal as the room of each allows."""
    counts, left = [0] * len(room), size
    # the smallest first: what it cannot take is spread over those that can
    for done, c in enumerate(sorted(range(len(room)), key=lambda c: room[c])):
        counts[c] = min(room[c], left // (len(room) - done))
        left -= counts[c]
    return counts


def deal_others(
    skew: Skew, labels: Ints, groups: Ints | None, reserved: Ints, num_clients: int, seed: int, held_out: float = 0.0
) -> Partition:
    """`deal` all rows but the ``reserved`` ones; a natural client that has only such rows counts as empty."""
    if not len(reserved):
        return deal(skew, labels, groups, num_clients, seed, held_out)
    others = np.delete(np.arange(len(labels)), reserved)
    own = None if groups is None else groups[others]
    part = deal(skew, labels[others], own, num_clients, seed, held_out)
    emptied = 0
    if groups is not None and own is not None and getattr(skew, "by_groups", False):
        emptied = len(np.unique(groups)) - len(np.unique(own))
    return dataclasses.replace(
        part,
        indices=others[part.indices],
        empty=part.empty + emptied,
        held_out=None if part.held_out is None else (others[part.held_out[0]], part.held_out[1]),
    )


def share_out(partition: Partition, rows: Ints, alpha: float, seed: int) -> Partition:
    """Add a random ``alpha`` of the ``rows`` (rounded down) to what each client trains on, drawn for each on its own.

    The rows that measure a client stay as they are where some are held out. Raises `BadInput` if that gives nobody a row.
    """
    size = int(alpha * len(rows) + 1e-9)
    require(size > 0, f"shared_data: alpha {alpha} of {len(rows)} shared rows gives each client none; raise it")
    parts = []
    for k in range(len(partition)):
        # key 0 is the stream that the share itself was drawn with: trailing zeros do not tell seeds apart
        drawn = stream(seed, "shared data", k + 1).permutation(rows)[:size]
        parts.append(np.concatenate([partition.rows(k), drawn]))
    return dataclasses.replace(partition, indices=np.concatenate(parts), offsets=offsets(parts))

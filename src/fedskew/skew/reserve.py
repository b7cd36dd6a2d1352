"""Rows that are not dealt by a skew: class-balanced rows for the server, and for a public share that all clients use."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.skew.partition import Dealer, Ints, Partition, deal, offsets


def class_balanced(labels: Ints, rows: Ints, size: int, rng: np.random.Generator, what: str) -> Ints:
    """Draw ``size`` of the ``rows``, equally many of each class; return them in ascending order.

    A class gives at most half of its rows, so that the clients keep some; other classes then give more. Raises `BadInput` if
    ``size`` is below the number of classes. ``what`` names the purpose of the rows in the message.
    """
    by_class = [rows[labels[rows] == c] for c in np.unique(labels[rows])]
    require(
        size >= len(by_class),
        f"{what}: {size} of {len(rows)} rows cannot include all {len(by_class)} classes; use a larger share",
    )
    counts = level([len(class_rows) // 2 for class_rows in by_class], size)
    return np.sort(
        np.concatenate(
            [rng.permutation(class_rows)[:count] for class_rows, count in zip(by_class, counts, strict=True)]
        )
    )


def level(room: Sequence[int], size: int) -> list[int]:
    """Divide ``size`` into counts that are as equal as possible, each at most its ``room``.

    If all room together is less than ``size``, the counts are the room.
    """
    counts, left = [0] * len(room), size
    # smallest room first, so that larger ones share the rest
    for done, c in enumerate(sorted(range(len(room)), key=lambda c: room[c])):
        counts[c] = min(room[c], left // (len(room) - done))
        left -= counts[c]
    return counts


def deal_others(
    skew: Dealer,
    labels: Ints,
    groups: Ints | None,
    reserved: Ints,
    num_clients: int,
    seed: int,
    held_out: float = 0.0,
    person: Ints | None = None,
) -> Partition:
    """Call `deal` for all rows except the ``reserved`` ones. A natural client with only reserved rows counts as empty.

    A ``person`` (n,) with a reserved row is not held out, because models train on reserved rows.
    """
    if not len(reserved):
        return deal(skew, labels, groups, num_clients, seed, held_out, person)
    others = np.delete(np.arange(len(labels)), reserved)
    other_groups = None if groups is None else groups[others]
    if person is not None:
        person = np.where(np.isin(person, person[reserved]), -1, person)[others]
    part = deal(skew, labels[others], other_groups, num_clients, seed, held_out, person)
    emptied = 0
    if groups is not None and other_groups is not None and getattr(skew, "by_groups", False):
        emptied = len(np.unique(groups)) - len(np.unique(other_groups))
    return part.changed(lambda rows, cuts: (others[rows], cuts), empty=part.empty + emptied)


def share_out(partition: Partition, rows: Ints, alpha: float, seed: int) -> Partition:
    """Add random ``rows`` to each client's training rows: the share ``alpha`` (rounded down), drawn for each client anew.

    Held-out rows do not change. Raises `BadInput` if the share rounds to no row.
    """
    size = int(alpha * len(rows) + 1e-9)
    require(
        size > 0,
        f"shared_data: alpha {alpha} of {len(rows)} shared rows is less than one row for a client; raise alpha",
    )
    parts = []
    for k in range(len(partition)):
        # k + 1, because key 0 would give the stream that drew the share (trailing zeros do not change a seed)
        drawn = stream(seed, "shared data", k + 1).permutation(rows)[:size]
        parts.append(np.concatenate([partition.rows(k), drawn]))
    return dataclasses.replace(partition, indices=np.concatenate(parts), offsets=offsets(parts))

"""A partition, which rows belong to which client, and partitions without label skew: IID, natural clients, all on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.core.seeding import stream, whole_units

if TYPE_CHECKING:
    from fedskew.core.contract import Setup

Ints = NDArray[np.int64]


@runtime_checkable
class Dealer(Protocol):
    """A skew that deals rows to clients."""

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Return the row numbers of each client. No row is in two lists; a row may be in none.

        ``labels`` (n,) are the classes of the rows. ``groups`` (n,) are the natural clients of the rows, if the data set has any.
        """


@dataclass(frozen=True, eq=False)
class Partition:
    """The row numbers of all clients in one array, divided by offsets. This works for a hundred thousand clients.

    Clients without rows are left out; ``empty`` is their number. ``held_out`` has the same layout: rows that measure the client and
    are not for training; None if no client has any.
    """

    indices: Ints  # (rows,)
    offsets: Ints  # (clients + 1,)
    names: tuple[str, ...]  # the clients' names
    empty: int  # number of clients that got no rows
    unassigned: int  # number of rows that no client got
    held_out: tuple[Ints, Ints] | None = None  # indices, offsets
    note: str = ""  # what the skew leaves out or takes for granted, and what to write instead; empty if nothing

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """Number of training rows of each client."""
        return np.diff(self.offsets)

    @property
    def unmeasured(self) -> int:
        """The number of clients without held-out rows, if others have some."""
        return 0 if self.held_out is None else int((np.diff(self.held_out[1]) == 0).sum())

    def rows(self, client: int) -> Ints:
        """Return the client's training rows."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def measured_rows(self, client: int) -> Ints:
        """Return the rows on which the client is measured: its held-out rows; its training rows if no client holds any out."""
        if self.held_out is None:
            return self.rows(client)
        indices, offsets = self.held_out
        return indices[offsets[client] : offsets[client + 1]]

    def only(self, clients: Ints) -> Partition:
        """Return the partition of these clients only."""

        def of_clients(rows: Ints, cuts: Ints) -> tuple[Ints, Ints]:
            parts = [rows[cuts[k] : cuts[k + 1]] for k in clients]
            return np.concatenate(parts), offsets(parts)

        return self.changed(of_clients, names=tuple(self.names[k] for k in clients))

    def changed(self, change: Callable[[Ints, Ints], tuple[Ints, Ints]], **fields: Any) -> Partition:
        """Return the partition with other ``fields``, and with other rows and offsets, for training and held out.

        ``change(rows, offsets)`` returns these. It is called for the training rows, then for the held-out rows, if there are any.
        """
        indices, offsets = change(self.indices, self.offsets)
        held_out = None if self.held_out is None else change(*self.held_out)
        return replace(self, indices=indices, offsets=offsets, held_out=held_out, **fields)

    def first(self, most: int) -> Partition:
        """Return the partition with at most the first ``most`` training rows of each client."""
        parts = [self.rows(k)[:most] for k in range(len(self))]
        return replace(self, indices=np.concatenate(parts), offsets=offsets(parts))

    def label_counts(self, labels: Ints, num_classes: int) -> Ints:
        """Return the number of training rows of each client and class (clients, classes)."""
        client = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(client * num_classes + labels[self.indices], minlength=len(self) * num_classes)
        return flat.reshape(len(self), num_classes)


def deal(
    skew: Dealer,
    labels: Ints,
    groups: Ints | None,
    num_clients: int,
    seed: int,
    held_out: float = 0.0,
    person: Ints | None = None,
) -> Partition:
    """Deal the rows and hold some out. The same seed gives the same partition.

    ``held_out`` is the share of each client's rows, at least 0 and below 1, that is not for training; it is rounded down. With
    ``person`` (n,), a person is held out at all clients or at none. The shares are then as near as whole persons allow. Rows with
    a person below 0 are never held out. Raises `BadInput` if the rows do not allow this skew.
    """
    require(0 <= held_out < 1, f"held_out is a share, at least 0 and below 1, got {held_out}")
    dealt = skew.deal(labels, groups, num_clients, stream(seed, "partition"))
    cuts = offsets(dealt)
    require(cuts[-1] > 0, "the partition gives no client any rows")
    clients = np.flatnonzero(np.diff(cuts))
    names = clients
    if groups is not None and getattr(skew, "by_groups", False):
        names = groups[[dealt[k][0] for k in clients]]
    rows, sizes = np.concatenate(dealt), np.diff(cuts)[clients]
    shuffle(rows, sizes, stream(seed, "holdout"))
    aside = np.minimum((held_out * sizes + 1e-9).astype(np.int64), sizes - 1)
    place = np.arange(len(rows))
    measured = place - np.repeat(cuts[clients], sizes) < np.repeat(aside, sizes)
    if person is not None:
        owner, everything = np.repeat(np.arange(len(sizes)), sizes), np.zeros_like(rows)
        measured = whole_units(person[rows], owner, place, [(owner, aside), (everything, aside.sum(keepdims=True))])
        aside = np.bincount(owner[measured], minlength=len(sizes))
    return Partition(
        indices=rows[~measured],
        offsets=np.cumsum([0, *sizes - aside]),
        names=tuple(map(str, names.tolist())),
        empty=len(dealt) - len(clients),
        unassigned=len(labels) - len(rows),
        held_out=(rows[measured], np.cumsum([0, *aside])) if aside.any() else None,
    )


def shuffle(rows: Ints, sizes: Ints, rng: np.random.Generator) -> None:
    """Shuffle the rows of each client in place. Consecutive clients of equal size are shuffled in one step."""
    starts = np.cumsum([0, *sizes])
    turns = np.flatnonzero(np.diff(sizes, prepend=0, append=0))
    for first, last in pairwise(turns.tolist()):
        block = rows[starts[first] : starts[last]].reshape(last - first, sizes[first])
        rng.permuted(block, axis=1, out=block)


def offsets(parts: Sequence[Ints]) -> Ints:
    """Return where each part begins in the concatenation of all parts, and where the last one ends, (parts + 1,)."""
    return np.cumsum([0, *map(len, parts)])


def cut(rows: Ints, ends: Ints) -> list[Ints]:
    """Cut the rows into parts that end before each of the ``ends``."""
    return [rows[lo:hi] for lo, hi in pairwise([0, *ends.tolist()])]


def sorted_by_label(labels: Ints, rng: np.random.Generator) -> Ints:
    """Return all rows sorted by class, in random order within a class."""
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def evenly(rows: Ints, num_clients: int) -> list[Ints]:
    """Cut the rows into nearly equal blocks. The first blocks may have one row more."""
    size, longer = divmod(len(rows), num_clients)
    return cut(rows, np.cumsum(np.full(num_clients, size) + (np.arange(num_clients) < longer)))


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Each client gets random rows. The clients' sizes are nearly equal."""

    idea: ClassVar[str] = "every client is a random sample of nearly equal size"

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        return evenly(rng.permutation(len(labels)), num_clients)


@dataclass(frozen=True, kw_only=True)
class IidStratified:
    """Rows of each class are dealt in turn, so that the clients' numbers of rows of a class differ by at most one."""

    idea: ClassVar[str] = "the clients' numbers of rows of each class differ by at most one"

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        order = sorted_by_label(labels, rng)
        return [order[k::num_clients] for k in range(num_clients)]


@dataclass(frozen=True, kw_only=True)
class Natural:
    """One client for each person, writer or device that the data set names. This sets the number of clients."""

    idea: ClassVar[str] = "one client per person or device that the data set names"
    by_groups: ClassVar[bool] = True

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        if groups is None:
            raise BadInput(
                "skew natural: this data set has no natural clients; use another skew, or for a table name the column of the "
                "clients: client=COLUMN"
            )
        order = np.argsort(groups, kind="stable")
        _, sizes = np.unique(groups, return_counts=True)
        return cut(order, np.cumsum(sizes))


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """All rows on one client: centralised training on the same code.

    Combined with other skews, it pools the rows that they dealt. Their changes of features and labels stay.
    """

    idea: ClassVar[str] = "all rows on one client: centralised training"

    def accepts(self, setup: Setup) -> str:
        return "" if setup.simulated else "puts all rows on one client, and nodes keep theirs; use another skew"

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        return [np.arange(len(labels))]


@dataclass(frozen=True, kw_only=True)
class Shuffled(Iid):
    """The rows of all clients are dealt to them anew, at random: the clients' sizes stay, and their differences vanish.

    Combined with other skews, it deals the rows that they dealt. Their changes of features and labels stay with the rows.
    """

    idea: ClassVar[str] = "the rows of other skews' clients, dealt anew at random; sizes stay"

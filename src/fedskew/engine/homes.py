"""Client states of several processes: each keeps those of its own clients, whose home it is.

Client k's home is process k modulo their number, so that every process knows where to look. Most clients are trained at home; what
is kept of the others goes away for that round, and comes back. Rank 0 has, beside its own, the others' states as they were when
they were last collected, which is where a checkpoint takes them from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedskew.core.trees import Tree, map_leaves, num_bytes
from fedskew.engine.apart import NOBODY, Apart, share_of
from fedskew.engine.group import Group
from fedskew.loop.round import States
from fedskew.skew.partition import Ints

PART = 1 << 26
"""Bytes of states that travel at a time when many do."""


class HomeStates:
    """Where ``inner`` has those of one process; ``like`` makes a fresh state. All processes call for the same clients."""

    def __init__(self, group: Group, inner: States, like: Callable[[], Tree]) -> None:
        self.group, self.inner, self.like = group, inner, like
        self.changed: set[int] = set()  # clients with other states than rank 0 has, but for its own

    def get(self, clients: Ints, fresh: Callable[[], Tree]) -> Tree:
        """The states of the clients, each leaf `Apart` with a leading axis; those seen for the first time get ``fresh()``."""
        shares = homes(clients, self.group.size)
        mine = self.inner.get(clients[shares[self.group.rank]], fresh)
        return map_leaves(lambda leaf: Apart(self.group, shares, leaf), mine)

    def put(self, clients: Ints, states: Tree) -> None:
        """Keep the states of the clients, from wherever they are."""
        self.take_up(clients, states)
        self.changed.update(int(k) for k in clients if k % self.group.size)

    def take_up(self, clients: Ints, states: Tree) -> None:
        """Keep states that rank 0 has already."""
        shares = homes(clients, self.group.size)
        self.inner.put(clients[shares[self.group.rank]], share_of(states, shares, self.group.rank))

    def collect(self) -> None:
        """Bring rank 0 up to date."""
        for clients in parts(np.asarray(sorted(self.changed), dtype=np.int64), self.like()):
            shares = [np.arange(len(clients)), *[NOBODY] * (self.group.size - 1)]
            states = share_of(self.get(clients, self.like), shares, self.group.rank)
            if not self.group.rank:
                self.inner.put(clients, states)
        self.changed.clear()


def homes(clients: Ints, size: int) -> list[Ints]:
    """The positions of the clients that are at home in each of ``size`` processes."""
    return [np.flatnonzero(clients % size == process) for process in range(size)]


def parts(clients: Ints, state: Tree) -> Iterator[Ints]:
    """So many clients at a time that their states, each like ``state``, are of moderate size together."""
    number = max(PART // max(num_bytes(state), 1), 1)
    return (clients[done : done + number] for done in range(0, len(clients), number))

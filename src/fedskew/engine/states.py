"""Client states between rounds, in memory. Only clients that have taken part have a state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedskew.core.trees import Tree, leaves, map_leaves
from fedskew.skew.partition import Ints


class ClientStates:
    """Client states as stacked tensors, with one row for each client that has taken part. Full tensors double in size."""

    def __init__(self) -> None:
        self.place: dict[int, int] = {}
        self.rows: Tree | None = None

    def get(self, clients: Ints, fresh: Callable[[], Tree]) -> Tree:
        """Return the clients' states, stacked on a leading axis. A client without a state gets ``fresh()``."""
        places = torch.tensor([self.place.get(int(k), -1) for k in clients], dtype=torch.long)
        new = (places < 0).nonzero()[:, 0]

        def chosen(leaf: Tensor, rows: Tensor) -> Tensor:
            if len(new) == len(places):
                return leaf.expand(len(places), *leaf.shape).clone()
            # new clients first get some other row: this saves a pass over memory
            states = rows.index_select(0, places.clamp(min=0).to(rows.device))
            states[new] = leaf
            return states

        start = fresh()
        states: Tree = map_leaves(chosen, start, start if self.rows is None else self.rows)
        return states

    def put(self, clients: Ints, states: Tree) -> None:
        """Store the clients' states."""
        for k in clients:
            self.place.setdefault(int(k), len(self.place))
        if not states:
            return
        if self.rows is None:
            self.rows = map_leaves(lambda leaf: leaf.new_empty(0, *leaf.shape[1:]), states)
        capacity = next(leaf.shape[0] for _, leaf in leaves(self.rows))
        if len(self.place) > capacity:
            room = max(len(self.place), 2 * capacity)
            self.rows = map_leaves(lambda leaf: widened(leaf, room), self.rows)
        places = torch.tensor([self.place[int(k)] for k in clients], dtype=torch.long)
        map_leaves(lambda rows, new: rows.index_copy_(0, places.to(rows.device), new), self.rows, states)

    def export(self) -> tuple[Ints, Tree]:
        """Return the ids of all clients that have a state, and their states in this order."""
        ids = np.asarray(list(self.place), dtype=np.int64)
        return ids, {} if self.rows is None else map_leaves(lambda leaf: leaf[: len(ids)].clone(), self.rows)

    @property
    def clients(self) -> Ints:
        """The ids of all clients that have a state."""
        return np.asarray(list(self.place), dtype=np.int64)

    def checkpoint(self) -> Tree:
        """Return what a checkpoint must hold."""
        ids, states = self.export()
        return {"ids": torch.as_tensor(ids), "states": states}

    def saved(self) -> None:
        """Do nothing. It is called once a checkpoint is written (see `DiskStates`)."""

    @classmethod
    def restore(cls, ids: Ints, states: Tree) -> ClientStates:
        """Make states from the result of `export`."""
        made = cls()
        if len(ids):
            made.put(ids, states)
        return made


def widened(rows: Tensor, room: int) -> Tensor:
    """Copy the rows to a tensor with room for ``room`` rows. Free rows are not initialised, to save time."""
    wide = rows.new_empty(room, *rows.shape[1:])
    wide[: len(rows)] = rows
    return wide

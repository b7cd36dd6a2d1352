"""Client states between rounds: one row a client that has taken part, nothing for the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fedskew.core.trees import Tree, leaves, map_leaves
from fedskew.skew.partition import Ints


class ClientStates:
    """Rows of stacked tensors that grow by doubling; memory follows the clients seen, not the population."""

    def __init__(self) -> None:
        self.place: dict[int, int] = {}
        self.rows: Tree | None = None

    def get(self, clients: Ints, fresh: Callable[[], Tree]) -> Tree:
        """The states of the clients, with a leading axis; those seen for the first time get ``fresh()``."""
        start = fresh()
        known = [i for i, k in enumerate(clients) if int(k) in self.place]
        states: Tree = map_leaves(lambda leaf: leaf.expand(len(clients), *leaf.shape).clone(), start)
        if known and self.rows is not None:
            at = torch.tensor(known)
            places = torch.tensor([self.place[int(clients[i])] for i in known])
            map_leaves(
                lambda new, rows: new.index_copy_(0, at.to(new.device), rows[places.to(rows.device)]), states, self.rows
            )
        return states

    def put(self, clients: Ints, states: Tree) -> None:
        """Keep the states of the clients."""
        for k in clients:
            self.place.setdefault(int(k), len(self.place))
        if not states:
            return
        if self.rows is None:
            self.rows = map_leaves(lambda leaf: leaf.new_empty(0, *leaf.shape[1:]), states)
        capacity = next(leaf.shape[0] for _, leaf in leaves(self.rows))
        if len(self.place) > capacity:
            room = max(len(self.place), 2 * capacity)
            self.rows = map_leaves(
                lambda leaf: torch.cat([leaf, leaf.new_zeros(room - capacity, *leaf.shape[1:])]), self.rows
            )
        places = torch.tensor([self.place[int(k)] for k in clients])
        map_leaves(lambda rows, new: rows.index_copy_(0, places.to(rows.device), new), self.rows, states)

    def export(self) -> tuple[Ints, Tree]:
        """The ids of the clients seen, and their states in that order."""
        ids = np.asarray(list(self.place), dtype=np.int64)
        return ids, {} if self.rows is None else map_leaves(lambda leaf: leaf[: len(ids)].clone(), self.rows)

    @property
    def clients(self) -> Ints:
        """Those who have taken part."""
        return np.asarray(list(self.place), dtype=np.int64)

    def checkpoint(self) -> Tree:
        """What a checkpoint must hold."""
        ids, states = self.export()
        return {"ids": torch.as_tensor(ids), "states": states}

    def saved(self) -> None:
        """Nothing to do once it is written."""

    @classmethod
    def restore(cls, ids: Ints, states: Tree) -> ClientStates:
        """Inverse of `export`."""
        made = cls()
        if len(ids):
            made.put(ids, states)
        return made

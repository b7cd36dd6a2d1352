"""Storage of the client states between rounds, in memory or on disk."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import IO, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.errors import FedskewError, NoRoom
from fedskew.core.trees import Tree, leaves, map_leaves, num_bytes
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
        return map_leaves(chosen, start, start if self.rows is None else self.rows)

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
        return self.clients, {} if self.rows is None else map_leaves(
            lambda leaf: leaf[: len(self.place)].clone(), self.rows
        )

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
    def restore(cls, ids: Ints, states: Tree) -> Self:
        """Make states from the result of `export`."""
        restored = cls()
        if len(ids):
            restored.put(ids, states)
        restored.saved()
        return restored


def widened(rows: Tensor, room: int) -> Tensor:
    """Copy the rows to a tensor with room for ``room`` rows. Free rows are not initialised, to save time."""
    wide = rows.new_empty(room, *rows.shape[1:])
    wide[: len(rows)] = rows
    return wide


class DiskStates:
    """Client states in a file, with the methods of `ClientStates`. Memory holds two numbers for each client.

    The file is not mapped to memory, because a full disk would then end the process instead of raising an error.
    """

    def __init__(self, file: IO[bytes], num_clients: int) -> None:
        self.file = file
        self.slots: Ints = np.full(num_clients, -1)  # the position of each client's record; -1: none
        self.checksums: Ints = np.zeros(num_clients, dtype=np.int64)  # the CRC-32 of each client's record
        # by position: used by the newest checkpoint
        self.in_checkpoint: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.free: list[int] = []

    def get(self, clients: Ints, fresh: Callable[[], Tree]) -> Tree:
        """Return the clients' states, stacked on a leading axis. A client without a state gets ``fresh()``."""
        start = fresh()
        states: Tree = map_leaves(lambda leaf: leaf.expand(len(clients), *leaf.shape).clone(), start)
        stored = np.flatnonzero(self.slots[clients] >= 0)
        if len(stored) and states:
            records = np.empty((len(stored), num_bytes(start)), dtype=np.uint8)
            for client, record in zip(clients[stored].tolist(), records, strict=True):
                whole = self.transfer(os.preadv, record, int(self.slots[client]))
                if not whole or zlib.crc32(record.data) != self.checksums[client]:
                    raise NoRoom(
                        f"client states in {self.where}: the state of client {client} is damaged (incomplete, or another "
                        "checksum), and there is no copy of it; start a new run"
                    )
            at = torch.as_tensor(stored)
            for path, leaf in unpacked(records, start).items():
                dict(leaves(states))[path].index_copy_(0, at.to(leaf.device), leaf)
        return states

    def put(self, clients: Ints, states: Tree) -> None:
        """Write the clients' states. Does nothing if the file is open for reading only."""
        if not states or not self.file.writable():
            return
        for client, record in zip(clients.tolist(), packed(states), strict=True):
            self.checksums[client] = zlib.crc32(record.data)
            if self.slots[client] < 0 or self.in_checkpoint[self.slots[client]]:
                self.slots[client] = self.empty_slot()
            self.transfer(os.pwritev, record, int(self.slots[client]))

    def empty_slot(self) -> int:
        """Return the position of a free record; make the file larger if there is none."""
        if not self.free:
            end = len(self.in_checkpoint)
            self.in_checkpoint = np.concatenate([self.in_checkpoint, np.zeros(max(end // 4, 1024), dtype=np.bool_)])
            self.free = list(range(len(self.in_checkpoint) - 1, end - 1, -1))
        return self.free.pop()

    def transfer(self, call: Callable[[int, list[memoryview], int], int], record: NDArray[np.uint8], slot: int) -> bool:
        """Read or write a record by system calls ``call``. Return False if the file ends before the record does."""
        left, place = record.data, slot * len(record)
        try:
            while left and (count := call(self.file.fileno(), [left], place)):
                left, place = left[count:], place + count
        except OSError as error:
            raise NoRoom(
                f"client states in {self.where}: {error.strerror}; free some space; `fedskew resume` continues the run"
            ) from None
        return not left

    @property
    def where(self) -> str:
        """The file's path, or its folder if the file has no name."""
        return self.file.name if isinstance(self.file.name, str) else gettempdir()

    @property
    def clients(self) -> Ints:
        """The ids of all clients that have a state."""
        return np.flatnonzero(self.slots >= 0)

    def checkpoint(self) -> Tree:
        """Sync the records to disk; return what a checkpoint must hold. Call `saved` once the checkpoint is written."""
        os.fsync(self.file.fileno())
        ids = self.clients
        tables = {"ids": ids, "slots": self.slots[ids], "checksums": self.checksums[ids]}
        return {name: torch.as_tensor(values) for name, values in tables.items()}

    def saved(self) -> None:
        """Free the records that only older checkpoints use. Call it when a checkpoint of the current states is written."""
        self.in_checkpoint[:] = False
        self.in_checkpoint[self.slots[self.slots >= 0]] = True
        self.free = np.flatnonzero(~self.in_checkpoint)[::-1].tolist()

    def restore(self, tree: Tree) -> None:
        """Restore the states from the content of a checkpoint."""
        ids, slots, checksums = (tree[name].cpu().numpy() for name in ("ids", "slots", "checksums"))
        self.slots[ids], self.checksums[ids] = slots, checksums
        self.in_checkpoint = np.zeros(int(slots.max(initial=-1)) + 1, dtype=np.bool_)
        self.saved()


AnyStates = ClientStates | DiskStates
"""Client states between rounds."""


def opened(path: Path, num_clients: int, tree: Tree | None = None, read_only: bool = False) -> DiskStates:
    """Open a file of client states. It is empty, or has the states of a checkpoint with the content ``tree``.

    Raises `FedskewError` if the file cannot be opened.
    """
    try:
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True)
        states = DiskStates(path.open("rb" if read_only else "r+b" if tree else "w+b"), num_clients)
    except OSError as error:
        raise FedskewError(f"client states in {path}: cannot be opened: {error.strerror}") from None
    if tree:
        states.restore(tree)
    return states


def packed(states: Tree) -> NDArray[np.uint8]:
    """Convert states, with leading axis C, to one record of bytes for each client, (C, bytes)."""
    parts = [
        leaf.cpu().reshape(len(leaf), leaf.shape[1:].numel()).contiguous().view(torch.uint8)
        for _, leaf in leaves(states)
    ]
    return torch.cat(parts, dim=1).numpy()


def unpacked(records: NDArray[np.uint8], like: Tree) -> dict[str, Tensor]:
    """Convert records (C, bytes) back to leaves by path. ``like`` is one client's state."""
    done, result = 0, {}
    for path, leaf in leaves(like):
        size = leaf.numel() * leaf.element_size()
        part = torch.from_numpy(records[:, done : done + size].copy("C"))
        # `view` cannot change the type of an empty tensor
        numbers = part.view(leaf.dtype) if size else part.to(leaf.dtype)
        result[path] = numbers.view(len(records), *leaf.shape).to(leaf.device)
        done += size
    return result

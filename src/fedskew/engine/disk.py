"""Client states on disk, for populations whose states would not fit into memory: one record a client, read and written by cohort.

A checkpoint holds the position and the checksum of each client's record. These records are not overwritten before the next
checkpoint is written: a run that ends in between resumes from the states of the checkpoint.
"""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.errors import FedskewError, NoRoom
from fedskew.core.trees import Tree, leaves, map_leaves, num_bytes
from fedskew.skew.partition import Ints


class DiskStates:
    """Client states in a file, with the methods of `ClientStates`; memory holds two numbers a client.

    The file is not mapped to memory: a full disk then raises an error instead of ending the process.
    ``before_write`` may raise: it is called before a cohort's records are written.
    """

    def __init__(self, file: IO[bytes], num_clients: int, before_write: Callable[[], None] = lambda: None) -> None:
        self.file, self.before_write = file, before_write
        self.slots: Ints = np.full(num_clients, -1)  # the position of each client's record; -1: none
        self.checksums: Ints = np.zeros(num_clients, dtype=np.int64)  # the CRC-32 of each client's record
        self.in_checkpoint: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)  # records of the newest checkpoint
        self.free: list[int] = []

    def get(self, clients: Ints, fresh: Callable[[], Tree]) -> Tree:
        """The states of the clients, with a leading axis; a client without one gets ``fresh()``."""
        start = fresh()
        states: Tree = map_leaves(lambda leaf: leaf.expand(len(clients), *leaf.shape).clone(), start)
        known = np.flatnonzero(self.slots[clients] >= 0)
        if len(known) and states:
            records = np.empty((len(known), num_bytes(start)), dtype=np.uint8)
            for client, record in zip(clients[known].tolist(), records, strict=True):
                whole = self.transfer(os.preadv, record, int(self.slots[client]))
                if not whole or zlib.crc32(record.data) != self.checksums[client]:
                    raise NoRoom(
                        f"client states in {self.where}: the state of client {client} is damaged (cut short, or another "
                        "checksum), and no copy of it is kept; start a new run"
                    )
            at = torch.as_tensor(known)
            for path, leaf in unpacked(records, start).items():
                dict(leaves(states))[path].index_copy_(0, at.to(leaf.device), leaf)
        return states

    def put(self, clients: Ints, states: Tree) -> None:
        """Write the states of the clients; does nothing if the file is open for reading only."""
        if not states or not self.file.writable():
            return
        self.before_write()
        for client, record in zip(clients.tolist(), packed(states), strict=True):
            self.checksums[client] = zlib.crc32(record.data)
            if self.slots[client] < 0 or self.in_checkpoint[self.slots[client]]:
                self.slots[client] = self.empty_slot()
            self.transfer(os.pwritev, record, int(self.slots[client]))

    def empty_slot(self) -> int:
        """The position of a free record."""
        if not self.free:
            end = len(self.in_checkpoint)
            self.in_checkpoint = np.concatenate([self.in_checkpoint, np.zeros(max(end // 4, 1024), dtype=np.bool_)])
            self.free = list(range(len(self.in_checkpoint) - 1, end - 1, -1))
        return self.free.pop()

    def transfer(self, call: Callable[[int, list[memoryview], int], int], record: NDArray[np.uint8], slot: int) -> bool:
        """Read or write a record, in as many calls as the system needs; False if the file ends within it."""
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
        """The path of the file, or the folder of a file without a name."""
        return self.file.name if isinstance(self.file.name, str) else gettempdir()

    @property
    def clients(self) -> Ints:
        """The ids of the clients with a state."""
        return np.flatnonzero(self.slots >= 0)

    def checkpoint(self) -> Tree:
        """The content of a checkpoint, after all records have reached the disk. Call `saved` once the checkpoint is written."""
        os.fsync(self.file.fileno())
        ids = self.clients
        kept = {"ids": ids, "slots": self.slots[ids], "checksums": self.checksums[ids]}
        return {name: torch.as_tensor(values) for name, values in kept.items()}

    def saved(self) -> None:
        """The checkpoint of the current states is written: free the records of older ones."""
        self.in_checkpoint[:] = False
        self.in_checkpoint[self.slots[self.slots >= 0]] = True
        self.free = np.flatnonzero(~self.in_checkpoint)[::-1].tolist()

    def restore(self, tree: Tree) -> None:
        """Continue from the content of a checkpoint."""
        ids, slots, checksums = (tree[name].cpu().numpy() for name in ("ids", "slots", "checksums"))
        self.slots[ids], self.checksums[ids] = slots, checksums
        self.in_checkpoint = np.zeros(int(slots.max(initial=-1)) + 1, dtype=np.bool_)
        self.saved()


def opened(
    path: Path,
    num_clients: int,
    tree: Tree | None = None,
    read_only: bool = False,
    before_write: Callable[[], None] = lambda: None,
) -> DiskStates:
    """The states in a file: none, or the states in the content ``tree`` of a checkpoint. Raises `FedskewError`."""
    try:
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True)
        states = DiskStates(path.open("rb" if read_only else "r+b" if tree else "w+b"), num_clients, before_write)
    except OSError as error:
        raise FedskewError(f"client states in {path}: cannot be opened: {error.strerror}") from None
    if tree:
        states.restore(tree)
    return states


def packed(states: Tree) -> NDArray[np.uint8]:
    """One record of bytes (C, bytes) for each client, from leaves with a leading axis C."""
    parts = [
        leaf.cpu().reshape(len(leaf), leaf.shape[1:].numel()).contiguous().view(torch.uint8)
        for _, leaf in leaves(states)
    ]
    return torch.cat(parts, dim=1).numpy()


def unpacked(records: NDArray[np.uint8], like: Tree) -> dict[str, Tensor]:
    """Inverse of `packed`, by path; ``like`` is one client's state."""
    done, result = 0, {}
    for path, leaf in leaves(like):
        size = leaf.numel() * leaf.element_size()
        part = torch.from_numpy(records[:, done : done + size].copy("C"))
        # an empty view cannot change its type
        numbers = part.view(leaf.dtype) if size else part.to(leaf.dtype)
        result[path] = numbers.view(len(records), *leaf.shape).to(leaf.device)
        done += size
    return result

"""A data set for worker processes on this machine: its arrays are in one file, which all workers map without a copy."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from mmap import ACCESS_COPY, mmap
from multiprocessing.reduction import DupFd
from os import fdopen
from tempfile import TemporaryFile, gettempdir
from typing import IO, Protocol

from fedskew.core.errors import NoRoom
from fedskew.data.dataset import Dataset

ALIGNMENT = 64
"""The offset of each array in the file is a multiple of this many bytes."""


class Descriptor(Protocol):
    """A file descriptor on its way to another process."""

    def detach(self) -> int: ...


@dataclass(frozen=True)
class SharedDataset:
    """Pass it to a process that `multiprocessing` starts, which receives a `Dataset`."""

    file: IO[bytes]
    pickled: bytes  # without the arrays
    places: Sequence[tuple[int, int]]  # first byte of each array, and the byte after its last

    def __reduce__(self) -> tuple[object, ...]:
        return mapped, (DupFd(self.file.fileno()), self.pickled, self.places)


def mapped(descriptor: Descriptor, pickled: bytes, places: Sequence[tuple[int, int]]) -> Dataset:
    """The data set in a worker. Rows are read from the file when needed; a worker's changes stay its own."""
    with fdopen(descriptor.detach(), "rb") as file:
        memory = memoryview(mmap(file.fileno(), 0, access=ACCESS_COPY))
    dataset: Dataset = pickle.loads(pickled, buffers=[memory[start:end] for start, end in places])
    return dataset


@contextmanager
def shared(dataset: Dataset | None) -> Iterator[SharedDataset | None]:
    """Write the arrays into a file without a name, which is gone when the last process has closed it. Raises `NoRoom`."""
    if dataset is None:
        yield None
        return
    buffers: list[pickle.PickleBuffer] = []
    pickled, places = pickle.dumps(dataset, protocol=5, buffer_callback=buffers.append), []
    with TemporaryFile() as file:
        try:
            for buffer in buffers:
                start = file.tell()
                file.write(buffer.raw())
                places.append((start, file.tell()))
                file.write(bytes(ALIGNMENT - file.tell() % ALIGNMENT))
            file.flush()
        except OSError as error:
            with suppress(OSError):  # unwritten bytes in the buffer fail again
                file.close()
            raise NoRoom(
                f"the rows for worker processes cannot be written to {gettempdir()}: {error.strerror}; set TMPDIR=FOLDER to "
                "write elsewhere"
            ) from None
        yield SharedDataset(file, pickled, places)

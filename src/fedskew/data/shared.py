"""Share a data set with worker processes on this machine. Its arrays are in one file that all workers map to memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from os import fdopen
from tempfile import TemporaryFile, gettempdir
from typing import IO, Protocol

import numpy as np

from fedskew.core.errors import NoRoom
from fedskew.data.dataset import Dataset

ALIGNMENT = 64
"""Each array's offset in the file is a multiple of this number of bytes."""

Places = Mapping[str, tuple[int, np.dtype[np.generic], tuple[int, ...]]]
"""Offset in the file, type and shape of each array, by name."""


class Descriptor(Protocol):
    """A file descriptor that is being sent to another process."""

    def detach(self) -> int: ...


@dataclass(frozen=True)
class SharedDataset:
    """A shared data set. If `multiprocessing` sends it to another process, that process receives a `Dataset`."""

    file: IO[bytes]
    places: Places
    rest: Mapping[str, object]  # the fields that are no arrays

    def __reduce__(self) -> tuple[object, ...]:
        return mapped, (DupFd(self.file.fileno()), self.places, self.rest)


def mapped(descriptor: Descriptor, places: Places, rest: Mapping[str, object]) -> Dataset:
    """Make the data set in a worker. Rows are read from the file when used. A worker's changes do not reach the file."""
    with fdopen(descriptor.detach(), "rb") as file:
        arrays = {
            name: np.asarray(np.memmap(file, dtype, mode="c", offset=offset, shape=shape))
            for name, (offset, dtype, shape) in places.items()
        }
    # the rows were checked when the data set was made
    dataset = Dataset.__new__(Dataset)
    dataset.__dict__.update(rest, **arrays)
    return dataset


@contextmanager
def shared(dataset: Dataset | None) -> Iterator[SharedDataset | None]:
    """Write the arrays to a file without a name. The system deletes it after the last process has closed it. Raises `NoRoom`."""
    if dataset is None:
        yield None
        return
    arrays = {name: value for name, value in vars(dataset).items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in vars(dataset).items() if name not in arrays}
    places: dict[str, tuple[int, np.dtype[np.generic], tuple[int, ...]]] = {}
    with TemporaryFile() as file:
        try:
            for name, array in arrays.items():
                places[name] = file.tell(), array.dtype, array.shape
                file.write(np.ascontiguousarray(array).data)
                file.write(bytes(-file.tell() % ALIGNMENT))
            file.flush()
        except OSError as error:
            with suppress(OSError):  # unwritten bytes in the buffer fail again
                file.close()
            raise NoRoom(
                f"the rows for worker processes cannot be written to {gettempdir()}: {error.strerror}; set TMPDIR=FOLDER to "
                "write elsewhere"
            ) from None
        yield SharedDataset(file, places, rest)

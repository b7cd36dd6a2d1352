"""A data set for worker processes of this machine: its rows lie in one file, which all of them map, and none has a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from os import fdopen
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any

import numpy as np

from fedskew.core.errors import NoRoom
from fedskew.data.dataset import Dataset

ALIGNMENT = 64
"""Bytes that the place of each array in the file is a multiple of."""

Places = Mapping[str, tuple[int, np.dtype[Any], tuple[int, ...]]]
"""Offset, type and shape of each array in the file."""


@dataclass(frozen=True)
class SharedDataset:
    """An argument for a process that `multiprocessing` starts, which receives it as a `Dataset`."""

    file: IO[bytes]
    places: Places
    rest: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return mapped, (DupFd(self.file.fileno()), self.places, self.rest)


def mapped(descriptor: Any, places: Places, rest: Mapping[str, Any]) -> Dataset:
    """The data set in a worker. Rows are read from the file when needed; what the worker changes is its own."""
    with fdopen(descriptor.detach(), "rb") as file:
        arrays = {
            name: np.asarray(np.memmap(file, dtype, mode="c", offset=offset, shape=shape))
            for name, (offset, dtype, shape) in places.items()
        }
    # without the checks of all rows, which passed where the data set was made
    made = Dataset.__new__(Dataset)
    made.__dict__.update(rest, **arrays)
    return made


@contextmanager
def shared(dataset: Dataset | None) -> Iterator[SharedDataset | None]:
    """Write the rows into a file without a name, which is gone when the last process has closed it. Raises `NoRoom`."""
    if dataset is None:
        yield None
        return
    arrays = {name: value for name, value in vars(dataset).items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in vars(dataset).items() if name not in arrays}
    places: dict[str, tuple[int, np.dtype[Any], tuple[int, ...]]] = {}
    with TemporaryFile() as file:
        try:
            for name, value in arrays.items():
                places[name] = file.tell(), value.dtype, value.shape
                file.write(np.ascontiguousarray(value).data)
                file.write(bytes(-file.tell() % ALIGNMENT))
            file.flush()
        except OSError as error:
            with suppress(OSError):  # what is still in the buffer
                file.close()
            raise NoRoom(
                f"the rows for worker processes cannot be written to {gettempdir()}: {error.strerror}; TMPDIR=FOLDER puts them "
                "elsewhere"
            ) from None
        yield SharedDataset(file, places, rest)

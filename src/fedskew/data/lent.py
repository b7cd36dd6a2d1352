"""A data set for other processes of this machine: its rows in one file that all of them read, and none has a copy of."""

from __future__ import annotations

import mmap
import pickle
from dataclasses import dataclass
from pathlib import Path

from fedskew.core.errors import NoRoom
from fedskew.data.dataset import Dataset

LINE = 64
"""Bytes that an array's place in the file is a multiple of, as memory and its processors like it."""


@dataclass(frozen=True)
class Lent:
    """What another process is told: where the arrays lie in the file (first byte, bytes), and all else; calling it reads them."""

    path: Path
    places: tuple[tuple[int, int], ...]
    rest: bytes

    def __call__(self) -> Dataset:
        """The data set. Its rows come from the file as they are needed; changed ones are this process's own."""
        with self.path.open("rb") as file:
            rows = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        found: Dataset = pickle.loads(self.rest, buffers=[rows[at : at + size] for at, size in self.places])
        return found


def lend(dataset: Dataset, folder: str | Path) -> Lent:
    """Write the rows into a file of the folder, which must stay as long as others may ask for them. Raises `NoRoom`."""
    buffers: list[pickle.PickleBuffer] = []
    rest, path, places = pickle.dumps(dataset, protocol=5, buffer_callback=buffers.append), Path(folder) / "rows", []
    try:
        with path.open("wb") as file:
            for buffer in buffers:
                places.append((file.tell(), buffer.raw().nbytes))
                file.write(buffer.raw())
                file.write(bytes(-file.tell() % LINE))
    except OSError as error:
        raise NoRoom(
            f"the rows for other processes cannot be written into {folder}: {error.strerror}; TMPDIR=FOLDER puts them elsewhere"
        ) from None
    return Lent(path, tuple(places), rest)

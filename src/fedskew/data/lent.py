"""A data set for other processes of this machine: its rows in one file that all of them read, and none has a copy of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import NoRoom
from fedskew.data.dataset import Dataset

LINE = 64
"""Bytes that an array's place in the file is a multiple of, as processors like it."""


@dataclass(frozen=True)
class Lent:
    """What another process is told: each array's first byte in the file, type and shape, and all else; calling it reads them."""

    path: Path
    places: Mapping[str, tuple[int, np.dtype[Any], tuple[int, ...]]]
    rest: Mapping[str, Any]

    def __call__(self) -> Dataset:
        """The data set. Its rows come from the file as they are needed; changed ones are this process's own."""
        arrays = {
            name: np.asarray(np.memmap(self.path, kind, mode="c", offset=at, shape=shape))
            for name, (at, kind, shape) in self.places.items()
        }
        # all rows were looked at where the data set was made
        made = Dataset.__new__(Dataset)
        made.__dict__.update(self.rest, **arrays)
        return made


def lend(dataset: Dataset, folder: str | Path) -> Lent:
    """Write the rows into a file of the folder, which must stay as long as others may ask for them. Raises `NoRoom`."""
    arrays = {name: value for name, value in vars(dataset).items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in vars(dataset).items() if name not in arrays}
    path, places = Path(folder) / "rows", {}
    try:
        with path.open("wb") as file:
            for name, value in arrays.items():
                places[name] = file.tell(), value.dtype, value.shape
                file.write(np.ascontiguousarray(value).data)
                file.write(bytes(-file.tell() % LINE))
    except OSError as error:
        raise NoRoom(
            f"the rows for other processes cannot be written into {folder}: {error.strerror}; TMPDIR=FOLDER puts them elsewhere"
        ) from None
    return Lent(path, places, rest)

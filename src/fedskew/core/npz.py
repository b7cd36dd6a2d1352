"""Read arrays of NumPy's compressed files. The unpacked size is checked before unpacking."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = 1 << 12
"""Largest size of an array's header in bytes."""


def bounded(file: np.lib.npyio.NpzFile, name: str, most: int) -> NDArray[Any]:
    """Read the array ``name``. Raises `KeyError` if there is none, `ValueError` if its data exceed ``most`` bytes."""
    if name not in file:
        raise KeyError(name)
    assert file.zip is not None
    size = file.zip.getinfo(f"{name}.npy").file_size
    if size > most + HEADER:
        raise ValueError(f"{name} unpacks to {size:,} bytes, expected at most {most:,}")
    array: NDArray[Any] = file[name]
    return array

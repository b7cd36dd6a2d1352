"""Where files lie that an experiment names."""

from __future__ import annotations

import errno
from pathlib import Path

MOST_BYTES = 1 << 20
"""Of a file of text that a person writes, an experiment or a method."""


def read_small(path: Path) -> bytes:
    """A small file's bytes. Raises `OSError`, also for more than `MOST_BYTES` of them: a device has no end."""
    with path.open("rb") as file:
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES >> 20} MiB")
    return found


def whole_path(path: str) -> str:
    """The whole path of what is there, so that a run goes on, and is repeated, from any folder; what is not there as it is written.

    A name of the Hugging Face hub is such a one, unless a folder has it, too, which its libraries then take as well.
    """
    place = Path(path).expanduser()
    return str(place.resolve()) if path and place.exists() else path

"""Paths of files that an experiment or a user names."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedskew.core.errors import require

MOST_BYTES = 1 << 20
"""Largest size of an experiment file or a method file."""


def read_small(path: Path) -> bytes:
    """Read a file of at most `MOST_BYTES`. Raises `OSError` for a larger file or an endless device."""
    with path.open("rb") as file:
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES >> 20} MiB")
    return found


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path in the same folder to write to. Its file then replaces ``path`` in one step; after an error it is removed.

    If ``path`` is a link, its target is replaced. A device or pipe is written to. Raises `OSError`.
    """
    try:
        target = path.resolve()
    except RuntimeError:
        raise OSError(errno.ELOOP, "its links lead in a circle") from None
    if target.exists() and not target.is_file():
        yield target
        return
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        yield partial
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def whole_path(path: str) -> str:
    """Return the absolute path of an existing file or folder, so that a run can be repeated from any folder; else ``path``.

    ``path`` may be a Hugging Face name. A local folder of the same name takes precedence, as in their libraries.
    """
    place = Path(path).expanduser()
    return str(place.resolve()) if path and place.exists() else path


def require_exists(path: Path) -> None:
    """Raise `BadInput` if the path does not exist."""
    require(path.exists(), f"{path}: no such file or folder{'' if path.is_absolute() else f' in {Path.cwd()}'}")

"""Folders for files that live as long as a process; what a killed one has left is removed by the next that makes one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "fedskew-scratch-"
YOUNG = 60.0
"""Seconds for which a folder is left alone, since its process may just be about to lock it."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder for temporary files, locked while it is used and then removed."""
    remove_left()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        lock = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


def remove_left() -> None:
    """Remove such folders that no process has locked; those of other users stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or time.time() - folder.stat().st_mtime < YOUNG:
                continue
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)

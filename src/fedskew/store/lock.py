"""Locks: one process at a time executes a run. The system frees the lock of a process that ends, also if it was killed."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.files import write_whole
from fedskew.store.runs import RunRecord, RunStore

PATIENCE = 1.0
"""Seconds to wait for a lock, in which another process may only be looking if it is free."""


def lock_file(store: RunStore, run: int) -> Path:
    """Return the file that the process which executes the run keeps locked. Beside it, ``.owner`` names this process."""
    return store.run_folder(run) / "lock"


@contextmanager
def held(store: RunStore, run: int) -> Iterator[None]:
    """Hold the run's lock. Raises `BadInput` while another process holds it, `FedskewError` if the file cannot be written."""
    path = lock_file(store, run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path, timeout=PATIENCE):
            write_whole(path.with_suffix(".owner"), f"process {os.getpid()} on {platform.node()}", f"run {run}: lock")
            yield
    except Timeout:
        raise BadInput(busy(store, run) or f"run {run}: another process has just ended it; try again") from None
    except OSError as error:
        raise FedskewError(f"run {run}: its lock {path} cannot be written: {error.strerror}") from None


def owner(store: RunStore, run: int) -> str:
    """Return the process that executes the run, ``process 4711 on HOST``; empty if there is none.

    In a folder in which this user cannot write, it is the process that executed the run last.
    """
    path = lock_file(store, run)
    try:
        if path.exists():
            FileLock(path).acquire(timeout=0).lock.release()
        return ""
    except (Timeout, OSError):
        text = path.with_suffix(".owner")
        return text.read_text(encoding="utf-8", errors="replace")[:200] if text.is_file() else "another process"


def present(store: RunStore, record: RunRecord) -> RunRecord:
    """Return the record. A run whose process was killed, or could not write, is ``interrupted``: the store says ``running``."""
    gone = record.status == "running" and not owner(store, record.id)
    return replace(record, status="interrupted") if gone else record


def busy(store: RunStore, run: int) -> str:
    """Return why this process cannot execute the run now, as a message; an empty text if it can."""
    process = owner(store, run)
    return f"run {run}: {process} is executing it; wait for it, or stop it first" if process else ""

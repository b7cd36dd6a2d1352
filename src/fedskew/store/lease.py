"""One process carries out a run at a time: it holds a lease in the store, which it renews until it lets go.

The lease of a process that has ended on this machine is free at once, and any other when it has expired. Where two machines share
a folder, their clocks must agree to within `LENGTH`, less `RENEWAL`.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from fedskew.core.errors import BadInput, FedskewError

if TYPE_CHECKING:
    from fedskew.store.runs import RunStore

LENGTH, RENEWAL = 60.0, 10.0
"""Seconds that a lease lasts, and after which it is renewed."""

HELD: set[str] = set()
"""Tokens of the leases that this process holds."""


class TakenOver(FedskewError):
    """Another process carries out the run now; this one must not write of it any more."""


@dataclass(frozen=True)
class Owner:
    """Who holds a lease; the fields of its row after the run."""

    token: str
    host: str
    machine: str
    process: int
    began: str
    expires: float

    @property
    def gone(self) -> bool:
        """Whether the process has ended, as far as this machine can know, or has let its lease expire."""
        if self.machine == machine():
            if self.process == os.getpid():
                return self.token not in HELD
            running = alive(self.process, self.began)
            if self.began or not running:
                return not running
        return self.expires < time.time()


@contextmanager
def held(store: RunStore, run: int) -> Iterator[None]:
    """Hold the run's lease. Raises `BadInput` while another process holds it."""
    token = f"{platform.node()} {os.getpid()} {began(os.getpid())} {uuid.uuid4().hex}"
    take(store, run, token)
    HELD.add(token)
    store.tokens[run] = token
    done = Event()
    renewing = Thread(target=renew, args=(store.path, token, done), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        done.set()
        renewing.join()
        del store.tokens[run]
        HELD.discard(token)
        # a lease that cannot be given back is free all the same: this process holds it no more
        with suppress(FedskewError), store.transaction():
            store.db.execute("DELETE FROM leases WHERE token=?", (token,))


def take(store: RunStore, run: int, token: str) -> None:
    """Write the lease, unless there is one whose owner is not gone."""
    new = Owner(token, platform.node(), machine(), os.getpid(), began(os.getpid()), time.time() + LENGTH)
    with store.transaction():
        if reason := busy(store, run):
            raise BadInput(reason)
        store.db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?)", (run, *astuple(new)))


def busy(store: RunStore, run: int) -> str:
    """Why this process cannot carry the run out now; nothing if it can."""
    owner = store.owner(run)
    if owner is None or owner.gone:
        return ""
    left = max(owner.expires - time.time(), 0)
    cure = "stop it first" if owner.machine == machine() else f"if it is gone, try again in {left:.0f} s"
    return f"run {run}: process {owner.process} on {owner.host} is carrying it out; wait for it, or {cure}"


def renew(path: Path, token: str, done: Event) -> None:
    """Put the end of the lease off until all is done; what fails is tried again."""
    while not done.wait(RENEWAL):
        with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=5)) as db, db:
            db.execute("UPDATE leases SET expires=? WHERE token=?", (time.time() + LENGTH, token))


@cache
def machine() -> str:
    """A name of this running system, and of the container in it whose numbers of processes these are."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def alive(process: int, start: str) -> bool:
    """Whether the process that began then, if that is known, still runs; another may have its number by now."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return bool(start) and start == began(process)
    return not start or start == began(process)


def began(process: int) -> str:
    """When a process started, in the machine's ticks; nothing of one that has ended, and where the system does not say."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        # the program's name, in brackets, may hold spaces
        state, *rest = text.rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    except (OSError, IndexError, ValueError):
        return ""

"""Leases: only one process at a time executes a run. It holds a lease in the store and renews it until the run ends.

A lease is free at once if its process ran on this machine and has ended. Any other lease is free when it has expired. If two
machines share a folder, their clocks must agree to within `LENGTH` minus `RENEWAL`.
"""

import os
import platform
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from threading import Event, Thread

from fedskew.core.errors import BadInput, FedskewError
from fedskew.store.owner import HELD, Owner, began, machine
from fedskew.store.runs import RunStore

LENGTH, RENEWAL = 60.0, 10.0
"""A lease lasts `LENGTH` seconds. Its process renews it every `RENEWAL` seconds."""


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
        # If deleting fails, the lease is free all the same, because its token is no longer in HELD.
        with suppress(FedskewError), store.transaction():
            store.db.execute("DELETE FROM leases WHERE token=?", (token,))


def take(store: RunStore, run: int, token: str) -> None:
    """Write the run's lease to the store. Raises `BadInput` if another process holds the lease."""
    new = Owner(token, platform.node(), machine(), os.getpid(), began(os.getpid()), time.time() + LENGTH)
    with store.transaction():
        if reason := busy(store, run):
            raise BadInput(reason)
        store.db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?)", (run, *astuple(new)))


def busy(store: RunStore, run: int) -> str:
    """Return why this process cannot execute the run now, as a message; an empty text if it can."""
    owner = store.owner(run)
    if owner is None or owner.gone:
        return ""
    left = max(owner.expires - time.time(), 0)
    remedy = "stop it first" if owner.machine == machine() else f"if it is gone, try again in {left:.0f} s"
    return f"run {run}: process {owner.process} on {owner.host} is executing it; wait for it, or {remedy}"


def renew(path: Path, token: str, done: Event) -> None:
    """Extend the lease every `RENEWAL` seconds until ``done`` is set. SQLite errors are ignored."""
    while not done.wait(RENEWAL):
        with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=5)) as db, db:
            db.execute("UPDATE leases SET expires=? WHERE token=?", (time.time() + LENGTH, token))

"""The process that carries out a run, and whether it still runs."""

import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedskew.core.errors import FedskewError

HELD: set[str] = set()
"""Tokens of the leases that this process holds."""


class TakenOver(FedskewError):
    """Another process carries out the run now; this one must stop writing."""


@dataclass(frozen=True)
class Owner:
    """The process that holds a lease; the fields are the columns after the run."""

    token: str
    host: str
    machine: str
    process: int
    began: str
    expires: float

    @property
    def gone(self) -> bool:
        """True if the process has ended, as far as this machine can see, or its lease has expired."""
        if self.machine == machine():
            if self.process == os.getpid():
                return self.token not in HELD
            running = alive(self.process, self.began)
            if self.began or not running:
                return not running
        return self.expires < time.time()


@cache
def machine() -> str:
    """A name of this running system and container: process numbers are unique within it."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def alive(process: int, start: str) -> bool:
    """True if the process still runs. ``start`` tells it from a later process with the same number; empty if unknown."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return bool(start) and start == began(process)
    return not start or start == began(process)


def began(process: int) -> str:
    """The start of a process in clock ticks; empty if it has ended or the system does not say."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        # the program's name, in brackets, may hold spaces
        state, *rest = text.rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    except (OSError, IndexError, ValueError):
        return ""

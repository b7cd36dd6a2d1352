"""The process that executes a run, and whether that process is still running."""

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
    """Another process executes the run now; this process must stop writing."""


@dataclass(frozen=True)
class Owner:
    """The process that holds a lease. Its fields are the columns of the table ``leases`` after ``run``."""

    token: str
    host: str
    machine: str
    process: int
    began: str
    expires: float

    @property
    def gone(self) -> bool:
        """True if the process has ended or its lease has expired. Only on this machine can the end be seen."""
        if self.machine == machine():
            if self.process == os.getpid():
                return self.token not in HELD
            running = alive(self.process, self.began)
            if self.began or not running:
                return not running
        return self.expires < time.time()


@cache
def machine() -> str:
    """Return a text that identifies this boot of this machine or container; process numbers are unique within it."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def alive(process: int, start: str) -> bool:
    """True if the process with this number and this ``start`` (see `began`) is running.

    A later process may get the same number, but has another start. With an empty ``start``, only the number is compared.
    """
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        return bool(start) and start == began(process)
    return not start or start == began(process)


def began(process: int) -> str:
    """Return when a process started, in clock ticks since boot; empty if it has ended or ``/proc`` is not available."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        # the program's name stands in brackets and may contain spaces
        state, *rest = text.rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    except (OSError, IndexError, ValueError):
        return ""

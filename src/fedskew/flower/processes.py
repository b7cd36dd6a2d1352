"""Starts Flower's commands, and ends them together with all processes that they started."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedskew.core.errors import FedskewError

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Flower reports nothing to its makers, and does not look for updates."""

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PARENT_DEATH_SIGNAL = 1


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, even if the parent is killed. Called in a new process."""
    if LIBC is not None:
        LIBC.prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def variables(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of Flower's commands. This Python's folder of commands comes first in PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **QUIET, "PATH": path, **(own or {})}


def start(
    command: Sequence[str], own: Mapping[str, str] | None = None, folder: Path | None = None, log: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own.

    ``own`` are environment variables besides `variables`, ``folder`` is the working directory, and ``log`` the file that its output
    is appended to (None: the terminal). Raises `FedskewError` if the command is not installed.
    """
    environment = variables(own)
    try:
        with log.open("ab") if log else contextlib.nullcontext() as output:
            return subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
    except FileNotFoundError:
        raise FedskewError(f"{command[0]} is not installed; pip install 'fedskew[flower]'") from None


def end(processes: Sequence[subprocess.Popen[bytes]], seconds: float = 30.0) -> None:
    """End processes and their children, the newest first. A process that needs more than ``seconds`` to end is killed."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for process in reversed(processes):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        limit = time.monotonic() + patience
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(limit - time.monotonic(), 0.1))

"""Starts and ends Flower's commands, submits apps to a SuperLink, and reads the status of their runs."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.core.errors import FedskewError, Interrupted

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Flower reports nothing to its makers, and does not look for updates."""

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PARENT_DEATH_SIGNAL = 1


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, even if the parent is killed. Called in a new process."""
    if LIBC is not None:
        LIBC.prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def variables(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of Flower's commands. This Python's folder of commands comes first in PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **QUIET, "PATH": path, **(more or {})}


def start(
    command: Sequence[str], more: Mapping[str, str] | None = None, folder: Path | None = None, log: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own.

    ``own`` are environment variables besides `variables`, ``folder`` is the working directory, and ``log`` the file that its output
    is appended to (None: the terminal). Raises `FedskewError` if the command is not installed.
    """
    environment = variables(more)
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


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink. ``connection`` is its name in Flower's configuration (empty: Flower's default).

    Flower's commands run in ``folder``, with additional environment variables.
    """

    folder: Path
    environment: Mapping[str, str]
    connection: str

    def flwr(self, *arguments: str, check: bool = True) -> str:
        """Run a ``flwr`` command. Returns what it prints; raises `FedskewError` if it fails."""
        environment = variables(self.environment)
        try:
            done = subprocess.run(
                ["flwr", *arguments], env=environment, cwd=self.folder, capture_output=True, text=True
            )
        except FileNotFoundError:
            raise FedskewError("flwr is not installed; pip install 'fedskew[flower]'") from None
        if check and done.returncode:
            raise FedskewError(f"flower: flwr {arguments[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout

    def told(self, *arguments: str) -> dict[str, Any]:
        """Run a ``flwr`` command and return its JSON. Raises `FedskewError` if this reports a failure, even with exit code 0."""
        reply: dict[str, Any] = json.loads(self.flwr(*arguments, "--format", "json"))
        if not reply.get("success", True):
            reason = " ".join(str(reply.get("error-message", "it does not say why")).split())
            raise FedskewError(f"flower: flwr {arguments[0]} failed: {reason}")
        return reply

    @property
    def named(self) -> list[str]:
        """Return the connection as an argument of a command."""
        return [self.connection] if self.connection else []

    def submit(self, app: Path, config: Path | None = None) -> str:
        """Submit an app. Returns Flower's number of the run."""
        overrides = ["--run-config", str(config)] if config else []
        return str(self.told("run", str(app), *self.named, *overrides)["run-id"])

    def status(self, run: str) -> str:
        """Return Flower's status of a run: ``pending``, ``starting``, ``running``, ``finished:completed``, ..."""
        return str(self.told("ls", *self.named, "--run-id", run)["runs"][0]["status"])

    def last_line(self, run: str) -> str:
        """Return the last line of a run's log, without Flower's hint where to read more."""
        written = self.flwr("log", run, *self.named, "--show", check=False).split("For more information")[0]
        log = written.strip().splitlines()
        return log[-1] if log else "no log"

    def await_end(self, run: str, stop: Callable[[], bool], on_second: Callable[[], None] = lambda: None) -> str:
        """Wait until a run has ended. Returns its status.

        ``stop`` and ``on_second`` are called each second. As soon as ``stop`` returns true, end the run and raise `Interrupted`.
        """
        while not (status := self.status(run)).startswith("finished"):
            if stop():
                self.flwr("stop", run, *self.named, check=False)
                raise Interrupted(f"flower: stopped, with Flower's run {run}")
            on_second()
            time.sleep(1)
        return status

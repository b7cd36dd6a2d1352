"""Submits apps to a SuperLink with Flower's own command, and reads the status of their runs."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.core.errors import FedskewError, Interrupted
from fedskew.flower.processes import variables


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
        said: dict[str, Any] = json.loads(self.flwr(*arguments, "--format", "json"))
        if not said.get("success", True):
            reason = " ".join(str(said.get("error-message", "it does not say why")).split())
            raise FedskewError(f"flower: flwr {arguments[0]} failed: {reason}")
        return said

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

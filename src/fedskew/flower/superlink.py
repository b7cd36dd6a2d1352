"""Submit apps to a SuperLink with Flower's own command, and ask how their runs go."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedskew.core.errors import FedskewError
from fedskew.flower.processes import variables


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink that Flower's configuration names ``connection`` (empty: Flower's default).

    Its commands run in ``folder`` with these further variables of the environment.
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

    @property
    def named(self) -> list[str]:
        """The connection as an argument."""
        return [self.connection] if self.connection else []

    def submit(self, app: Path, config: Path | None = None) -> str:
        """Submit an app. Returns the number of the run at Flower."""
        overrides = ["--run-config", str(config)] if config else []
        return str(json.loads(self.flwr("run", str(app), *self.named, *overrides, "--format", "json"))["run-id"])

    def status(self, run: str) -> str:
        """The status of a run at Flower: ``pending``, ``starting``, ``running``, ``finished:completed``, ``finished:failed`` ..."""
        listed = json.loads(self.flwr("ls", *self.named, "--run-id", run, "--format", "json"))
        return str(listed["runs"][0]["status"])

    def last_line(self, run: str) -> str:
        """The last line that a run wrote."""
        log = self.flwr("log", run, *self.named, "--show", check=False).strip().splitlines()
        return log[-1] if log else "no log"

    def stop(self, run: str) -> None:
        self.flwr("stop", run, *self.named, check=False)

"""A SuperLink and its SuperNodes on this machine over loopback: for the demo, for tests, for a first look."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from fedskew.core.errors import FedskewError
from fedskew.flower.node import Node
from fedskew.flower.resident import QUIET, end_with_parent, with_tools

HOST = "127.0.0.1"
CONNECTION = "fedskew"
"""The name of the connection in Flower's configuration."""
IMPATIENT = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}
"""Waiting work is looked for three times a second: every process that looks costs time, and there is one a node."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def tool(name: str) -> str:
    """A command of Flower's, from the environment that this Python belongs to."""
    return str(Path(sys.executable).parent / name)


@dataclass
class Loopback:
    """Flower's processes as a context: started on entry, gone at exit with everything that they started.

    Everything that Flower writes goes under ``folder``. ``superlink`` are further options of its command.
    """

    folder: Path
    nodes: Sequence[Node]
    secure: Path | None = None  # the certificate of the authority that signed the SuperLink's; None: no TLS
    superlink: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Loopback:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        lines = ["[superlink]", f'default = "{CONNECTION}"', f"[superlink.{CONNECTION}]", f'address = "{self.address}"']
        lines.append("insecure = true" if self.secure is None else f'root-certificates = "{self.secure}"')
        (self.folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        trust = ["--insecure"] if self.secure is None else []
        try:
            self.start(
                "superlink",
                [
                    *(tool("flower-superlink"), *trust, "--host", HOST, "--port", str(self.port)),
                    *("--disable-runtime-dependency-installation", *self.superlink),
                ],
            )
            self.await_port()
            for node in self.nodes:
                self.start_node(node)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start_node(self, node: Node, roots: Path | None = None, options: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start one client; ``roots`` is the certificate that it trusts instead of the right one."""
        trust = ["--insecure"] if self.secure is None else ["--root-certificates", str(roots or self.secure)]
        place = ["--client", str(node.client), "--rows", str(node.rows), "--states", str(node.folder)]
        return self.start(
            f"node-{node.client}",
            [
                *(sys.executable, "-m", "fedskew", "flower", "node", *place, "--superlink", self.address, "--"),
                *(*trust, "--host", HOST, "--port", str(free_port()), *options),
            ],
        )

    def variables(self) -> dict[str, str]:
        own = {"PATH": with_tools(os.environ), "FLWR_HOME": str(self.folder)}
        return {**os.environ, **QUIET, **IMPATIENT, **own, **self.environment}

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start one of Flower's commands in a process group of its own, its output in a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.variables(),
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.processes.append(process)
        return process

    def await_port(self, seconds: float = 60.0) -> None:
        """Wait until the SuperLink listens."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
                return
            if self.processes[0].poll() is not None:
                break
            time.sleep(0.1)
        raise FedskewError(f"flower: the SuperLink did not start; its output is in {self.folder / 'superlink.log'}")

    def flwr(self, *arguments: str, check: bool = True) -> str:
        """What a ``flwr`` command prints."""
        done = subprocess.run(
            [tool("flwr"), *arguments], env=self.variables(), cwd=self.folder, capture_output=True, text=True
        )
        if check and done.returncode:
            raise FedskewError(f"flower: flwr {arguments[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout

    def submit(self, app: Path, config: Path | None = None) -> str:
        """Hand an app in; the run's id at Flower."""
        overrides = ["--run-config", str(config)] if config else []
        return str(json.loads(self.flwr("run", str(app), CONNECTION, *overrides, "--format", "json"))["run-id"])

    def status(self, run: str) -> str:
        """Where a run is at Flower: ``pending``, ``starting``, ``running``, ``finished:completed``, ``finished:failed`` ..."""
        told = json.loads(self.flwr("ls", CONNECTION, "--run-id", run, "--format", "json"))
        return str(told["runs"][0]["status"])

    def close(self) -> None:
        """End every process that was started, with its children."""
        for number, patience in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 5.0)):
            for process in reversed(self.processes):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            end = time.monotonic() + patience
            for process in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(end - time.monotonic(), 0.1))
        self.processes.clear()

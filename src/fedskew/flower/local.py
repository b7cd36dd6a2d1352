"""Runs a SuperLink and its SuperNodes on this machine, for `fedskew flower demo` and for tests."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedskew.core.errors import FedskewError
from fedskew.core.files import write_whole
from fedskew.flower.node import Node
from fedskew.flower.superlink import SuperLink, end, start

HOST = "127.0.0.1"
CONNECTION = "fedskew"
"""The name of the connection in Flower's configuration."""


def free_port() -> int:
    """Return a port of this machine on which no process listens."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class Loopback(SuperLink):
    """A SuperLink on ``port`` of this machine, and its nodes. All files of Flower are in ``folder``."""

    port: int
    roots: Path | None  # the certificate of the authority that signed the SuperLink's; None: no TLS
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        process = start(command, self.environment, self.folder, self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def start_node(self, node: Node, roots: Path | None = None, options: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a client. ``roots`` is the certificate that it trusts instead of the right one."""
        trust = ["--root-certificates", str(roots or self.roots)] if self.roots else ["--insecure"]
        of_node = ["--client", str(node.client), "--rows", str(node.rows), "--states", str(node.folder)]
        command = [sys.executable, "-m", "fedskew", "flower", "node", *of_node, "--superlink", f"{HOST}:{self.port}"]
        port = ["--host", HOST, "--port", str(free_port())]
        return self.start(f"node-{node.client}", [*command, "--", *trust, *port, *options])

    def await_port(self, seconds: float = 60.0) -> None:
        """Wait until the SuperLink listens. Raises `FedskewError` if it ended, or after ``seconds``."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and self.processes[0].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
                return
            time.sleep(0.1)
        raise FedskewError(f"flower: the SuperLink did not start; its output is in {self.folder / 'superlink.log'}")


@contextmanager
def loopback(
    folder: Path,
    nodes: Sequence[Node] = (),
    roots: Path | None = None,
    superlink: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Loopback]:
    """Run a SuperLink and these nodes, and end them with everything that they started.

    ``roots`` is the certificate of the authority that signed the SuperLink's (None: no TLS). ``superlink`` are further options of
    ``flower-superlink``, ``environment`` further variables of all processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"FLWR_HOME": str(folder), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3", **(environment or {})}
    link = Loopback(folder, variables, CONNECTION, free_port(), roots)
    trust = "insecure = true" if roots is None else f'root-certificates = "{roots}"'
    settings = (
        f'[superlink]\ndefault = "{CONNECTION}"\n[superlink.{CONNECTION}]\naddress = "{HOST}:{link.port}"\n{trust}\n'
    )
    write_whole(folder / "config.toml", settings, "Flower's settings")
    address = [*(["--insecure"] if roots is None else []), "--host", HOST, "--port", str(link.port)]
    try:
        link.start("superlink", ["flower-superlink", *address, "--disable-runtime-dependency-installation", *superlink])
        link.await_port()
        for node in nodes:
            link.start_node(node)
        yield link
    finally:
        end(link.processes)

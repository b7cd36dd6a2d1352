"""Flower's SuperLink: check that it answers, start one with nodes on this machine, submit apps, and read their status."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedskew.core.errors import FedskewError, Interrupted, require
from fedskew.core.files import write_whole
from fedskew.flower.events import HOST
from fedskew.flower.node import Node

SECONDS = 5.0
"""How long a SuperLink may take for each answer."""

OWN_ADDRESS = ("IP Address", "127.0.0.1")
"""What a SuperLink's own processes call when it listens on all addresses."""


class Trust(NamedTuple):
    """The connections that a node accepts: without TLS, or with a certificate of these authorities (None: the system's)."""

    insecure: bool
    roots: Path | None = None

    @classmethod
    def of_options(cls, options: Sequence[str]) -> Trust:
        """Read the options of flower-supernode."""
        words = [part for option in options for part in option.split("=", 1)]
        at = words.index("--root-certificates") + 1 if "--root-certificates" in words else len(words)
        return cls("--insecure" in words, Path(words[at]) if at < len(words) else None)

    def context(self) -> ssl.SSLContext:
        """Raises `BadInput` for a file that holds no certificate."""
        try:
            context = ssl.create_default_context(cafile=self.roots)
            # Python 3.13 is stricter than gRPC, for which this check stands
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            return context
        except OSError as error:  # an ssl.SSLError is one
            require(False, f"--root-certificates {self.roots}: holds no certificate in PEM form: {reason(error)}")
            raise


def check_superlink(address: str, trust: Trust) -> str:
    """Raise `FedskewError` with the reason and the fix if no SuperLink answers at HOST:PORT; `BadInput` for another address.

    Returns a warning if the SuperLink cannot start runs: its own processes call an address that its certificate does not have.
    """
    host, _, port = address.rpartition(":")
    require(bool(host) and port.isdecimal() and int(port) < 1 << 16, f"superlink {address!r}: write HOST:PORT")
    host = host.strip("[]")
    link: http.client.HTTPConnection
    if trust.insecure:
        link = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    else:
        link = http.client.HTTPSConnection(host, int(port), timeout=SECONDS, context=trust.context())
    try:
        link.connect()
        certificate = link.sock.getpeercert() if isinstance(link.sock, ssl.SSLSocket) else None
        link.request("GET", "/")
        link.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise FedskewError(f"superlink {address}: {explained(error, port, trust)}") from None
    finally:
        link.close()
    if certificate is None or OWN_ADDRESS in certificate.get("subjectAltName", ()):
        return ""
    return (
        f"superlink {address}: its certificate does not name 127.0.0.1, which its own processes call unless it has --host {host}, "
        f"so no run will start; make it with subjectAltName=DNS:{host},IP:127.0.0.1"
    )


def explained(error: Exception, port: str, trust: Trust) -> str:
    """Return a text: why there is no answer, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        authorities = f"--root-certificates {trust.roots}" if trust.roots else "the system's authorities"
        return f"certificate verify failed: {error.verify_message}; checked against {authorities}"
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS ({reason(error)}); start it with --ssl-certfile, or give --insecure"
    if isinstance(error, socket.gaierror):
        return "this host name has no address; check its spelling, or give the IP address"
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens there; start flower-superlink with --port {port} first"
    if isinstance(error, TimeoutError):
        return f"no answer in {SECONDS:g} s; check the address, the port and the firewall"
    if trust.insecure and isinstance(error, ConnectionError | http.client.HTTPException):
        return "it does not answer without TLS; give --root-certificates instead of --insecure"
    return reason(error)


def reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


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

    ``more`` are environment variables besides `variables`, ``folder`` is the working directory, and ``log`` the file that its
    output is appended to (None: the terminal). Raises `FedskewError` if the command is not installed.
    """
    try:
        with log.open("ab") if log else contextlib.nullcontext() as output:
            return subprocess.Popen(
                command,
                cwd=folder,
                env=variables(more),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
    except FileNotFoundError:
        raise FedskewError(f"{command[0]} is not installed; pip install '.[flower]' in the clone") from None


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
        command, environment = ["flwr", *arguments], variables(self.environment)
        try:
            done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True)
        except FileNotFoundError:
            raise FedskewError("flwr is not installed; pip install '.[flower]' in the clone") from None
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

    def submit(self, app: Path, *options: str) -> str:
        """Submit an app with these options of ``flwr run``. Returns Flower's number of the run."""
        return str(self.told("run", str(app), *self.named, *options)["run-id"])

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
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        process = start(command, self.environment, self.folder, self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def start_node(self, node: Node, options: Sequence[str] = ("--insecure",)) -> subprocess.Popen[bytes]:
        """Start a client with these options of ``flower-supernode``, by default without a certificate."""
        of_node = ["--client", str(node.client), "--rows", str(node.rows), "--states", str(node.folder)]
        command = [sys.executable, "-m", "fedskew", "flower", "node", *of_node, "--superlink", f"{HOST}:{self.port}"]
        port = ["--host", HOST, "--port", str(free_port())]
        return self.start(f"node-{node.client}", [*command, "--", *port, *options])

    def await_port(self) -> None:
        """Wait until the SuperLink listens. Raises `FedskewError` if it ended, or after a minute."""
        limit = time.monotonic() + 60
        while time.monotonic() < limit and self.processes[0].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
                return
            time.sleep(0.1)
        raise FedskewError(f"flower: the SuperLink did not start; its output is in {self.folder / 'superlink.log'}")


@contextmanager
def loopback(folder: Path, nodes: Sequence[Node], options: Sequence[str] = ("--insecure",)) -> Iterator[Loopback]:
    """Run a SuperLink with these options and these nodes, and end them with everything that they started."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"FLWR_HOME": str(folder), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}
    link = Loopback(folder, variables, CONNECTION, free_port())
    connection = f'[superlink.{CONNECTION}]\naddress = "{HOST}:{link.port}"\ninsecure = true\n'
    settings = f'[superlink]\ndefault = "{CONNECTION}"\n{connection}'
    write_whole(folder / "config.toml", settings, "Flower's settings")
    address = ["--host", HOST, "--port", str(link.port), "--disable-runtime-dependency-installation"]
    try:
        link.start("superlink", ["flower-superlink", *address, *options])
        link.await_port()
        for node in nodes:
            link.start_node(node)
        yield link
    finally:
        end(link.processes)

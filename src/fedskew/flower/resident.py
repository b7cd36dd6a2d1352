"""A node's own process: it holds the rows, answers over a local socket, and keeps Flower's SuperNode running beside it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from fedskew.core.errors import FedskewError
from fedskew.flower.node import Node
from fedskew.flower.starter import write_stub

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Nothing is reported to, or looked up at, Flower's makers."""


LINUX = ctypes.CDLL(None) if sys.platform == "linux" else None
PARENT_DEATH_SIGNAL = 1


def end_with_parent() -> None:
    """In a process about to be started: be told to end when the one that started it is gone, however it went. On Linux."""
    if LINUX is not None:
        LINUX.prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


@contextmanager
def listening(node: Node) -> Iterator[str]:
    """Answer for the node on a socket that only this user can reach; its path."""
    with tempfile.TemporaryDirectory(prefix="fedskew-") as folder:
        address = f"{folder}/node"
        try:
            made = Listener(address, family="AF_UNIX", backlog=16)
        except OSError as error:  # a socket's path may have about a hundred letters
            raise FedskewError(f"node: no socket at {address}: {error}; set TMPDIR to a shorter folder") from None
        with made as listener:
            threading.Thread(target=answer_all, args=(node, listener), daemon=True).start()
            yield address


def answer_all(node: Node, listener: Listener) -> None:
    """One request after the other, each on a connection of its own."""
    while True:
        try:
            with listener.accept() as connection:
                answer_one(node, connection)
        except (OSError, EOFError):
            # the SuperNode gave the message up, or the node is being stopped
            if getattr(listener, "_listener", None) is None:
                return


def answer_one(node: Node, connection: Connection) -> None:
    connection.send_bytes(node.answer(connection.recv_bytes()))


@contextmanager
def starting(folder: Path) -> Iterator[None]:
    """Have Flower's process for each message split off a loaded one; the command that does it is put into the folder."""
    address = str(folder / "starter")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(16)
        write_stub(folder, address)
        process = subprocess.Popen(
            [sys.executable, "-m", "fedskew.flower.starter", str(listener.fileno())],
            env={**os.environ, **QUIET},
            pass_fds=[listener.fileno()],
            preexec_fn=end_with_parent,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def keep_running(node: Node, superlink: str, options: Sequence[str]) -> int:
    """Run a SuperNode for the node until it ends, its exit code; 130 if the node is stopped before."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with listening(node) as address, starting(Path(address).parent):
            return supernode(address, superlink, options)
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def supernode(address: str, superlink: str, options: Sequence[str]) -> int:
    """Run Flower's SuperNode, whose messages are answered at this address; its exit code."""
    environment = {**os.environ, **QUIET, "PATH": f"{Path(address).parent}{os.pathsep}{with_tools(os.environ)}"}
    command = ["flower-supernode", "--superlink", superlink, "--node-config", f'socket="{address}"', *options]
    try:
        process = subprocess.Popen(command, env=environment, preexec_fn=end_with_parent)
    except FileNotFoundError:
        raise FedskewError("flower-supernode is not installed; pip install 'fedskew[flower]'") from None
    try:
        return process.wait()
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)  # it takes some seconds to sign off
        process.kill()


def with_tools(environment: Mapping[str, str]) -> str:
    """The search path with the commands of this Python's environment: Flower starts its own by name."""
    return f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"

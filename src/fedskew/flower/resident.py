"""The process of a node. It has the client's rows, answers on a local socket, and runs Flower's SuperNode as another process.

Flower starts a process for every message. Loading Flower in it takes longer than the rest, so this process forks it instead.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from fedskew.core.errors import FedskewError
from fedskew.core.files import write_whole
from fedskew.flower.client import COMMAND, run_command
from fedskew.flower.events import observed
from fedskew.flower.node import Node
from fedskew.flower.superlink import QUIET, end, start, variables

STUB = """\
#!{python} -IS
import sys
from multiprocessing.connection import Client
with Client({address!r}, family="AF_UNIX") as node:
    node.send_bytes("\\0".join(sys.argv).encode())
"""
"""Flower starts this in place of its command. It passes its arguments on to the node's process."""


@contextmanager
def listening(address: str, handle: Callable[[Connection], None]) -> Iterator[None]:
    """Handle connections to a local socket, one after the other, until the ``with`` block ends."""
    closed = threading.Event()

    def handle_all(listener: Listener) -> None:
        while not closed.is_set():
            # an error here means that Flower waits no longer for the reply, or that the node is stopping
            with suppress(OSError, EOFError), listener.accept() as connection:
                handle(connection)

    try:
        listener = Listener(address, family="AF_UNIX", backlog=16)
    except OSError as error:  # the path of a socket has at most about a hundred letters
        raise FedskewError(f"node: no socket at {address}: {error}; set TMPDIR to a shorter folder") from None
    with listener:
        threading.Thread(target=handle_all, args=(listener,), daemon=True).start()
        yield
        closed.set()


@contextmanager
def forking_clients(folder: Path) -> Iterator[None]:
    """Write a command to the folder. It runs Flower's client in a fork of a process that has already loaded Flower."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "fedskew.flower.client", "flwr.supernode.cli.flwr_clientapp", "httpx"])

    def fork(connection: Connection) -> None:
        context.Process(target=run_command, args=(connection.recv_bytes().decode().split("\0"),)).start()
        multiprocessing.active_children()  # joins those that have ended

    write_whole(folder / COMMAND, STUB.format(python=sys.executable, address=f"{folder}/fork"), "node", mode=0o700)
    with listening(f"{folder}/fork", fork):
        yield


def keep_running(node: Node, superlink: str, options: Sequence[str], status: int = 0, json_log: bool = False) -> int:
    """Run a SuperNode and let the node answer its messages. Returns its exit code, or 130 if the node is stopped first.

    ``status`` and ``json_log`` as in `observed`.
    """
    stopped: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def problem() -> str:
        return "" if running and running[0].poll() is None else "the SuperNode does not run"

    def answer(connection: Connection) -> None:
        connection.send_bytes(node.answer(connection.recv_bytes()))

    # an exception from a signal handler would be lost in the functions that Python calls after a fork
    ends = signal.SIGINT, signal.SIGTERM
    before = {n: signal.signal(n, lambda number, frame: stopped.append(number)) for n in ends}
    # Hugging Face's libraries must not download what a recipe names
    os.environ.update({**QUIET, "HF_HUB_OFFLINE": "1"})
    try:
        with (
            tempfile.TemporaryDirectory(prefix="fedskew-") as folder,
            listening(f"{folder}/node", answer),
            forking_clients(Path(folder)),
            observed(status, json_log, problem),
        ):
            command = ["flower-supernode", "--superlink", superlink, "--node-config", f'socket="{folder}/node"']
            process = start([*command, *options], {"PATH": f"{folder}{os.pathsep}{variables()['PATH']}"})
            running.append(process)
            while process.poll() is None and not stopped:
                time.sleep(0.1)
            end([process], seconds=10)
            return 130 if stopped else process.returncode
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""A process with Flower's client loaded that splits off a copy of itself for every message, since loading it takes longer."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

COMMAND = "flwr-clientapp"
STUB = """\
#!{python} -IS
import os, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as starter:
        starter.connect({address!r})
        starter.sendall("\\0".join(sys.argv).encode())
except OSError:
    os.execv({command!r}, sys.argv)
"""
"""What Flower starts in place of its command: it hands its arguments to the starter, or is the command where that is gone."""


def write_stub(folder: Path, address: str) -> None:
    """Put the command into a folder that is searched before Flower's."""
    command = str(Path(sys.executable).parent / COMMAND)
    path = folder / COMMAND
    path.write_text(STUB.format(python=sys.executable, address=address, command=command), encoding="utf-8")
    path.chmod(0o700)


def arguments(connection: socket.socket) -> list[str]:
    """The command with its arguments, to the end of what is sent."""
    with connection, connection.makefile("rb") as sent:
        return sent.read().decode().split("\0")


def split_off(listener: socket.socket) -> None:
    """One copy a connection, for ever; the copies return."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        connection, _ = listener.accept()
        given = arguments(connection)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            sys.argv = given
            return


def main() -> None:
    """Answer on the listening socket whose number is the one argument."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    import httpx
    from flwr.supernode.cli import flwr_clientapp

    httpx.Client().close()  # so that all that a client loads is there
    split_off(listener)
    code = carried_out(flwr_clientapp)
    # taking down what was loaded would touch, and so copy, all of it, which takes longer than the rest
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def carried_out(command: Callable[[], None]) -> int:
    """The command's exit code; what it ends with is said as an interpreter would."""
    try:
        command()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()

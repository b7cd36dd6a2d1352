"""The commands of the page on deployment run as printed: certificates, keys, a SuperLink, two nodes, a run."""

import contextlib
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedskew.flower.superlink import end, free_port, start, variables
from fedskew.store.runs import RunStore
from tests.flower.certificates import CERTIFIED, blocks

SECONDS = 180.0
"""For each command."""


class Session:
    """A folder in which the page's commands run. Servers and nodes stay in the background until the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seconds = folder, SECONDS
        # what the page leaves to the reader: the server's name and the ports
        self.names = {"9092": str(free_port()), "9094": str(free_port()), "9095": str(free_port())}
        self.names |= {"server:": "localhost:", "DNS:server": "DNS:localhost", "/the/whole/path/of": str(folder)}
        self.names |= {"--rounds 10": "--rounds 2"}
        self.own = {"FLWR_HOME": str(folder / "flwr")}
        self.running: list[subprocess.Popen[bytes]] = []

    def named(self, text: str) -> str:
        for printed, own in self.names.items():
            text = text.replace(printed, own)
        return text

    def carry_out(self, kind: str, text: str) -> None:
        """One block of the page: a configuration file, or commands with continued lines and comments."""
        if kind == "toml":
            (self.folder / "flwr").mkdir(exist_ok=True)
            (self.folder / "flwr" / "config.toml").write_text(self.named(text))
            return
        for line in text.replace("\\\n", " ").splitlines():
            line = self.named(line.split("  #")[0].strip())
            if re.match("flower-superlink|fedskew flower node", line):
                self.start(line)
            else:
                done = self.run(line)
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        environment = variables(self.own)
        return subprocess.run(
            line, shell=True, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=self.seconds
        )

    def start(self, line: str) -> None:
        """Start a server or a node. Wait until a server listens."""
        log = self.folder / f"{len(self.running)}.log"
        self.running.append(start(shlex.split(line), self.own, self.folder, log))
        limit = time.monotonic() + SECONDS
        while line.startswith("flower-superlink") and time.monotonic() < limit:
            with contextlib.suppress(OSError), socket.create_connection(("localhost", int(self.names["9092"])), 1):
                return
            time.sleep(0.2)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    yield made
    end(made.running)


@pytest.mark.slow
def test_the_commands_with_certificates_work_as_printed(session: Session) -> None:
    """With fewer rounds, and with the name and the ports of this machine in the places of the page's."""
    for kind, text in [blocks("Two machines in ten minutes")[0], *blocks(CERTIFIED)]:
        session.carry_out(kind, text)
    record = RunStore(session.folder / "runs").run(2)
    assert (record.status, record.rounds_done, "flower" in record.facts) == ("finished", 2, True)


def test_the_page_prints_a_command_for_every_step() -> None:
    printed = " ".join(text for _, text in blocks(CERTIFIED))
    for command in ("openssl", "ssh-keygen", "flower-superlink", "flower check", "register", "flower node", "flwr run"):
        assert command in printed

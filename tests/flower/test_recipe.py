"""The page on deployment carried out as printed: certificates, keys, a SuperLink, two nodes, a run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedskew.flower.local import free_port
from fedskew.flower.resident import QUIET, end_with_parent, with_tools
from fedskew.store.runs import RunStore

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
SECONDS = 180.0
"""For each command."""


def blocks(heading: str) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks of a section, without the indentation."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```", section, re.S | re.M)
    return [(kind, re.sub(f"^{indent}", "", text, flags=re.M)) for indent, kind, text in found]


def commands(text: str) -> list[str]:
    """The lines of a shell block, continued ones joined, without comments."""
    return [line.split("  #")[0].strip() for line in text.replace("\\\n", " ").splitlines()]


class Session:
    """A folder in which the page's commands run; servers and nodes stay in the background until the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # what the page leaves to the reader: the server's name and the ports
        self.names = {"9092": str(free_port()), "9094": str(free_port()), "9095": str(free_port())}
        self.names |= {"server:": "localhost:", "DNS:server": "DNS:localhost", "/the/whole/path/of": str(folder)}
        self.names |= {"--rounds 10": "--rounds 2"}
        self.variables = {**os.environ, **QUIET, "PATH": with_tools(os.environ), "FLWR_HOME": str(folder / "flwr")}
        self.running: list[subprocess.Popen[bytes]] = []

    def named(self, text: str) -> str:
        for printed, own in self.names.items():
            text = text.replace(printed, own)
        return text

    def carry_out(self, kind: str, text: str) -> None:
        if kind == "toml":
            (self.folder / "flwr").mkdir(exist_ok=True)
            (self.folder / "flwr" / "config.toml").write_text(self.named(text))
            return
        for line in commands(text):
            if re.match("flower-superlink|fedskew flower node", line):
                self.start(self.named(line))
            else:
                done = self.run(self.named(line))
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line, shell=True, cwd=self.folder, env=self.variables, capture_output=True, text=True, timeout=SECONDS
        )

    def start(self, line: str) -> None:
        with (self.folder / f"{len(self.running)}.log").open("ab") as log:
            process = subprocess.Popen(
                shlex.split(line),
                cwd=self.folder,
                env=self.variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.running.append(process)
        end = time.monotonic() + SECONDS
        while line.startswith("flower-superlink") and time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("localhost", int(self.names["9092"])), 1):
                return
            time.sleep(0.2)

    def close(self) -> None:
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    yield made
    made.close()


CERTIFIED = "With certificates and keys"


@pytest.mark.slow
def test_the_recipe_with_certificates_works_as_printed(session: Session) -> None:
    """With fewer rounds, and with the name and the ports of this machine in the places of the page's."""
    for kind, text in [blocks("Two machines in ten minutes")[0], *blocks(CERTIFIED)]:
        session.carry_out(kind, text)
    record = RunStore(session.folder / "runs").run(2)
    assert (record.status, record.rounds_done, "flower" in record.facts) == ("finished", 2, True)


@pytest.mark.slow
def test_a_certificate_without_the_superlinks_own_address_is_found_at_once(session: Session) -> None:
    """As the page had it once: the SuperLink starts, and no run ever would."""
    certificates, _, superlink = blocks(CERTIFIED)[:3]
    session.carry_out(certificates[0], certificates[1].replace(",IP:127.0.0.1", ""))
    session.carry_out(*superlink)
    began = time.monotonic()
    checked = session.run(session.named("fedskew flower check server:9092 --root-certificates ca.pem"))
    assert checked.returncode == 1
    assert "does not name 127.0.0.1" in checked.stderr
    assert len(checked.stderr.strip().splitlines()) == 1
    assert time.monotonic() - began < 30


def test_the_page_names_every_step() -> None:
    printed = " ".join(text for _, text in blocks(CERTIFIED))
    for command in ("openssl", "ssh-keygen", "flower-superlink", "flower check", "register", "flower node", "flwr run"):
        assert command in printed

"""TLS and node keys: a node with the wrong certificate or an unknown key is refused, and the others train."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedskew.flower.local import CONNECTION, loopback
from fedskew.flower.template import write_app
from fedskew.store.runs import RunStore
from tests.flower.certificates import make_certificate, make_key
from tests.flower_nodes import nodes_of, small


def await_line(log: Path, words: str, seconds: float = 120) -> None:
    """Wait until a process writes these words."""
    end = time.monotonic() + seconds
    while words not in log.read_text(errors="replace").lower():
        assert time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.5)


@pytest.mark.slow
def test_only_nodes_with_the_right_certificate_and_key_take_part(tmp_path: Path) -> None:
    server = make_certificate(tmp_path, "DNS:localhost,IP:127.0.0.1")
    roots, other = server.with_name("ca.pem"), make_certificate(tmp_path / "other", "IP:127.0.0.1").with_name("ca.pem")
    tls = ["--ssl-ca-certfile", str(roots), "--ssl-certfile", str(server), "--enable-supernode-auth"]
    tls += ["--ssl-keyfile", str(server.with_suffix(".key"))]
    experiment = small(rounds=1).replace(clients__number=2)
    good = nodes_of(experiment, tmp_path / "rows")
    keys = [["--auth-supernode-private-key", str(make_key(tmp_path / f"key-{i}"))] for i in range(4)]
    with loopback(tmp_path / "flower", roots=roots, superlink=tls) as link:
        for i in (0, 1, 3):
            link.flwr("supernode", "register", f"{keys[i][1]}.pub", CONNECTION)
        link.start_node(replace(good[0], client=2), options=keys[2])
        await_line(link.folder / "node-2.log", "failed to activate supernode")
        assert "No SuperNode found with the given public key" in (link.folder / "superlink.log").read_text()
        link.start_node(replace(good[0], client=3), roots=other, options=keys[3])
        await_line(link.folder / "node-3.log", "certificate verify failed")
        for node in good:
            link.start_node(node, options=keys[node.client])
        submitted = link.submit(write_app(tmp_path / "app", experiment, str(tmp_path / "runs")))
        end = time.monotonic() + 300
        while time.monotonic() < end and not link.status(submitted).startswith("finished"):
            time.sleep(1)
        assert link.status(submitted) == "finished:completed", link.flwr("log", submitted, CONNECTION, "--show")
        assert link.flwr("supernode", "ls", CONNECTION, "--format", "json").count('"online"') == 2
    assert RunStore(tmp_path / "runs").run(1).status == "finished"

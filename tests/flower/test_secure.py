"""TLS and node keys: a SuperLink refuses unknown keys, and a node wrong certificates. `test_recipe.py` has the right ones."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedskew.flower.superlink import CONNECTION, loopback
from tests.flower.certificates import make_certificate, make_key
from tests.flower_nodes import nodes_of, small
from tests.waiting import wait_until


def await_line(log: Path, words: str) -> None:
    """Wait until a process writes these words."""
    wait_until(lambda: words in log.read_text(errors="replace").lower(), 120, lambda: log.read_text()[-2000:])


@pytest.mark.slow
def test_a_wrong_certificate_or_an_unknown_key_is_refused(tmp_path: Path) -> None:
    server = make_certificate(tmp_path, "DNS:localhost,IP:127.0.0.1")
    roots, other = server.with_name("ca.pem"), make_certificate(tmp_path / "other", "IP:127.0.0.1").with_name("ca.pem")
    tls = ["--ssl-ca-certfile", str(roots), "--ssl-certfile", str(server), "--enable-supernode-auth"]
    tls += ["--ssl-keyfile", str(server.with_suffix(".key"))]
    node = nodes_of(small(), tmp_path / "rows")[0]
    unknown, known = (make_key(tmp_path / name) for name in ("unknown", "known"))
    with loopback(tmp_path / "flower", [], tls) as link:
        settings = link.folder / "config.toml"
        settings.write_text(settings.read_text().replace("insecure = true", f'root-certificates = "{roots}"'))
        link.flwr("supernode", "register", f"{known}.pub", CONNECTION)
        link.start_node(node, ["--root-certificates", str(roots), "--auth-supernode-private-key", str(unknown)])
        await_line(link.folder / "node-0.log", "failed to activate supernode")
        assert "No SuperNode found with the given public key" in (link.folder / "superlink.log").read_text()
        certified = ["--root-certificates", str(other), "--auth-supernode-private-key", str(known)]
        link.start_node(replace(node, client=1), certified)
        await_line(link.folder / "node-1.log", "certificate verify failed")
        assert '"online"' not in link.flwr("supernode", "ls", CONNECTION, "--format", "json")

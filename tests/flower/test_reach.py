"""A SuperLink that cannot be reached, or has the wrong certificate, is one line within seconds."""

from __future__ import annotations

import http.server
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedskew.cli.main import main
from fedskew.core.errors import BadInput, FedskewError
from fedskew.flower import reach
from fedskew.flower.reach import Trust, check_superlink
from tests.flower.test_secure import PEM, PLAIN, authority, signed

OWN = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


class Silent(http.server.BaseHTTPRequestHandler):
    """Answers 404, as a SuperLink does, and logs nothing."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(certificate: Path | None = None) -> Iterator[int]:
    """An HTTP server on a port of this machine, with TLS if there is a certificate (and its key beside it)."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Silent)
    server.handle_error = lambda *args: None  # type: ignore[method-assign]
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def certificate(folder: Path, *names: x509.GeneralName) -> Path:
    """The certificate of a server with these names, signed by ``ca.pem`` of the folder."""
    ca, ca_key = authority(folder, "ca")
    key = ec.generate_private_key(ec.SECP384R1())
    path = folder / "server.pem"
    path.write_bytes(signed("server", key, ca.subject, ca_key, x509.SubjectAlternativeName(names)).public_bytes(PEM))
    path.with_suffix(".key").write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN))
    return path


def test_a_superlink_that_answers_is_taken(tmp_path: Path) -> None:
    path = certificate(tmp_path, x509.DNSName("localhost"), OWN)
    with serving(path) as port:
        assert check_superlink(f"localhost:{port}", Trust(False, tmp_path / "ca.pem")) == ""
    with serving() as port:
        assert check_superlink(f"127.0.0.1:{port}", Trust(True)) == ""


def test_a_certificate_without_the_superlinks_own_address_is_named(tmp_path: Path, capsys) -> None:
    path = certificate(tmp_path, x509.DNSName("localhost"))
    with serving(path) as port:
        address, roots = f"localhost:{port}", str(tmp_path / "ca.pem")
        assert "subjectAltName=DNS:localhost,IP:127.0.0.1" in check_superlink(address, Trust(False, Path(roots)))
        assert main(["flower", "check", address, "--root-certificates", roots]) == 1
    assert "does not name 127.0.0.1" in capsys.readouterr().err


def test_wrong_certificates_and_silence_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = certificate(tmp_path, OWN)
    authority(tmp_path, "other")
    monkeypatch.setattr(reach, "SECONDS", 0.3)

    def said(address: str, trust: Trust) -> str:
        with pytest.raises(FedskewError) as refused:
            check_superlink(address, trust)
        assert str(refused.value).startswith(f"superlink {address}: ")
        return str(refused.value)

    with serving(path) as port:
        assert "certificate verify failed" in said(f"127.0.0.1:{port}", Trust(False, tmp_path / "other.pem"))
        assert "certificate verify failed" in said(f"127.0.0.1:{port}", Trust(False))
        assert "not valid for 'localhost'" in said(f"localhost:{port}", Trust(False, tmp_path / "ca.pem"))
        assert "give --root-certificates instead" in said(f"127.0.0.1:{port}", Trust(True))
    assert "nothing listens there" in said(f"127.0.0.1:{port}", Trust(True))
    with serving() as port:
        assert "does not speak TLS" in said(f"127.0.0.1:{port}", Trust(False, tmp_path / "ca.pem"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "no answer in 0.3 s" in said(f"127.0.0.1:{silent.getsockname()[1]}", Trust(True))


@pytest.mark.parametrize("address", ["server", ":9092", "server:", "server:http", "server:99999"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(BadInput, match="write HOST:PORT"):
        check_superlink(address, Trust(True))


def test_a_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "gone", Path(__file__)):
        with pytest.raises(BadInput, match="holds no certificate"):
            check_superlink("127.0.0.1:1", Trust(False, path))


def test_a_node_checks_the_superlink_that_its_options_describe(tmp_path: Path, capsys) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 3)), y=np.zeros(2, int))
    with serving() as port:
        pass
    words = ["flower", "node", "--client", "0", "--rows", str(tmp_path / "rows.npz")]
    assert main([*words, "--superlink", f"127.0.0.1:{port}", "--", "--insecure"]) == 1
    assert "nothing listens there; start flower-superlink" in capsys.readouterr().err
    assert Trust.of_options(["--insecure", "--port", "1"]) == Trust(True)
    assert Trust.of_options(["--root-certificates", "ca.pem"]) == Trust(False, Path("ca.pem"))
    assert Trust.of_options(["--root-certificates=ca.pem"]) == Trust(False, Path("ca.pem"))

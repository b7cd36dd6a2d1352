"""A SuperLink that cannot be reached, or has the wrong certificate, gives one line within seconds."""

import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedskew.cli.main import main
from fedskew.core.errors import BadInput, FedskewError
from fedskew.flower import superlink as reach
from fedskew.flower.superlink import Trust, check_superlink
from tests.commands import error_of
from tests.flower.certificates import make_certificate


class NotFound(http.server.BaseHTTPRequestHandler):
    """Answers 404, as a SuperLink does, and logs nothing."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(certificate: Path | None = None) -> Iterator[int]:
    """An HTTP server on a port of this machine, with TLS if there is a certificate (and its key beside it)."""
    server = http.server.HTTPServer(("127.0.0.1", 0), NotFound)
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


def test_a_reachable_superlink_passes_the_check(tmp_path: Path) -> None:
    path = make_certificate(tmp_path, "DNS:localhost,IP:127.0.0.1")
    with serving(path) as port:
        assert check_superlink(f"localhost:{port}", Trust(False, tmp_path / "ca.pem")) == ""
    with serving() as port:
        assert check_superlink(f"127.0.0.1:{port}", Trust(True)) == ""


def test_a_certificate_without_127_0_0_1_is_reported(tmp_path: Path, capsys) -> None:
    path = make_certificate(tmp_path, "DNS:localhost")
    with serving(path) as port:
        address, roots = f"localhost:{port}", str(tmp_path / "ca.pem")
        assert "subjectAltName=DNS:localhost,IP:127.0.0.1" in check_superlink(address, Trust(False, Path(roots)))
        assert main(["flower", "check", address, "--root-certificates", roots]) == 1
    assert "does not name 127.0.0.1" in capsys.readouterr().err


def test_wrong_certificates_and_silence_give_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_certificate(tmp_path, "IP:127.0.0.1")
    other = make_certificate(tmp_path / "other", "IP:127.0.0.1").with_name("ca.pem")
    monkeypatch.setattr(reach, "SECONDS", 0.3)

    def message(address: str, trust: Trust) -> str:
        with pytest.raises(FedskewError) as refused:
            check_superlink(address, trust)
        assert str(refused.value).startswith(f"superlink {address}: ")
        return str(refused.value)

    with serving(path) as port:
        assert "certificate verify failed" in message(f"127.0.0.1:{port}", Trust(False, other))
        assert "certificate verify failed" in message(f"127.0.0.1:{port}", Trust(False))
        assert "not valid for 'localhost'" in message(f"localhost:{port}", Trust(False, tmp_path / "ca.pem"))
        assert "give --root-certificates instead" in message(f"127.0.0.1:{port}", Trust(True))
    assert "nothing listens there" in message(f"127.0.0.1:{port}", Trust(True))
    with serving() as port:
        assert "does not speak TLS" in message(f"127.0.0.1:{port}", Trust(False, tmp_path / "ca.pem"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "no answer in 0.3 s" in message(f"127.0.0.1:{silent.getsockname()[1]}", Trust(True))


@pytest.mark.parametrize("address", ["server", ":9092", "server:", "server:http", "server:99999"])
def test_an_address_needs_a_host_and_a_port(address: str) -> None:
    with pytest.raises(BadInput, match="write HOST:PORT"):
        check_superlink(address, Trust(True))


def test_a_file_without_a_certificate_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "gone", Path(__file__)):
        with pytest.raises(BadInput, match="holds no certificate"):
            check_superlink("127.0.0.1:1", Trust(False, path))


def test_a_node_checks_the_superlink_of_its_options(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 3)), y=np.zeros(2, int))
    with serving() as port:
        pass
    words = ["flower", "node", "--client", "0", "--rows", str(tmp_path / "rows.npz")]
    err = error_of(*words, "--superlink", f"127.0.0.1:{port}", "--", "--insecure", code=1)
    assert "nothing listens there; start flower-superlink" in err
    assert Trust.of_options(["--insecure", "--port", "1"]) == Trust(True)
    assert Trust.of_options(["--root-certificates", "ca.pem"]) == Trust(False, Path("ca.pem"))
    assert Trust.of_options(["--root-certificates=ca.pem"]) == Trust(False, Path("ca.pem"))

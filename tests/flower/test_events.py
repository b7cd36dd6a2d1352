"""State of a node and a server: JSON lines, numbers for Prometheus, an answer to a health check."""

import json
import re
import shlex
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fedskew.cli.main import parser
from fedskew.core.errors import FedskewError
from fedskew.flower.events import LOG, MOST_CONNECTIONS, event, observed
from fedskew.flower.superlink import free_port
from fedskew.flower.wire import pack
from tests.flower_nodes import nodes_of, request, served, small


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_node_counts_its_answers_and_reports_its_health(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    node, port, wrong = nodes_of(small(), tmp_path)[0], free_port(), [""]
    with observed(port, True, lambda: wrong[0]):
        node.answer(pack(request(small())))
        node.answer(pack(request(small(), client=3)))
        node.answer(b"garbage")
        assert page(port, "/health") == (200, "ok\n")
        status, text = page(port, "/metrics")
        wrong[0] = "the SuperNode does not run"
        assert page(port, "/health") == (503, "the SuperNode does not run\n")
        assert page(port, "/")[0] == 404
    assert status == 200
    assert 'fedskew_events_total{kind="meet",outcome="answered"} 1.0\n' in text
    assert 'fedskew_events_total{kind="meet",outcome="refused"} 1.0\n' in text
    assert 'fedskew_events_total{kind="unreadable",outcome="refused"} 1.0\n' in text
    assert "\nfedskew_bytes_in 7.0\n" in text
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["outcome"] for line in lines] == ["answered", "refused", "refused"]
    assert lines[2]["message"] == "the message is not one of fedskew's"
    assert {"time", "level", "message", "kind", "outcome", "run", "round", "seconds", "bytes_in", "bytes_out"} == set(
        lines[0]
    )
    assert LOG.handlers == []
    event("nothing listens")


def test_a_server_counts_faults_and_rounds(tmp_path: Path) -> None:
    port, seen = free_port(), []

    def spoil(client: int, kind: str, round_: int, data: bytes) -> bytes | None:
        if kind == "train" and round_ == 1:
            seen.append(page(port, "/metrics")[1])
            return data[:-1] if client == 2 else data
        return data

    served(small(rounds=2), tmp_path, spoil, status=port)
    assert 'fedskew_events_total{client="2",fault="garbage"} 1.0\n' in seen[-1]


def test_texts_and_numbers_keep_their_formats(capsys: pytest.CaptureFixture) -> None:
    """Line breaks and quotes in labels, and numbers that are not finite, broke the line or the document."""
    port, label = free_port(), 'a"b\\c\nd\u202e'
    with observed(port, True):
        event("loss", {"fault": label}, {"loss": float("nan"), "rate": float("inf")})
        text = page(port, "/metrics")[1]
    assert r'fedskew_events_total{fault="a\"b\\c\nd' in text
    assert "fedskew_loss NaN\n" in text
    assert "fedskew_rate +Inf\n" in text
    [line] = capsys.readouterr().err.splitlines()
    parsed = json.loads(line, parse_constant=pytest.fail)
    assert (parsed["fault"], parsed["loss"], parsed["rate"]) == (label, None, None)


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(request)
        return b"".join(iter(lambda: one.recv(4096), b""))


@pytest.mark.parametrize(
    ("host", "status"), [("127.0.0.1", 200), ("localhost:9", 200), ("evil.example", 403), ("[", 403)]
)
def test_other_names_of_this_machine_are_refused(host: str, status: int) -> None:
    port = free_port()
    with observed(port, False):
        answer = raw(port, f"GET /health HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.0 {status}".encode())


def test_silent_connections_take_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr("fedskew.flower.events.PATIENCE", 1)
    with observed(port, False):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST_CONNECTIONS + 60)]
        handles = (
            sum(1 for _ in Path("/proc/self/fd").iterdir()) - 2 * len(silent) if Path("/proc/self/fd").exists() else 0
        )
        for one in silent:
            one.settimeout(20)
            assert one.recv(1) == b""
            one.close()
        assert page(port, "/health") == (200, "ok\n")
    assert handles < 60


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(FedskewError, match=f"status: port {port} of 127.0.0.1 cannot be used"),
            observed(port, False),
        ):
            pass


def test_the_printed_services_start_commands_that_exist() -> None:
    """The test does not need systemd."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "operate.md").read_text()
    commands = re.findall(r"^ExecStart=(.*)", page.replace("\\\n", " "), re.M)
    programs = ["/opt/fedskew/bin/fedskew", "/opt/fedskew/bin/flower-superlink"]
    assert [shlex.split(line)[0] for line in commands] == programs
    parsed = parser().parse_args(shlex.split(commands[0])[1:])
    assert (parsed.client, parsed.status, parsed.json_log) == (0, 9100, True)

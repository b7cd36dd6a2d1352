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
from fedskew.flower.events import LOG, event, observed
from fedskew.flower.local import free_port
from fedskew.flower.server import serve
from fedskew.flower.wire import pack
from tests.flower.test_deployed import VERSIONS
from tests.flower_nodes import Direct, configuration, nodes_of, request, small


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
    assert 'fedskew_events_total{kind="meet",outcome="answered"} 1\n' in text
    assert 'fedskew_events_total{kind="meet",outcome="refused"} 1\n' in text
    assert 'fedskew_events_total{kind="unreadable",outcome="refused"} 1\n' in text
    assert "\nfedskew_bytes_in 7\n" in text
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["outcome"] for line in lines] == ["answered", "refused", "refused"]
    assert lines[2]["message"] == "the message is not one of fedskew's"
    assert {"time", "level", "message", "kind", "outcome", "run", "round", "seconds", "bytes_in", "bytes_out"} == set(
        lines[0]
    )
    assert LOG.handlers == []
    event("nothing listens")


def test_a_server_counts_faults_and_rounds(tmp_path: Path) -> None:
    experiment, port, seen = small(rounds=2), free_port(), []

    def spoil(client: int, kind: str, round_: int, data: bytes) -> bytes | None:
        if kind == "train" and round_ == 1:
            seen.append(page(port, "/metrics")[1])
            return data[:-1] if client == 2 else data
        return data

    serve(Direct(nodes_of(experiment, tmp_path), spoil), configuration(experiment, tmp_path, status=port), VERSIONS)
    assert 'fedskew_events_total{client="2",fault="garbage"} 1\n' in seen[-1]


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
    assert [shlex.split(line)[0] for line in commands] == [
        "/opt/fedskew/bin/fedskew",
        "/opt/fedskew/bin/flower-superlink",
    ]
    parsed = parser().parse_args(shlex.split(commands[0])[1:])
    assert (parsed.client, parsed.status, parsed.json_log) == (0, 9100, True)

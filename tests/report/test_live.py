"""``report --live``: the page follows the store, on this machine alone."""

import socket
import struct
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

from fedskew.cli.live import HOST, TRIED, Live, opened
from fedskew.cli.main import main
from fedskew.core.errors import BadInput, FedskewError
from fedskew.store.runs import RunStore
from tests.browser import CHROMIUM, browser


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    made = RunStore(tmp_path / "runs")
    made.add_run(name="scaffold", experiment="", experiment_hash="", seed=0, partition_seed=0, rounds=3)
    made.update(1, status="running")
    return made


@pytest.fixture
def server(store: RunStore) -> Iterator[Live]:
    """Start a server in another thread, with its own connection to the store."""
    made: list[Live] = []

    def serve() -> None:
        with opened(RunStore(store.folder), [1], free_port()) as live:
            made.append(live)
            live.serve_forever(poll_interval=0.01)

    thread = Thread(target=serve)
    thread.start()
    end = time.monotonic() + 30
    while not made:
        assert time.monotonic() < end, "the server does not start"
        time.sleep(0.01)
    yield made[0]
    made[0].shutdown()
    thread.join(10)
    assert not thread.is_alive()


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return one.getsockname()[1]


def get(server: Live, path: str, host: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection(HOST, server.server_port, timeout=30)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_live_page_follows_the_store(server: Live, store: RunStore) -> None:
    first, text = get(server, "/version")[1], get(server, "/")[1]
    assert f'data-version="{first}"' in text
    assert "No round has been measured yet" in text
    assert get(server, "/version")[1] == first
    store.write_round(1, 1, [(None, "test", "accuracy", 0.5), (None, "round", "drift", 1.0)])
    assert get(server, "/version")[1] != first
    assert 'aria-label="test accuracy over rounds"' in get(server, "/")[1]
    store.update(1, status="finished")
    assert "reaches a test accuracy of 50.0" in get(server, "/")[1]


def test_an_unchanged_page_is_not_drawn_twice(server: Live) -> None:
    get(server, "/")
    drawn = server.drawn
    get(server, "/")
    assert server.drawn is drawn


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1.evil.example:{port}", ""])
def test_request_with_a_foreign_host_name_is_rejected(server: Live, host: str) -> None:
    for path in ("/", "/version", "/live.js"):
        status, text = get(server, path, host.format(port=server.server_port) or " ")
        assert (status, "scaffold" in text, len(text) < 100) == (403, False, True)
    assert get(server, "/", f"localhost:{server.server_port}")[0] == 200


def test_nothing_else_is_served(server: Live) -> None:
    for path in ("/fedskew.db", "/../fedskew.db", "/live.js/..", "/etc/passwd"):
        assert get(server, path)[0] == 404
    assert server.server_address[0] == "127.0.0.1"


def test_unreadable_store_is_reported_and_the_page_is_kept(server: Live, store: RunStore) -> None:
    """The script replaces the page only by a page."""
    with store.transaction():
        store.db.execute("DELETE FROM runs")
    for path in ("/", "/version"):
        status, text = get(server, path)
        assert (status, text) == (500, f"run store {store.folder}: there is no run 1; `fedskew list runs` shows them")
    assert get(server, "/live.js")[0] == 200


def test_a_reader_who_goes_away_leaves_no_trace(server: Live, capsys) -> None:
    server.drawn = ("", "")
    for _ in range(5):
        with socket.create_connection((HOST, server.server_port)) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reader.sendall(f"GET / HTTP/1.0\r\nHost: {HOST}:{server.server_port}\r\n\r\n".encode())
    assert get(server, "/version")[0] == 200
    assert capsys.readouterr().err == ""


def test_slow_connection_blocks_no_other_and_is_closed(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout for each read would not stop a client that sends single bytes with pauses."""
    monkeypatch.setattr("fedskew.cli.live.PATIENCE", 0.5)
    with socket.create_connection((HOST, server.server_port), timeout=30) as slow:
        slow.sendall(b"GET / HT")
        assert get(server, "/version")[0] == 200
        slow.sendall(b"T")
        # whatever is answered, the connection ends without the end of the request
        while slow.recv(1000):
            pass


def test_a_taken_port_gives_way_to_the_next_and_all_taken_give_one_line_errors(store: RunStore, monkeypatch) -> None:
    with opened(store, [1], free_port()) as first, opened(store, [1], first.server_port) as second:
        assert first.server_port < second.server_port < first.server_port + TRIED
    monkeypatch.setattr("fedskew.cli.live.TRIED", 1)
    with opened(store, [1], free_port()) as first:
        port = first.server_port
        with pytest.raises(
            FedskewError,
            match=rf"ports {port} to {port} can be used \(Address already in use\); choose another with --port",
        ):
            opened(store, [1], port)


@pytest.mark.parametrize("port", [99999, 65536, 0, -1])
def test_a_number_that_is_no_port_is_bad_input(store: RunStore, capsys, port: int) -> None:
    assert main(["report", "1", "--live", f"--port={port}", "--runs", str(store.folder)]) == BadInput.exit_code
    assert capsys.readouterr().err == f"fedskew: report: --port must be at least 1 and at most 65535, got {port}\n"


def test_no_port_above_the_last_is_tried(store: RunStore, monkeypatch) -> None:
    tried = []

    def taken(store: RunStore, ids: list[int], port: int, budget: object) -> Live:
        tried.append(port)
        raise OSError(98, "Address already in use")

    monkeypatch.setattr("fedskew.cli.live.Live", taken)
    with pytest.raises(FedskewError, match="none of the ports 65533 to 65535 can be used"):
        opened(store, [1], 65533)
    assert tried == [65533, 65534, 65535]


def test_ctrl_c_ends_it_and_files_are_refused(store: RunStore, monkeypatch, capsys) -> None:
    def interrupted(self: Live) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Live, "serve_forever", interrupted)
    assert main(["report", "1", "--live", "--port", str(free_port()), "--runs", str(store.folder)]) == 0
    assert "http://127.0.0.1:" in capsys.readouterr().out
    assert main(["report", "1", "--live", "--figures", "x", "--runs", str(store.folder)]) == BadInput.exit_code


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH (Debian: apt-get install chromium)")
def test_in_a_browser_the_readers_place_stays(server: Live, store: RunStore, tmp_path: Path) -> None:
    store.write_round(1, 1, [(None, "test", "accuracy", 0.5)])
    with browser(tmp_path / "profile") as chromium:
        chromium.open(f"http://{HOST}:{server.server_port}/", 390, dark=False)
        chromium.ask("document.querySelector('details').open = true, scrollTo(0, 300)")
        before = chromium.ask("document.body.dataset.version")
        store.write_round(1, 2, [(None, "test", "accuracy", 0.6), (None, "test", "loss", 0.6)])
        chromium.ask(
            f"new Promise(done => setInterval(() => document.body.dataset.version !== '{before}' && done(), 100))"
        )
        assert chromium.ask("document.querySelectorAll('figure').length") == 2
        assert chromium.ask("scrollY") == 300
        assert chromium.ask("document.querySelector('details').open")
        assert chromium.complaints() == []
        with store.transaction():
            store.db.execute("DELETE FROM runs")
        chromium.ask("new Promise(done => setInterval(() => document.body.classList.contains('lost') && done(), 100))")
        assert chromium.ask("document.querySelectorAll('figure').length") == 2

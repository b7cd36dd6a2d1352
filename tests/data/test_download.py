"""Downloads from a server in this process: resumed, truncated, altered, slow, endless, refused; and the verb `data`."""

import errno
import hashlib
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedskew.cli import data as verb
from fedskew.cli.main import main
from fedskew.core.errors import FedskewError
from fedskew.data import DATASETS, find as download
from fedskew.data.find import CHUNK, Files, Remote, fetch, folders
from tests.commands import error_of, output_of

CONTENT = np.random.default_rng(0).integers(0, 256, 5 * CHUNK + 17, dtype=np.uint8).tobytes()
SUM = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """A server that answers any name with ``content``. A test can set faults."""

    content = CONTENT
    cut = 0  # bytes after which the next answers end
    ranges = True
    length = "right"  # of the header; empty: none
    status = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str | None] = []

    def files(self, sha256: str = SUM, size: int = 0) -> Files:
        remote = Remote(f"http://127.0.0.1:{self.server_port}/thing.bin", size, sha256)
        return Files(dataset="thing", licence="", classes=2, remotes=(remote,))


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.requests.append(wanted)
        if server.status:
            self.send_error(server.status)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
        if start >= len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if server.length:
            self.send_header("Content-Length", server.length.replace("right", str(len(body))))
        self.end_headers()
        self.wfile.write(body[: server.cut or None])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture(autouse=True)
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for downloads. No proxy is used."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return folder / "thing"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fails(files: Files, *words: str) -> None:
    with pytest.raises(FedskewError) as error:
        fetch(files)
    text = str(error.value)
    for word in words:
        assert word in text


def test_file_arrives_whole_with_progress_and_is_found(server, folder):
    calls: list[tuple[str, int, int]] = []
    paths = fetch(server.files(), lambda *call: calls.append(call))
    assert paths == [folder / "thing.bin"] == server.files().paths()
    assert paths[0].read_bytes() == CONTENT
    assert names(folder) == ["thing.bin"]
    done = [received for _, received, _ in calls]
    assert done == sorted(done)
    assert calls[-1] == ("thing.bin", len(CONTENT), len(CONTENT))
    fetch(server.files())
    assert len(server.requests) == 1, "the file was there"


def test_file_that_cannot_be_checked_is_refused(server, folder):
    server.length, server.cut = "", CHUNK
    fails(server.files(sha256=""), "does not say how long the file is", "put thing.bin from")
    assert names(folder) == []
    fails(server.files(sha256="", size=len(CONTENT)), "the connection ended after 65,536 of 327,697 bytes")
    fails(server.files(), "was changed or damaged")
    assert names(folder) == []
    server.cut = 0
    assert fetch(server.files(sha256="", size=len(CONTENT)))[0].read_bytes() == CONTENT


def test_broken_download_resumes(server, folder):
    server.cut = 2 * CHUNK + 5
    fails(server.files(), "127.0.0.1", f"after {server.cut:,} of {len(CONTENT):,} bytes", "try again", str(folder))
    assert names(folder) == ["thing.bin.part"]
    server.cut = 0
    assert fetch(server.files())[0].read_bytes() == CONTENT
    assert server.requests == [None, f"bytes={2 * CHUNK + 5}-"]
    assert names(folder) == ["thing.bin"]


@pytest.mark.parametrize(("ranges", "sha256"), [(False, SUM), (True, "")])
def test_download_without_ranges_or_checksum_starts_over(server, folder, ranges, sha256):
    server.cut, server.ranges = CHUNK, ranges
    fails(server.files(sha256), "the connection ended")
    server.cut = 0
    assert fetch(server.files(sha256))[0].read_bytes() == CONTENT
    assert sha256 or server.requests == [None, None]


def test_complete_part_is_only_checked(server, folder):
    folder.mkdir(parents=True)
    (folder / "thing.bin.part").write_bytes(CONTENT)
    assert fetch(server.files())[0].read_bytes() == CONTENT


def test_parts_of_two_versions_are_not_joined(server, folder):
    server.cut = CHUNK
    fails(server.files(), "the connection ended")
    server.cut, server.content = 0, bytes(len(CONTENT))
    fails(server.files(), "changed", "SHA-256", "nothing was kept")
    assert names(folder) == []
    server.content = CONTENT
    assert fetch(server.files())[0].read_bytes() == CONTENT


@pytest.mark.parametrize("length", ["abc", "-1", "１", "9" * 30])
def test_size_that_is_no_number_gives_a_one_line_error(server, length):
    server.length = length.encode().decode("latin-1")
    fails(server.files(), "which is no number")


def test_endless_download_stops(server, folder, monkeypatch):
    monkeypatch.setattr(download, "MOST_BYTES", 2 * CHUNK)
    fails(server.files(), f"more than the {2 * CHUNK:,} expected bytes")
    server.length = ""
    fails(server.files(), f"more than the {2 * CHUNK:,} expected bytes")
    fails(server.files(size=CHUNK), f"more than the {CHUNK:,} expected bytes")
    assert names(folder) == []


def test_slow_download_stops(server, monkeypatch):
    """Otherwise, a server that sends single bytes with pauses could stop the program for hours."""
    times = iter([0.0, download.TIMEOUT, download.TIMEOUT + 1e6])
    monkeypatch.setattr(download, "monotonic", lambda: next(times))
    fails(server.files(), "less than 1,000 bytes a second", "try again")


def test_missing_file_and_closed_server_give_one_line_errors(server, folder):
    server.status = 404
    fails(server.files(), "404", "put thing.bin from", str(folder))
    assert names(folder) == []
    gone = server.files()
    server.shutdown()
    server.server_close()
    fails(gone, "cannot download from 127.0.0.1", "refused", "put thing.bin from", str(folder))


def test_full_disk_leaves_nothing(server, folder, monkeypatch):
    folder.mkdir(parents=True)

    class Full(io.BytesIO):
        def write(self, block):
            raise OSError(errno.ENOSPC, "No space left on device")

    def open_(*arguments, **options):
        Path(arguments[0]).touch()
        return Full()

    monkeypatch.setattr(download, "open", open_, raising=False)
    fails(server.files(), "cannot write", "No space left", "nothing was kept")
    assert names(folder) == []


def test_folder_that_cannot_be_made_gives_a_one_line_error(server, folder):
    folder.parent.rmdir()
    folder.parent.write_text("a file")
    fails(server.files(), "cannot make", str(folder))


# the verb


def test_list_shows_every_data_set():
    rows = {row["name"]: row for row in json.loads(output_of("data", "list", "--json"))}
    assert set(rows) == {name for name in DATASETS if name not in ("own", "hf", "table", "text", "leaf")}
    assert rows["cifar-10"]["bytes"] == 170052171
    assert rows["cifar-10"]["here"] == "not here; `fedskew data get cifar-10`"
    assert rows["digits"]["here"] == "always here"
    assert rows["femnist"]["natural_clients"] == "writers"
    assert all(row["licence"] and row["citation"] for row in rows.values())
    assert {name for name, row in rows.items() if not row["classes"]} == {"parkinsons", "beijing-air", "tcga-brca"}
    text = output_of("data", "list")
    assert all(name in text for name in rows)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert " ".join(rows["fashion-mnist"]["citation"].split()) in " ".join(text.split())


@pytest.mark.parametrize("name", [name for name, cls in DATASETS.items() if hasattr(cls, "files")])
def test_files_have_plain_names_and_secure_sources(name):
    files = DATASETS[name].files
    assert files.dataset == name
    for remote in files.remotes:
        assert remote.url.startswith("https://")
        assert len(remote.sha256) in (0, 64)
        assert Path(remote.file).name == remote.file != ""


def test_get_downloads_once_and_verify_finds_damage(server, folder, monkeypatch):
    class Thing:
        files = server.files()

        def load(self):
            return DATASETS["digits"]().load()

    monkeypatch.setitem(verb.NAMED, "thing", Thing)
    assert str(folder / "thing.bin") in (out := output_of("data", "get", "thing"))
    assert "SHA-256 as published" in out
    assert "here already" in output_of("data", "get", "thing")
    out = output_of("data", "verify", "thing")
    assert "right: SHA-256 as published; 1,438 training and 359 test rows read" in out
    (folder / "thing.bin").write_bytes(CONTENT[:-1])
    assert "wrong" in output_of("data", "verify", "thing", code=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["get", "cifar10"], "did you mean 'cifar-10'?"),
        (["get", "femnist"], "LEAF"),
    ],
)
def test_wrong_requests_give_one_line_errors(arguments, words):
    error = error_of("data", *arguments)
    assert words in error
    assert error.count("\n") == 1


def test_data_set_without_files_needs_no_download():
    assert "always here" in output_of("data", "get", "digits")
    assert main(["data", "verify", "digits"]) == 0
    assert str(folders()[0]) in output_of("data", "path", "digits")
    assert main(["data", "verify"]) == 0

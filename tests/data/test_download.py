"""Downloads against a server of our own on this machine: resumed, truncated, altered, refused; and the verb `data`."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedskew.cli import data as verb
from fedskew.cli.main import main
from fedskew.core.errors import BadInput, FedskewError
from fedskew.data import DATASETS
from fedskew.data.datasets.cifar import Cifar10
from fedskew.data.datasets.mnist import NAMES, Mnist
from fedskew.data.download import CHUNK, fetch
from fedskew.data.find import VARIABLE, Files, Remote, folders

CONTENT = np.random.default_rng(0).integers(0, 256, 5 * CHUNK + 17, dtype=np.uint8).tobytes()


class Server(ThreadingHTTPServer):
    """Serves ``content`` under any name, and misbehaves as it is told."""

    content = CONTENT
    cut = 0  # bytes after which the next answers end
    ranges = True
    length = "right"  # of the header; empty: none
    status = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.status:
            self.send_error(server.status)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
        if start >= len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if self.server.length:
            self.send_header("Content-Length", self.server.length.replace("right", str(len(body))))
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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that downloads go to."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return tmp_path / "data" / "thing"


def files(server: Server, sha256: str = hashlib.sha256(CONTENT).hexdigest(), size: int = 0) -> Files:
    remote = Remote("thing.bin", server.url("thing.bin"), size, sha256)
    return Files(dataset="thing", licence="", classes=2, remotes=(remote,))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fails(files: Files, *words: str) -> None:
    with pytest.raises(FedskewError) as error:
        fetch(files)
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_a_file_of_which_nothing_tells_whether_it_is_whole_is_refused(server, folder):
    server.length, server.cut = "", CHUNK
    fails(files(server, sha256=""), "does not say how long the file is", "put thing.bin from")
    assert names(folder) == []
    fails(files(server, sha256="", size=len(CONTENT)), "the connection ended after 65,536 of 327,697 bytes")
    fails(files(server), "was altered or damaged")
    assert names(folder) == []
    server.cut = 0
    assert fetch(files(server, sha256="", size=len(CONTENT)))[0].read_bytes() == CONTENT


def test_a_file_arrives_whole_with_progress_and_is_found(server, folder):
    heard: list[tuple[str, int, int]] = []
    paths = fetch(files(server), lambda *told: heard.append(told))
    assert paths == [folder / "thing.bin"] == files(server).paths()
    assert paths[0].read_bytes() == CONTENT
    assert names(folder) == ["thing.bin"]
    done = [there for _, there, _ in heard]
    assert done == sorted(done)
    assert heard[-1] == ("thing.bin", len(CONTENT), len(CONTENT))
    fetch(files(server))
    assert len(server.asked) == 1, "it is there"


def test_a_broken_download_goes_on_where_it_ended(server, folder):
    server.cut = 2 * CHUNK + 5
    fails(files(server), "127.0.0.1", f"after {server.cut:,} of {len(CONTENT):,} bytes", "try again", str(folder))
    assert names(folder) == ["thing.bin.part"]
    server.cut = 0
    assert fetch(files(server))[0].read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={2 * CHUNK + 5}-"]
    assert names(folder) == ["thing.bin"]


def test_a_server_without_ranges_sends_it_all_again(server, folder):
    server.cut, server.ranges = CHUNK, False
    fails(files(server), "the connection ended")
    server.cut = 0
    assert fetch(files(server))[0].read_bytes() == CONTENT


def test_a_part_that_was_whole_is_only_checked(server, folder):
    folder.mkdir(parents=True)
    (folder / "thing.bin.part").write_bytes(CONTENT)
    assert fetch(files(server))[0].read_bytes() == CONTENT


def test_halves_of_two_versions_are_not_put_together(server, folder):
    server.cut = CHUNK
    fails(files(server), "the connection ended")
    server.cut, server.content = 0, bytes(len(CONTENT))
    fails(files(server), "altered", "SHA-256", "nothing was kept")
    assert names(folder) == []
    server.content = CONTENT
    assert fetch(files(server))[0].read_bytes() == CONTENT


@pytest.mark.parametrize("at", [0, len(CONTENT) // 2, len(CONTENT) - 1])
def test_an_altered_file_is_not_kept(server, folder, at):
    server.content = CONTENT[:at] + bytes([CONTENT[at] ^ 1]) + CONTENT[at + 1 :]
    fails(files(server), server.url("thing.bin"), "altered", "nothing was kept")
    assert names(folder) == []


def test_without_a_checksum_a_broken_download_starts_over(server, folder):
    server.cut = CHUNK
    fails(files(server, sha256=""), "the connection ended")
    assert names(folder) == []
    server.cut = 0
    assert fetch(files(server, sha256=""))[0].read_bytes() == CONTENT
    assert server.asked == [None, None]


@pytest.mark.parametrize("length", ["abc", "-1", "１", "9" * 30])
def test_a_size_that_is_no_number_is_one_line(server, folder, length):
    server.length = length.encode().decode("latin-1")
    fails(files(server), "which is no number")


def test_a_download_without_an_end_stops(server, folder, monkeypatch):
    """A server that never stops sending filled the disk where nobody knew the size."""
    server.length = ""
    monkeypatch.setattr("fedskew.data.download.MOST_BYTES", 2 * CHUNK)
    fails(files(server), f"more than the {2 * CHUNK:,} bytes that were to come")
    fails(files(server, size=CHUNK), f"more than the {CHUNK:,} bytes that were to come")
    assert names(folder) == []


def test_what_is_not_there_or_cannot_be_reached_is_one_line(server, folder):
    server.status = 404
    fails(files(server), "404", "put thing.bin from", str(folder))
    assert names(folder) == []
    server.status = 0
    gone = files(server)
    server.shutdown()
    server.server_close()
    fails(gone, "cannot download from 127.0.0.1", "refused", "put thing.bin from", str(folder))


def test_a_full_disk_leaves_nothing(server, folder, monkeypatch):
    folder.mkdir(parents=True)
    opened = Path.open

    class Full(io.BytesIO):
        def write(self, block):
            raise OSError(errno.ENOSPC, "No space left on device")

    def open_(self, *arguments, **options):
        if self.suffix == ".part" and "b" in arguments[0] and arguments[0] != "rb":
            opened(self, *arguments).close()
            return Full()
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_)
    fails(files(server), "cannot write", "No space left", "nothing was kept")
    assert names(folder) == []


def test_a_folder_that_cannot_be_made_is_one_line(server, folder):
    folder.parent.write_text("a file")
    fails(files(server), "cannot make", str(folder))


# archives are read in place


def cifar_archive(path: Path, rows: int = 20, **members: bytes) -> None:
    """A small binary CIFAR-10: all pixels of a row are its number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
            content = b"".join(bytes([i % 10]) + bytes([i]) * 3072 for i in range(rows))
            add(archive, f"cifar-10-batches-bin/{name}", members.get(name.partition(".")[0], content))
        add(archive, "../../escaped.txt", b"out")
        add(archive, "/tmp/escaped-fedskew.txt", b"out")
        link = tarfile.TarInfo("cifar-10-batches-bin/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def test_a_hostile_archive_writes_nothing(folder, tmp_path):
    path = folder.parent / "cifar-10" / "cifar-10-binary.tar.gz"
    cifar_archive(path)
    before = sorted(tmp_path.rglob("*"))
    data = Cifar10().load()
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/escaped-fedskew.txt").exists()
    assert data.x.shape == (100, 3, 32, 32)
    assert data.y[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    # rows 0..19 repeat five times: standardised, row i is (i - 9.5) / std(0..19)
    expected = (np.arange(20) - 9.5) / np.arange(20).std()
    np.testing.assert_allclose(data.x_test[:, 2, 5, 7], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"data_batch_3": b"\0" * 3000}, "cannot read"),
        ({f"data_batch_{i}": b"\0" * 3073 for i in range(1, 6)}, "the training part lacks some classes"),
        ({"test_batch": bytes([77]) + b"\0" * 3072}, "test labels must lie in 0..9, found 77..77"),
    ],
)
def test_a_cifar_archive_that_is_not_one_is_one_line(folder, members, words):
    path = folder.parent / "cifar-10" / "cifar-10-binary.tar.gz"
    cifar_archive(path, **members)
    with pytest.raises(BadInput, match=words):
        Cifar10().load()


def test_a_truncated_archive_is_one_line(folder):
    path = folder.parent / "cifar-10" / "cifar-10-binary.tar.gz"
    cifar_archive(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BadInput, match=r"cannot read .*cifar-10-binary.tar.gz, it is damaged or another file") as error:
        Cifar10().load()
    assert "\n" not in str(error.value)


# the verb


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.asarray(array.shape, dtype=">u4").tobytes() + array.tobytes()


def mnist_by_hand(folder: Path, side: int = 28) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images = np.arange(20, dtype=np.uint8)[:, None, None].repeat(side, 1).repeat(side, 2)
    labels = np.arange(20, dtype=np.uint8) % 10
    for name, array in zip(NAMES, (images, labels, images, labels), strict=True):
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))


def test_files_placed_by_hand_are_found_and_verified(folder, capsys):
    mnist_by_hand(folder.parent)
    assert Mnist().load().shape == (1, 28, 28)
    assert not DATASETS["fashion-mnist"].files.here(), "it has the same file names, in a folder of its own"
    assert main(["data", "path", "mnist"]) == 0
    assert capsys.readouterr().out.split() == [str(folder.parent / f"{name}.gz") for name in NAMES]
    assert main(["data", "verify", "mnist"]) == 1
    assert "does not have the published SHA-256" in capsys.readouterr().out


def test_images_of_another_size_are_one_line(folder):
    mnist_by_hand(folder.parent, side=32)
    with pytest.raises(BadInput, match=r"have shape \(32, 32\), expected \(28, 28\)"):
        Mnist().load()


def test_the_list_tells_of_every_data_set(folder, capsys):
    assert main(["data", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {name for name in DATASETS if name not in ("own", "hf", "table")}
    assert rows["cifar-10"]["bytes"] == 170052171
    assert rows["cifar-10"]["here"] == "not here; `fedskew data get cifar-10`"
    assert rows["digits"]["here"] == "always here"
    assert rows["femnist"]["natural_clients"] == "writers"
    assert all(row["licence"] and row["classes"] and row["citation"] for row in rows.values())
    assert main(["data", "list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in rows)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert " ".join(rows["fashion-mnist"]["citation"].split()) in " ".join(text.split())


@pytest.mark.parametrize("name", [name for name, cls in DATASETS.items() if hasattr(cls, "files")])
def test_what_is_said_of_a_data_set_is_so(name):
    files = DATASETS[name].files
    assert files.dataset == name
    for remote in files.remotes:
        assert remote.url.startswith("https://")
        assert len(remote.sha256) in (0, 64)
        assert Path(remote.file).name == remote.file


def test_get_fetches_once_and_says_so(server, folder, capsys, monkeypatch):
    class Thing:
        files = globals()["files"](server)

        def load(self):
            return DATASETS["digits"]().load()

    monkeypatch.setitem(verb.NAMED, "thing", Thing)
    assert main(["data", "get", "thing"]) == 0
    assert str(folder / "thing.bin") in (out := capsys.readouterr().out)
    assert "SHA-256 as published" in out
    assert main(["data", "get", "thing"]) == 0
    assert "here already" in capsys.readouterr().out
    assert main(["data", "verify", "thing"]) == 0
    assert "right: SHA-256 as published; 1,438 training and 359 test rows read" in capsys.readouterr().out
    (folder / "thing.bin").write_bytes(CONTENT[:-1])
    assert main(["data", "verify", "thing"]) == 1
    assert "wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["get"], "which one"),
        (["get", "cifar10"], "did you mean 'cifar-10'?"),
        (["get", "femnist"], "LEAF"),
        (["verify", "imagenet"], "unknown data set 'imagenet'"),
    ],
)
def test_wrong_requests_are_one_line(arguments, words, capsys):
    assert main(["data", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_what_needs_no_files(capsys):
    assert main(["data", "get", "digits"]) == 0
    assert "always here" in capsys.readouterr().out
    assert main(["data", "verify", "digits"]) == 0
    assert main(["data", "path", "digits"]) == 0
    assert str(folders()[0]) in capsys.readouterr().out
    assert main(["data", "verify"]) == 0

"""Hostile input: an exit code and one line, in bounded time and memory, and a store that can still be listed."""

import io
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedskew
from fedskew.cli.main import entry, main
from fedskew.core.errors import UNPRINTABLE, visible
from fedskew.store.runs import RunStore
from tests.hostile import CASES as REQUESTS, METHOD, NAMES, Case, rows
from tests.hostile_files import FILE_CASES

CASES = REQUESTS + FILE_CASES
CPU_SECONDS, SECONDS, GIGABYTES = 10, 300, 1.5
"""What a case may take at most: of its own work, by the clock on a busy machine, and of memory."""

SHORT = ["--rounds", "1", "--epochs", "1", "--model", "softmax", "--engine", "sequential"]
SHORT += ["--set", "training.threads=1"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two finished runs."""
    folder = tmp_path_factory.mktemp("sound") / "runs"
    for method in ("fedavg", "fedprox"):
        assert main(["run", "--algorithm", method, "--runs", str(folder), *SHORT]) == 0
    return folder


@contextmanager
def limited() -> Iterator[None]:
    """Not without end, nor with all memory."""

    def late(*_: object) -> None:
        raise AssertionError(f"still at work after {CPU_SECONDS} s of its own, or {SECONDS} s by the clock")

    before = {number: signal.signal(number, late) for number in (signal.SIGALRM, signal.SIGPROF)}
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(SECONDS)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < GIGABYTES * 2**20


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line in a folder with a store of its own: the exit code, and what it printed."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sound, tmp_path / "runs")

    def run(*words: str) -> tuple[int, str, str]:
        with limited():
            try:
                code = main(list(words))
            except SystemExit as end:
                code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def change(folder: Path, sql: str) -> None:
    with closing(sqlite3.connect(folder / "fedskew.db")) as db, db:
        db.execute(sql)


def prepare(folder: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, contents in case.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(contents, Path):
            path.symlink_to(contents)
        else:
            path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    for name, value in case.env.items():
        monkeypatch.setenv(name, value)
    if case.sql:
        change(folder / "runs", case.sql)


def test_no_request_is_listed_twice() -> None:
    assert len(CASES) >= 200
    assert len({case.id for case in CASES}) == len(
        {(case.argv, str(case.files), str(case.env), case.sql) for case in CASES}
    )


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_wrong_request_gives_one_line(case: Case, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, case, monkeypatch)
    code, out, err = call(*case.argv)
    assert (code, err.count("\n")) == (case.code, 1), err[-2000:]
    assert case.says in err
    assert not UNPRINTABLE.search(out + err)
    assert not (tmp_path / "trapped").exists()
    for name in case.env:
        monkeypatch.delenv(name)
    assert len(RunStore(tmp_path / "runs", read_only=True).runs()) == 2
    assert not case.sql or call("list")[0] == 0


SHOWING = ["list", "list --json", "show 1", "show 1 2", "show 1 --json", "watch 1", "cite 1", "resume 1"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_are_shown_as_written(name: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every verb that prints it; what would command the terminal is shown as an escape."""
    monkeypatch.setenv("COLUMNS", "200")
    with closing(sqlite3.connect(tmp_path / "runs" / "fedskew.db")) as db, db:
        db.execute("UPDATE runs SET name=? WHERE id=1", (name,))
        db.execute("UPDATE runs SET message=?, status='failed' WHERE id=2", (name,))
        signs = json.dumps({"warnings": [{"kind": name, "line": name}], "profile": {name: 1.0}, "data": {"name": name}})
        db.execute("UPDATE runs SET facts=? WHERE id=1", (signs,))
    wanted = visible(name).replace(" ", "")
    for words in SHOWING:
        code, out, err = call(*words.split(" "))
        assert (code, err.count("Traceback")) == (0, 0)
        assert not UNPRINTABLE.search(out + err)
        assert words.endswith("json") or words[:2] in ("ci", "re") or wanted[:40] in re.sub(r"\s", "", out), (
            words,
            out,
        )


def test_name_with_brackets_and_escapes_runs_and_reports(call: Call, tmp_path: Path) -> None:
    """A bracket in a name ended a run in a traceback after its last round, and all listings from then on."""
    name = NAMES[0] + NAMES[2]
    code, out, err = call("run", "--name", name, *SHORT)
    assert (code, "Traceback" in err, visible(name) in out) == (0, False, True)
    assert call("report", "3", "--tables", "tables")[0] == 0
    assert name in call("list")[1] or visible(name) in call("list")[1]
    assert "<script>alert" not in (tmp_path / "runs" / "3.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES[:6], ids=range(6))
def test_columns_clients_and_classes_are_shown_as_written(name: str, call: Call) -> None:
    """In a table's preview, its diagnosis and its errors."""
    shown = visible(name).replace("\r", "")
    Path("t.csv").write_text(
        rows(f"a,{name},client,y", 60).replace("h1", name).replace(",u\n", f",{name}\n"), newline=""
    )
    code, out, err = call("skew", "--skew", "natural", "--dataset", "table:path=t.csv,label=y,client=client")
    assert (code, UNPRINTABLE.search(out + err)) == (0, None) or "\r" in name
    assert "\r" in name or shown[:10] in out
    code, out, err = call("diagnose", "t.csv", "--label", "nosuch", "--client", "client")
    assert (code, err.count("\n"), UNPRINTABLE.search(err)) == (2, 1, None)
    assert name in err or shown in err or "\r" in name


@pytest.mark.parametrize(
    ("hook", "called"),
    [
        ("def direction(self, ctx, g, w, batch):", "direction"),
        ("def client_init(self, x):", "client_init"),
        ("def contract(self):", "contract"),
        ("def __post_init__(self):", "__post_init__"),
    ],
)
def test_exception_in_own_method_names_hook_file_and_line(hook: str, called: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(METHOD.format(hook=hook), encoding="utf-8")
    code, _, err = call("run", "--algorithm", "./mine.py::Mine", "--rounds", "1", "--engine", "sequential")
    said = err.splitlines()[-1]
    assert (code, "Traceback" in err) == (1, False)
    assert f"mine.py,line9,in{called}:ZeroDivisionError:[/b]\\x1b[31m" in re.sub(r"\s", "", err), said
    assert call("list")[0] == 0


def test_a_hook_that_takes_other_arguments_is_named(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(METHOD.format(hook="def direction(self):"), encoding="utf-8")
    code, _, err = call("run", "--algorithm", "./mine.py::Mine", "--rounds", "1", "--engine", "sequential")
    assert (code, "Traceback" in err) == (2, False)
    assert "Mine: direction(self) takes other arguments than direction(self, grad_fn, view, w, scratch)" in err


def process(words: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "fedskew", *words], timeout=SECONDS, check=False, **options)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no full device")
@pytest.mark.parametrize("words", [["--help"], ["list"], ["list", "--json"]])
def test_full_output_device_gives_one_line(words: list[str], sound: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = process(words, stdout=full, stderr=subprocess.PIPE, cwd=sound.parent)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"No space left on device" in done.stderr


@pytest.mark.parametrize("closed", ["stdout", "stderr", "stdin"])
def test_closed_streams_are_no_error(closed: str, sound: Path) -> None:
    """As by ``>&-`` and some cron jobs."""
    number = ["stdin", "stdout", "stderr"].index(closed)
    done = process(["list"], capture_output=True, cwd=sound.parent, preexec_fn=lambda: os.close(number))
    assert (done.returncode, done.stderr) == (0, b"")
    assert closed == "stdout" or b"FedProx" in done.stdout


COLUMNS = ("name", "message", "experiment", "experiment_hash", "status", "created", "facts")


@pytest.mark.parametrize("column", COLUMNS)
def test_a_byte_that_is_not_utf8_leaves_the_other_runs(column: str, call: Call, tmp_path: Path) -> None:
    change(tmp_path / "runs", f"UPDATE runs SET {column}=cast(x'22ff22' AS TEXT) WHERE id=1")
    code, out, err = call("list")
    assert (code, err) == (0, "")
    assert "FedProx" in out
    assert column != "name" or r"\xff" in out
    assert call("show", "2")[0] == 0
    code, _, err = call("show", "1", "--toml")
    assert (code, err.count("\n")) in ((0, 0), (1, 1))


@pytest.mark.parametrize("words", [["list"], ["show", "1"], ["run", *SHORT]])
def test_a_store_whose_schema_has_number_0_is_no_empty_store(words: list[str], call: Call, tmp_path: Path) -> None:
    change(tmp_path / "runs", "PRAGMA user_version=0")
    code, _, err = call(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert "made by another version of fedskew (schema 0)" in err
    change(tmp_path / "runs", "PRAGMA user_version=1")
    assert len(RunStore(tmp_path / "runs", read_only=True).runs()) == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_in_ascii_has_escapes(encoding: str, sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["fedskew", "show", "1", "2", "--runs", str(sound)])
    with pytest.raises(SystemExit) as end:
        entry()
    assert end.value.code == 0
    assert b"fedprox" in out.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [["show", "\udcff"], ["run", "--name", "\udcff"], ["run", "--dataset", "\udcff"]])
def test_arguments_that_are_not_utf8_give_one_line(words: list[str], call: Call) -> None:
    code, _, err = call(*words)
    assert (code, err.count("\n"), "\\udcff" in err) == (2, 1, True)


@pytest.mark.slow
def test_out_of_memory_gives_one_line(tmp_path: Path) -> None:
    """With less memory for the process than the machine has, so that no estimate could know."""
    limit = 6 << 30
    done = process(
        ["run", "--model", "mlp:hidden=[20000000]", "--rounds", "1"],
        capture_output=True,
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode in (1, 2)
    assert b"Traceback" not in done.stderr
    assert b"memory" in done.stderr.splitlines()[-1]


def test_only_terminal_module_creates_consoles() -> None:
    """Other ways to print would interpret brackets and control characters in user text."""
    folder = Path(fedskew.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name != "terminal.py":
            assert not re.search(r"rich\.console import .*\bConsole\b|from_markup|markup=True", text), path
    for path in sorted((folder / "cli").glob("*.py")):
        printed = re.findall(r"(?<![\w.])print\((.*)", path.read_text(encoding="utf-8"))
        own = {"main.py", "terminal.py"}  # whose texts have gone through `visible`
        assert path.name in own or all(not re.search(r"\bname\b|path|record", line) for line in printed), path

"""The command line as a user meets it: what it prints, its exit codes, Ctrl-C, kill and resume."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedskew.cli.main import main
from fedskew.cli.progress import stop_on_signal
from fedskew.core.component import build
from fedskew.experiment.config import COMPONENTS, from_toml
from fedskew.store.runs import RunStore

QUICK = ["--rounds", "2", "--epochs", "1", "--engine", "stacked", "--set", "training.threads=1"]


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a small comparison: runs 1 to 4, comparison c1."""
    folder = tmp_path_factory.mktemp("compared")
    words = ["compare", "--algorithms", "fedavg", "scaffold", "--seeds", "2", "--jobs", "1", "--runs", str(folder)]
    assert main([*words, *QUICK]) == 0
    return folder


@pytest.mark.parametrize(
    "verb",
    [
        *("", "run", "compare", "tune", "resume", "watch", "list", "show", "report", "check", "cite", "reproduce"),
        "landscape",
    ],
)
def test_every_verb_has_a_help_that_starts_quickly(verb: str) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "fedskew", *([verb] if verb else []), "--help"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=100, env={**os.environ, "COLUMNS": "80"}
    )
    assert done.returncode == 0
    assert "usage: fedskew" in done.stdout.lower() or "Usage" in done.stdout
    assert " torch\n" not in done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.parametrize(("jobs", "told"), [("0", "at least 1, got 0"), ("-2", "at least 1"), ("99999", "too many")])
@pytest.mark.parametrize(
    "verb", [("compare",), ("tune",), ("reproduce", "failure-modes"), ("reproduce", "contradictions")]
)
def test_jobs_that_cannot_be_are_refused_in_one_line(verb, jobs, told, tmp_path, capsys) -> None:
    code, out, err = call(capsys, *verb, "--jobs", jobs, "--runs", str(tmp_path), *(QUICK if len(verb) == 1 else ()))
    assert (code, out) == (2, "")
    assert told in err.splitlines()[-1]


def test_another_component_by_set_comes_with_its_own_options(tmp_path, capsys) -> None:
    words = ["run", *QUICK, "--runs", str(tmp_path)]
    assert call(capsys, *words, "--lr", "0.02", "--set", "server.name=adam", "--set", "solver.name=adamw")[0] == 0
    assert call(capsys, *words, "--set", "server.lr=0.5", "--set", "server.name=sgd")[0] == 0
    assert call(capsys, *words, "--set", "algorithm.mu=1.0", "--set", "algorithm.name=fedprox")[0] == 0
    records = RunStore(tmp_path).runs()
    first, second, third = (from_toml(record.experiment) for record in records)
    assert (first.server.lr, first.solver.lr, first.solver.weight_decay) == (0.01, 0.02, 0.01)
    assert second.server.lr == 0.5
    assert third.algorithm.mu == 1
    assert [record.name for record in records] == ["fedavg", "fedavg", "fedprox:mu=1.0"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "--algoritm", "fedprox"), "fedskew run: has no option '--algoritm'; did you mean --algorithm?; see `"),
        (("resume", "1", "--rnds=3"), "fedskew resume: has no option '--rnds=3'; did you mean --runs?; see `"),
        (("list", "--zzz"), "fedskew list: has no option '--zzz'; see `fedskew list --help`"),
        (("run", "a.toml", "b.toml"), "fedskew run: does not know what 'b.toml' is for; see `"),
        (
            ("compare", "fedavg", "fedprox"),
            "fedskew compare: does not know what 'fedprox' is for; methods are named by --algorithms; see `",
        ),
        (
            ("run", "a.toml", "fedavg"),
            "fedskew run: does not know what 'fedavg' is for; methods are named by --algorithm; ",
        ),
        (("run", "--lr", "abc"), "fedskew run: --lr: a number is needed, got 'abc'; see `"),
        (("compare", "--seeds", "1.5"), "fedskew compare: --seeds: a whole number is needed, got '1.5'; see `"),
        (
            ("compare", "--methods", "fedavg"),
            "fedskew compare: has no option '--methods'; did you mean --algorithms?; see `",
        ),
        (
            ("run", "--methods=fedavg"),
            "fedskew run: has no option '--methods=fedavg'; did you mean --algorithm?; see `",
        ),
        (("diagnose", "--gpu"), "fedskew diagnose: has no option '--gpu'; see `"),
        (("rn",), "fedskew: VERB cannot be 'rn'; did you mean run?; see `"),
        (("zzz",), "fedskew: VERB cannot be 'zzz'; known are run, compare, tune, "),
    ],
)
def test_words_that_no_verb_knows_are_told_in_one_line(words, told, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    out, err = capsys.readouterr()
    assert (end.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(told)


def test_without_a_word_the_verbs_are_shown(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["fedskew"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "run one experiment" in capsys.readouterr().out


def test_a_file_in_the_place_of_a_data_set_is_told_how_to_be_one(tmp_path, capsys) -> None:
    (tmp_path / "visits.csv").write_text("a,label\n1,2\n")
    code, _, err = call(capsys, "run", "--dataset", str(tmp_path / "visits.csv"))
    assert (code, err.count("\n")) == (2, 1)
    assert f"table:path={tmp_path / 'visits.csv'},label=COLUMN,client=COLUMN" in err


def test_a_run_waits_for_no_library_that_it_does_not_need(tmp_path: Path) -> None:
    """Before the first round: what reads tables, draws, tests or fits is loaded when it is used."""
    script = (
        "import sys; from fedskew.cli import main; import fedskew.experiment.site as run\n"
        "def round(*_, **__):\n"
        "    slow = {'sklearn', 'scipy', 'pandas', 'matplotlib', 'sympy', 'jinja2', 'torch._dynamo'}\n"
        "    import os; print(sorted(slow & set(sys.modules)), flush=True); os._exit(0)\n"
        "run.play_round = round; main.main(sys.argv[1:])"
    )
    words = ["run", "--engine", "sequential", "--runs", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout == "[]\n"


def test_compare_prints_a_table_and_writes_a_report(compared: Path, capsys) -> None:
    code, out, _ = call(capsys, "show", "c1", "--runs", str(compared))
    assert code == 0
    assert "fedavg" in out
    assert "scaffold" in out
    assert "2 seeds" in out
    page = (compared / "c1.html").read_text()
    assert "<svg" in page


def test_json_is_what_a_script_can_read(compared: Path, capsys) -> None:
    code, out, _ = call(capsys, "show", "c1", "--runs", str(compared), "--json")
    table = json.loads(out)
    assert code == 0
    assert [m["method"] for m in table["methods"]] == ["fedavg", "scaffold"]
    assert 0 <= table["methods"][0]["accuracy"] <= 1
    assert [r["status"] for r in table["runs"]] == ["finished"] * 4
    code, out, _ = call(capsys, "list", "runs", "--runs", str(compared), "--json")
    assert [r["id"] for r in json.loads(out)] == [1, 2, 3, 4]
    code, out, _ = call(capsys, "list", "datasets")
    assert code == 0
    assert "fedskew[hf]" in out, "brackets are no markup"
    code, out, _ = call(capsys, "list", "algorithms", "--json")
    assert {"fedavg", "fedprox", "scaffold", "fednova", "feddyn", "moon"} <= {r["name"] for r in json.loads(out)}


def test_show_one_run_has_its_toml_and_its_curve(compared: Path, capsys) -> None:
    _, out, _ = call(capsys, "show", "2", "--runs", str(compared))
    assert "[algorithm]" in out
    assert 'name = "scaffold"' in out
    assert "test accuracy" in out


def test_run_with_json_prints_nothing_else_on_standard_output(tmp_path: Path, capsys) -> None:
    code, out, _ = call(capsys, "run", *QUICK, "--runs", str(tmp_path), "--json")
    result = json.loads(out)
    assert code == 0
    assert Path(result["report"]).is_file()


def test_a_stored_toml_is_run_again_to_the_same_numbers(compared: Path, tmp_path: Path, capsys) -> None:
    _, first, _ = call(capsys, "show", "2", "--runs", str(compared), "--json")
    stored = compared / "2" / "experiment.toml"
    code, again, _ = call(capsys, "run", str(stored), "--runs", str(tmp_path), "--json")
    assert code == 0
    keys = ("accuracy", "worst_client", "drift", "divergence", "megabytes_up")
    a, b = (json.loads(text)["methods"][0] for text in (first, again))
    assert {k: a[k] for k in keys} == {k: b[k] for k in keys}


def test_options_reach_the_experiment(tmp_path: Path, capsys) -> None:
    words = [
        "run",
        "--lr",
        "0.05",
        "--momentum",
        "0.5",
        "--clients",
        "7",
        "--cohort",
        "3",
        "--steps",
        "2",
        "--seed",
        "4",
    ]
    words += ["--batch-size", "all", "--held-out", "0.2", "--server-data", "0.02"]
    words += ["--skew", "label-dirichlet-per-class:alpha=0.7", "--server", "adam:lr=0.02", "--partition-seed", "9"]
    code, _, _ = call(
        capsys, *words, "--set", "evaluation.every=2", "--rounds", "1", "--runs", str(tmp_path), "--engine", "stacked"
    )
    assert code == 0
    e = from_toml((tmp_path / "1" / "experiment.toml").read_text())
    assert (e.solver.lr, e.solver.momentum) == (0.05, 0.5)
    assert (e.clients.number, e.clients.partition_seed, e.clients.held_out) == (7, 9, 0.2)
    assert e.server_data.share == 0.02
    assert (e.selection.clients, e.local.steps, e.local.batch_size) == (3, 2, "all")
    assert (e.training.seed, e.training.rounds, e.evaluation.every) == (4, 1, 2)
    assert e.skew == (build("skew", COMPONENTS["skew"], "label-dirichlet-per-class:alpha=0.7"),)
    assert e.server == build("server", COMPONENTS["server"], "adam:lr=0.02")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--algorithm", "fedavgg"], "did you mean 'fedavg'"),
        (["run", "--algorithm", "fedadm"], "did you mean 'fedadam'"),
        (["run", "--dataset", "digits", "--dtype", "float16"], "dtype must be float32 or float64, got 'float16'"),
        (["run", "--dtype", "float32", "--precision", "half"], "precision must be full or bf16, got 'half'"),
        (["run", "--codec", "qsgd:bucket=every"], "bucket must be a whole number or all, got 'every'"),
        (["run", "--algorithm", "fedprox:mv=1"], "unknown option 'mv'; did you mean 'mu'"),
        (["run", "--algorithm", "fedprox:mu"], "NAME:OPTION=VALUE"),
        (["run", "--skew", "label-dirichlet:alpha=0"], "alpha must be a finite number above 0"),
        (["run", "--skew", "label-dirichlet:alpha=-1"], "alpha must be"),
        (["run", "--clients", "5000"], "5000 clients cannot share"),
        (["run", "--cohort", "11"], "a cohort of 11"),
        (["run", "--lr", "nan"], "lr must be a finite number"),
        (["run", "--lr", "inf"], "lr must be a finite number"),
        (["run", "--dataset", "digts"], "did you mean 'digits'"),
        (["run", "--set", "training.rouns=3"], "did you mean 'rounds'"),
        (["run", "--set", "traning.rounds=3"], "unknown section 'traning'"),
        (["run", "--skew", "natural"], "does not say whose rows"),
        (["run", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (
            ["run", "fedprox:mu=0.1"],
            "experiment file fedprox:mu=0.1: cannot be read: No such file or directory; to name a method, ",
        ),
        (["run", "mine"], "mine: not valid TOML: Invalid value (at end of document)\n"),
        (["compare", "scaffold"], "to name a method, write --algorithms scaffold"),
        (["compare", "--algorithms", "fedavg", "fedavg"], "named twice"),
        (["compare", "--seeds", "0"], "at least 1"),
        (["list", "algoritms"], "did you mean 'algorithms'"),
        (["show", "99"], "there is no run 99"),
        (["show", "c9"], "there is no comparison c9"),
        (["show", "seven"], "is not a run"),
        (["reproduce", "drift"], "did you mean 'drift-demo'"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(
    tmp_path, monkeypatch, capsys, words: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    sqlite3.connect(tmp_path / "runs" / "other.db").close()
    (tmp_path / "mine").write_text("rounds =", encoding="utf-8")
    code, out, err = call(capsys, *words)
    assert code == 2
    assert out == ""
    assert err.startswith("fedskew: ")
    assert err.count("\n") == 1, err
    assert expected in err


def test_a_missing_data_set_says_where_it_is_looked_for_and_how_to_get_it(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path / "data"))
    code, _, err = call(capsys, "run", "--dataset", "uci-har", "--skew", "natural", "--runs", str(tmp_path / "runs"))
    assert code == 2
    assert err.count("\n") == 1
    assert str(tmp_path / "data") in err
    assert "FEDSKEW_DATA" in err
    assert "Human Activity Recognition" in err


def test_an_unwritable_store_is_one_line(tmp_path, capsys) -> None:
    (tmp_path / "runs").write_text("a file, not a folder")
    code, _, err = call(capsys, "run", *QUICK, "--runs", str(tmp_path / "runs"))
    assert code == 2
    assert err.splitlines()[-1].startswith("fedskew: run store")


def test_divergence_has_an_exit_code_of_its_own_and_is_explained(tmp_path, capsys) -> None:
    code, out, err = call(
        capsys, "run", "--lr", "1e15", "--rounds", "5", "--engine", "stacked", "--runs", str(tmp_path)
    )
    assert code == 3
    assert "most likely cause: the client learning rate 1e+15" in out + err
    assert "diverged after round" in out


def start_run(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedskew", *words, "--runs", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_round(folder: Path, run: int, round_: int) -> None:
    """Until the store has that round of the run."""
    for _ in range(3000):
        if (folder / "fedskew.db").exists():
            db = sqlite3.connect(folder / "fedskew.db", timeout=30)
            try:
                row = db.execute("SELECT rounds_done FROM runs WHERE id=?", (run,)).fetchone()
            except sqlite3.OperationalError:
                row = None
            db.close()
            if row and row[0] >= round_:
                return
        time.sleep(0.02)
    raise AssertionError(f"round {round_} was not reached in a minute")


def stored(folder: Path, run: int) -> list[tuple]:
    db = sqlite3.connect(folder / "fedskew.db")
    rows = db.execute(
        "SELECT round, client, split, name, value FROM measurements WHERE run=? AND name<>'seconds' ORDER BY 1, 2, 3, 4",
        (run,),
    ).fetchall()
    db.close()
    return rows


LONG = ["run", "--algorithm", "scaffold", "--rounds", "150", "--epochs", "1", "--engine", "stacked"]
LONG += ["--set", "training.threads=1", "--set", "checkpoint.every=7"]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    """What a run stores that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*LONG, "--runs", str(folder)]) == 0
    return stored(folder, 1)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_stopped_run_is_resumed_to_the_same_numbers(
    tmp_path: Path, whole_run: list[tuple], how: signal.Signals, code: int
) -> None:
    process = start_run(tmp_path, *LONG)
    wait_for_round(tmp_path, 1, 3)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    if how != signal.SIGKILL:
        assert "fedskew resume 1" in err
    assert main(["resume", "--runs", str(tmp_path)]) == 0
    assert stored(tmp_path, 1) == whole_run
    assert whole_run


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_the_second_interrupts(how: signal.Signals) -> None:
    with stop_on_signal() as stopper:
        assert not stopper()
        signal.raise_signal(how)
        assert stopper()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(how)


@pytest.mark.timeout(300)  # four processes import PyTorch
def test_an_interrupted_comparison_is_resumed_and_complete(tmp_path: Path) -> None:
    words = ["compare", "--algorithms", "fedavg", "scaffold", "--seeds", "1", "--rounds", "60", "--epochs", "1"]
    process = start_run(tmp_path, *words, "--engine", "stacked", "--jobs", "2")
    wait_for_round(tmp_path, 1, 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "fedskew resume c1" in err
    resumed = start_run(tmp_path, "resume", "c1", "--json")
    out, err = resumed.communicate(timeout=180)
    assert resumed.returncode == 0, err
    assert [r["status"] for r in json.loads(out)["runs"]] == ["finished"] * 2


def test_reproduce_prints_verdicts_and_writes_a_page_once(tmp_path: Path, capsys, monkeypatch) -> None:
    """Two arms of three rounds; the second call finds everything in the store."""
    from fedskew.claims import document
    from fedskew.cli import reproduce

    whole = document.load("contradictions").only("6-weights")
    quick = dataclasses.replace(whole.scales["quick"], seeds=2)
    quick.base["training"]["rounds"] = 3
    monkeypatch.setattr(reproduce, "load", lambda name: dataclasses.replace(whole, scales={"quick": quick}))
    words = ["reproduce", "contradictions", "--runs", str(tmp_path), "--jobs", "1"]
    code, out, err = call(capsys, *words)
    assert code == 0
    assert "4 runs, 4 to do" in " ".join(err.split())
    assert "this will take about" in err
    assert "Weights by rows are more accurate than equal weights. (all but fedpbs)" in " ".join(out.split())
    assert "uniform weights" in (tmp_path / "contradictions-quick.md").read_text()
    code, out, err = call(capsys, *words, "--json")
    assert "4 runs, 0 to do" in " ".join(err.split())
    assert {c["verdict"] for c in json.loads(out)["claims"]} <= {"holds", "fails", "undecided"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce", "fedpbs", "--scale", "huge"], "no scale 'huge'; known are: quick, standard"),
        (["reproduce", "fedpbs", "--only", "tabel-4"], "did you mean 'table-4'"),
        (["compare", "--budget", "byts"], "did you mean 'bytes'"),
    ],
)
def test_wrong_requests_of_the_laboratory_are_one_line(words: list[str], message: str, tmp_path: Path, capsys) -> None:
    code, _, err = call(capsys, *words, "--runs", str(tmp_path))
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_an_interrupt_before_a_run_promises_no_checkpoint(monkeypatch, capsys):
    def stop(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedskew.cli.verbs.import_module", stop)
    assert main(["run"]) == 130
    assert capsys.readouterr().err == "fedskew: interrupted; `fedskew resume` continues runs that had started\n"

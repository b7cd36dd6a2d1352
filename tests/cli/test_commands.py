"""The command line as a user meets it: what it prints, and its exit codes."""

import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedskew.cli.main import main, parser
from fedskew.cli.request import experiment_from
from fedskew.experiment.config import Experiment
from fedskew.report.console import Console
from tests.commands import line_of, output_of

QUICK = ["--rounds", "2", "--epochs", "1", "--engine", "stacked", "--set", "training.threads=1"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a small comparison: runs 1 to 4, comparison c1."""
    folder = tmp_path_factory.mktemp("compared")
    words = ["compare", "--algorithms", "fedavg", "scaffold", "--seeds", "2", "--jobs", "1", "--runs", str(folder)]
    assert main([*words, *QUICK]) == 0
    return folder


HELPS = """
import contextlib, io, sys
from fedskew.cli.main import parser
from fedskew.cli.verbs import VERBS
for words in ["", "flower", *(verb.name for verb in VERBS)]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        parser().parse_args([*words.split(), "--help"])
    assert out.getvalue().startswith(("usage: fedskew", "Usage: fedskew")), words
    assert max(map(len, out.getvalue().splitlines())) <= 80, words
assert not {"torch", "numpy", "pandas"} & {*sys.modules}
"""


def test_every_verb_has_a_help_of_80_columns_that_loads_no_large_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELPS],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert (done.returncode, done.stderr) == (0, "")


def requested(*words: str) -> Experiment:
    """The experiment of a command line."""
    return experiment_from(parser().parse_args(["run", *words]))


def test_another_component_by_set_comes_with_its_own_options() -> None:
    first = requested("--lr", "0.02", "--set", "server.name=adam", "--set", "solver.name=adamw")
    second = requested("--set", "server.lr=0.5", "--set", "server.name=sgd")
    third = requested("--set", "algorithm.mu=1.0", "--set", "algorithm.name=fedprox")
    assert (first.server.lr, first.solver.lr, first.solver.weight_decay) == (0.01, 0.02, 0.01)
    assert second.server.lr == 0.5
    assert third.algorithm.mu == 1
    assert [experiment.name for experiment in (first, second, third)] == ["fedavg", "fedavg", "fedprox:mu=1.0"]


UNKNOWN = {
    "run --algoritm fedprox": "run: has no option '--algoritm'; did you mean --algorithm?; see `",
    "resume 1 --rnds=3": "resume: has no option '--rnds=3'; did you mean --rounds?; see `",
    "list --zzz": "list: has no option '--zzz'; see `fedskew list --help`",
    "run a.toml b.toml": "run: does not know what 'b.toml' is for; see `",
    "compare fedavg fedprox": "compare: does not know what 'fedprox' is for; methods are named by --algorithms; see `",
    "run a.toml fedavg": "run: does not know what 'fedavg' is for; methods are named by --algorithm; see `",
    "run --lr abc": "run: --lr: a number is needed, got 'abc'; see `",
    "compare --seeds 1.5": "compare: --seeds: a whole number is needed, got '1.5'; see `",
    "compare --methods fedavg": "compare: has no option '--methods'; did you mean --algorithms?; see `",
    "run --methods=fedavg": "run: has no option '--methods=fedavg'; did you mean --algorithm?; see `",
    "compare --seed 3": "compare: has no option '--seed'; did you mean --seeds?; see `",  # three seeds, or seed 3?
    "run --client site": "run: has no option '--client'; did you mean --dataset?; see `",
    "diagnose --gpu": "diagnose: has no option '--gpu'; see `",
    "rn": "VERB cannot be 'rn'; did you mean run?; see `",
    "zzz": "VERB cannot be 'zzz'; known are study, run, compare, tune, ",
}


@pytest.mark.parametrize("line", UNKNOWN)
def test_unknown_words_give_one_line(line: str, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(line.split())
    out, err = capsys.readouterr()
    assert (end.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.removeprefix("fedskew").removeprefix(":").lstrip().startswith(UNKNOWN[line])


def test_no_arguments_print_the_verbs(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["fedskew"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "run one experiment" in capsys.readouterr().out


def test_console_raises_broken_pipe_error() -> None:
    """As in ``fedskew list algorithms | head``; Rich would call sys.exit."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Console(file=Closed()).print("text")


def test_run_imports_no_slow_library_before_its_first_round(tmp_path: Path) -> None:
    """Libraries that read tables, draw, test or fit are imported only when they are used."""
    script = (
        "import sys; from fedskew.cli import main; import fedskew.execution.site as run\n"
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


@pytest.mark.first
def test_compare_prints_a_table_and_writes_a_report(compared: Path) -> None:
    out = output_of("show", "c1", "--runs", compared)
    assert "FedAvg" in out
    assert "SCAFFOLD" in out
    assert "2 seeds" in out
    page = (compared / "c1.html").read_text()
    assert "<svg" in page


def test_show_and_list_print_json(compared: Path) -> None:
    table = json.loads(output_of("show", "c1", "--runs", compared, "--json"))
    assert [m["method"] for m in table["methods"]] == ["fedavg", "scaffold"]
    assert 0 <= table["methods"][0]["accuracy"] <= 1
    assert [r["status"] for r in table["runs"]] == ["finished"] * 4
    assert [r["id"] for r in json.loads(output_of("list", "runs", "--runs", compared, "--json"))] == [1, 2, 3, 4]
    assert ".[hf]" in output_of("list", "datasets"), "brackets are no markup"


def test_run_with_json_prints_nothing_else_on_standard_output(tmp_path: Path) -> None:
    result = json.loads(output_of("run", *QUICK, "--runs", tmp_path, "--json"))
    assert Path(result["report"]).is_file()


def test_divergence_exits_with_3_and_names_its_cause(tmp_path, capsys) -> None:
    out = output_of("run", "--lr", "1e15", "--rounds", 5, "--engine", "stacked", "--runs", tmp_path, code=3)
    assert "most likely cause: the client learning rate 1e+15" in out + capsys.readouterr().err
    assert "diverged after round" in out


def test_reproduce_prints_verdicts_and_writes_a_page_once(tmp_path: Path, capsys, monkeypatch) -> None:
    """There are two arms of three rounds. The second call finds all runs in the store."""
    from fedskew.claims import document
    from fedskew.cli import reproduce

    whole = document.load("contradictions").only("6-weights")
    quick = dataclasses.replace(whole.scales["quick"], seeds=2)
    quick.base["training"]["rounds"] = 3
    monkeypatch.setattr(reproduce, "load", lambda name: dataclasses.replace(whole, scales={"quick": quick}))
    words = ["reproduce", "contradictions", "--runs", str(tmp_path), "--jobs", "1"]
    assert "Weights by rows are more accurate than equal weights. (all but fedpbs)" in line_of(*words)
    err = " ".join(capsys.readouterr().err.split())
    assert "4 runs, 4 to do" in err
    assert "this will take about" in err
    assert "uniform weights" in (tmp_path / "contradictions-quick.html").read_text()
    found = json.loads(output_of(*words, "--json"))
    assert "4 runs, 0 to do" in " ".join(capsys.readouterr().err.split())
    assert {c["verdict"] for c in found["claims"]} <= {"holds", "fails", "undecided"}


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("run", "; `fedskew resume` continues runs that had started"),
        ("study", "; the same command continues"),
        ("diagnose", ""),
    ],
)
def test_interrupt_exits_with_130_and_says_what_continues(verb, said, monkeypatch, capsys):
    def stop(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedskew.cli.verbs.import_module", stop)
    assert main([verb]) == 130
    assert capsys.readouterr().err == f"fedskew: interrupted{said}\n"

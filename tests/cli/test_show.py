"""`show`: the result first, every measured round once, and the command that repeats runs."""

import json
import shlex
from pathlib import Path

import pytest

from fedskew.api.functions import run
from fedskew.api.runs import Runs
from fedskew.cli.main import main
from fedskew.experiment.config import Experiment
from fedskew.store.lock import held
from fedskew.store.runs import RunStore
from tests.commands import output_of
from tests.report import add, mixed_store

SMALL = ["--model", "softmax", "--clients", "3", "--epochs", "1", "--engine", "stacked"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run 1: five rounds, models measured after every second one, by layer and class. c1: two methods and seeds."""
    folder = tmp_path_factory.mktemp("show") / "runs"
    run(
        Experiment(
            model="softmax",
            clients={"number": 3},
            training={"rounds": 5},
            engine="stacked",
            evaluation={"every": 2, "layers": True, "classes": True},
        ),
        runs=folder,
    )
    command = f"compare --algorithms fedavg fedadam:lr=0.1 --seeds 2 --rounds 1 --jobs 1 --runs {folder}"
    assert main([*command.split(), *SMALL]) == 0
    return folder


def test_show_prints_each_measured_round_once(store: Path) -> None:
    lines = output_of("show", "1", "--runs", store).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("round "))
    assert [line.split()[0] for line in lines[start + 1 : start + 6]] == ["0", "2", "4", "5", "class"]
    assert any(line.startswith("layer (round 5)") for line in lines)


def test_a_run_whose_process_was_killed_is_interrupted(tmp_path) -> None:
    """A killed process, and one whose disk is full, leave `running` in the store."""
    store = RunStore(tmp_path)
    add(store, "a", 0, [0.1, 0.5])
    store.update(1, status="running")
    verbs = (("list", "runs"), ("show", "1"))
    assert all("interrupted" in output_of(*verb, "--runs", tmp_path) for verb in verbs)
    with held(store, 1):
        assert all("running" in output_of(*verb, "--runs", tmp_path) for verb in verbs)
    assert "run 1 (a): interrupted" in str(Runs(store, (1,)))
    report = output_of("report", "1", "--runs", tmp_path, "--output", tmp_path / "page.html")
    assert "page.html" in report
    assert '<span class="status">interrupted</span>' in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_show_prints_the_result_before_everything_else(store: Path) -> None:
    lines = output_of("show", "1", "--runs", store).splitlines()
    assert lines[0] == "run 1: FedAvg, finished, 5 of 5 rounds"
    assert lines[1].startswith("method")
    assert lines[2].startswith("FedAvg")
    assert not any(line.startswith("[") for line in lines)


def test_show_prints_the_experiment_on_request(store: Path) -> None:
    assert output_of("show", "1", "--toml", "--runs", store).strip() == RunStore(store).run(1).experiment.strip()


def test_show_as_json_has_the_curves(store: Path) -> None:
    [one] = json.loads(output_of("show", "1", "--json", "--runs", store))["runs"]
    assert [row["round"] for row in one["curves"]] == [0, 2, 4, 5]
    stored = RunStore(store).measurements([1]).query("split == 'test' and name == 'accuracy'")["value"].tolist()
    assert [row["accuracy"] for row in one["curves"]] == stored
    layers = [part for part in one["parts"] if part["split"] == "layer"]
    assert {(part["round"], part["part"]) for part in layers} == {(2, "out"), (4, "out"), (5, "out")}
    assert {part["part"] for part in one["parts"] if part["split"] == "class"} == set(map(str, range(10)))


def test_the_printed_command_repeats_a_comparison(store: Path) -> None:
    out = output_of("show", "c1", "--runs", store)
    assert out.startswith("FedAvg vs FedAdam lr = 0.1\n")
    line = next(line for line in out.splitlines() if line.startswith("repeat: "))
    words = shlex.split(line.removeprefix("repeat: ").partition(";")[0])
    assert words[:2] == ["fedskew", "compare"]
    assert words[3:] == ["--algorithms", "fedavg", "fedadam:lr=0.1", "--seeds", "0", "1"]
    assert main([*words[1:], "--jobs", "1", "--runs", str(store)]) == 0
    records = RunStore(store).runs("comparison IS NOT NULL")
    first, again = ([r for r in records if r.comparison == number] for number in (1, 2))
    assert [(r.name, r.seed, r.experiment) for r in again] == [(r.name, r.seed, r.experiment) for r in first]


def test_a_report_with_another_interval_is_another_file(tmp_path: Path) -> None:
    store = mixed_store(tmp_path)
    for options, name in (([], "c1.html"), (["--interval", "std"], "c1-std.html")):
        assert output_of("report", "c1", "--runs", store.folder, *options) == f"report: {store.folder / name}\n"


@pytest.mark.parametrize("verb", ["list", "list --json", "show 1", "report 1", "watch 1"])
def test_sections_of_an_experiment_that_are_no_tables_end_no_verb(verb: str, tmp_path: Path, capsys) -> None:
    sections = ("dataset", "clients", "sharing", "evaluation", "algorithm", "codec", "server", "skew")
    text = "".join(f'{section} = "mine.py::Mine"\n' for section in sections)
    add(RunStore(tmp_path), "fedavg", 0, [0.5, 0.7], experiment=text)
    assert main([*verb.split(), "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out

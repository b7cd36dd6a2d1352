"""The protocol of the evidence: it runs, goes on where it was, and a comparison becomes a case."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedskew.advice import evidence as protocol
from fedskew.advice.evidence import NAME, known, read_file
from fedskew.cli.main import main
from fedskew.core.errors import BadInput, Interrupted
from fedskew.data.dataset import Dataset
from fedskew.execution.run import Ended, Stop
from fedskew.experiment.config import Experiment
from fedskew.store.runs import RunStore
from fedskew.studies import evidence
from fedskew.studies.evidence import experiment_of, run_protocol
from fedskew.studies.runner import Executor, to_execute
from tests.commands import error_of, line_of, output_of

HEART = next(case for case in protocol.CASES if case.title == "heart:redraw=false, natural")
METHODS = ("fedavg", "scaffold", "krum", "fedper")
"""Krum needs more clients than the four hospitals; FedPer has no single model."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the protocol: two rates, two passes with one or two seeds, one round, few random tables."""
    monkeypatch.setattr(protocol, "RATES", (0.1, 0.3))
    monkeypatch.setattr(protocol, "PASSES", ((0, 1), (2,)))
    monkeypatch.setattr(protocol, "SEEDS", (0, 1, 2))
    monkeypatch.setattr(protocol, "ROUNDS", 1)
    monkeypatch.setattr("fedskew.measure.heterogeneity.faces.TABLES", 99)
    monkeypatch.setattr(evidence, "PARTITIONS", 1)


def complete(
    store: RunStore, stop: Stop = lambda: False
) -> Callable[[Sequence[Experiment], str, Dataset], list[Ended]]:
    """Return a function that executes what the store lacks, until ``stop`` returns True."""
    return lambda experiments, title, data: Executor(store, data, stop=stop).execute(
        to_execute(store, experiments, title)
    )


def test_a_killed_protocol_goes_on_where_it_was(tmp_path: Path) -> None:
    store, file = RunStore(tmp_path), tmp_path / NAME
    ended: list[int] = []

    def killed() -> bool:
        ended.append(1)
        return len(ended) > 8

    with pytest.raises(Interrupted):
        run_protocol(store, [HEART], METHODS, file, complete(store, killed))
    before = {record.id: record.updated for record in store.runs("status='finished'")}
    assert 0 < len(before) < 15
    run_protocol(store, [HEART], METHODS, file, complete(store))
    after = store.runs()
    # three methods fit: two rates on the tuning seed, then three seeds
    assert len(after) == 3 * (2 + 3)
    assert {record.status for record in after} == {"finished"}
    assert {record.id: record.updated for record in after if record.id in before} == before
    run_protocol(store, [HEART], METHODS, file, complete(store))
    assert len(store.runs()) == 15
    [case] = read_file(file).cases
    assert case.title == HEART.title
    assert [(line.method, line.measure, line.seeds) for line in case.methods] == [
        ("scaffold", "test", 3),
        ("scaffold", "own", 3),
        ("fedper", "own", 3),
    ]
    assert all(line.lr in (0.1, 0.3) for line in case.methods)


def test_the_verb_runs_the_protocol_and_shows_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evidence", "run", "--case", HEART.title, "--algorithms", "fedavg", "--seeds", "2", "--json"]
    assert main([*words, "--runs", str(tmp_path)]) == 0
    assert f"pass 1 of 2, case 1 of 1: {HEART.title}" in " ".join(capsys.readouterr().err.split())
    assert {record.status for record in RunStore(tmp_path).runs()} == {"finished"}


def test_a_gain_is_the_mean_paired_difference(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run_protocol(store, [HEART], METHODS[:2], tmp_path / NAME, complete(store))
    [case] = read_file(tmp_path / NAME).cases
    line = next(line for line in case.methods if line.measure == "test")
    rates = {"fedavg": evidence.tuned(store, HEART, "fedavg"), "scaffold": line.lr}
    reached = {}
    for method, rate in rates.items():
        wanted = [experiment_of(HEART, method, rate, seed).hash() for seed in (0, 1, 2)]
        records = [store.runs("experiment_hash=?", (one,))[0] for one in wanted]
        reached[method] = [evidence.values_of(store, record, "accuracy")["test"] for record in records]
    mean = sum(a - b for a, b in zip(reached["scaffold"], reached["fedavg"], strict=True)) / 3
    assert line.gain == pytest.approx(mean, rel=1e-3)
    assert case.fedavg["test"] == pytest.approx(sum(reached["fedavg"]) / 3, rel=1e-3)


def test_a_case_of_a_file_gains_methods(tmp_path: Path) -> None:
    """FedAvg has the same values in another store, so that gains of both stores can stand in one file."""
    file, both = tmp_path / NAME, RunStore(tmp_path / "both")
    run_protocol(both, [HEART], ("scaffold", "fedavg-site-scale"), tmp_path / "both.json", complete(both))
    for method in ("scaffold", "fedavg-site-scale"):
        store = RunStore(tmp_path / method)
        run_protocol(store, [HEART], (method,), file, complete(store))
    assert read_file(file).cases == read_file(tmp_path / "both.json").cases
    values = '"fedavg":{"test":0.'
    file.write_text(file.read_text(encoding="utf-8").replace(values, values + "9"), encoding="utf-8")
    with pytest.raises(BadInput, match="FedAvg on heart:redraw=false, natural has other values there"):
        run_protocol(store, [HEART], (method,), file, complete(store))


def test_a_run_that_diverged_counts_as_its_untrained_model(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = store.add_run(name="a", experiment="", experiment_hash="0", seed=0, partition_seed=0, rounds=2)
    for at, value in ((0, 0.4), (1, 0.9)):
        store.write_round(run, at, [(None, "test", "accuracy", value)])
    store.update(run, status="diverged")
    assert evidence.values_of(store, store.run(run), "accuracy") == {"test": 0.4}


COMPARE = ["compare", "--dataset", "heart", "--rounds", "1", "--held-out", "0.2", "--seeds", "2", "--jobs", "1"]


def test_a_comparison_becomes_a_case(tmp_path: Path) -> None:
    runs = ["--runs", str(tmp_path)]
    assert main([*COMPARE, "--algorithms", "fedavg", "scaffold", "--report", str(tmp_path / "r.html"), *runs]) == 0
    assert "c1: heart, natural, 2 gains over fedavg added" in line_of("evidence", "add", "c1", *runs)
    assert line_of("evidence", "add", "c1", *runs).endswith("evidence.json in place of those that this title had")
    case = next(case for case in known(tmp_path) if case.command)
    assert case.command.startswith("fedskew compare ")
    found = {(line.method, line.measure, line.seeds) for line in case.methods}
    assert found == {("scaffold", "test", 2), ("scaffold", "own", 2)}
    assert "heart" in output_of("evidence", *runs)
    assert main(["evidence", "page", "--output", str(tmp_path / "page.html"), *runs]) == 0
    assert case.command in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert main(["evidence", "check", "--json", *runs]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add"], "name a finished comparison"),
        (["add", "c9"], "there is no comparison c9"),
        (["run", "--case", "nowhere"], "there is no case 'nowhere'"),
        (["run", "--algorithms", "fedavgg"], "'fedavgg' is not a method of the protocol"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str, tmp_path: Path) -> None:
    RunStore(tmp_path).close()
    assert message in " ".join(error_of("evidence", *words, "--runs", tmp_path).split())

"""Comparisons that set partition seeds and training seeds apart."""

from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.measure.statistics import over_common_rows, variance_components
from fedskew.report.answer import how_sure, sources
from fedskew.report.experiments import repeat_command
from fedskew.report.tables import by_method, splits
from tests.commands import error_of, line_of

METHODS = ["fedavg", "fedprox:mu=1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> fs.Runs:
    folder = tmp_path_factory.mktemp("crossed")
    options = {"dataset": "heart", "skew": "label-dirichlet", "rounds": 2, "epochs": 2, "runs": folder}
    return fs.compare(METHODS, partitions=3, seeds=[5, 6], progress=False, **options)


def test_every_training_seed_runs_on_every_partition(runs: fs.Runs) -> None:
    pairs = [(r.name, r.partition_seed, r.seed) for r in runs.records]
    assert pairs == [(m, p, s) for p in range(3) for s in (5, 6) for m in METHODS]
    drawn = {(r.partition_seed, r.facts["data"]["fingerprint"]) for r in runs.records}
    assert len(drawn) == 3, "a partition has its own test rows"


def test_a_partition_is_one_observation(runs: fs.Runs) -> None:
    """The mean of its training seeds counts. Six numbers taken as independent would give a too narrow interval."""
    results = runs.results()
    row = results.summary.iloc[1]
    assert (row["seeds"], row["pairs"], row["observed"]) == (3, 3, "partition")
    values = np.array([r["value"] for r in last(runs)]).reshape(3, 2, 2).mean(1)
    assert row["difference"] == pytest.approx((values[:, 1] - values[:, 0]).mean())
    rows = by_method(results.store, results.records)
    table = np.full((3, 920), np.nan)
    for p in range(3):
        first, second = (rows[method][p, 0] for method in METHODS)
        table[p, first.units] = second.values - first.values
    ratio = splits(results.records).ratio
    assert row["difference_half"] == pytest.approx(over_common_rows(table, ratio).half(), rel=1e-5)
    assert row["flips"] == pytest.approx(over_common_rows(table, ratio).flips(), rel=1e-5)


def last(runs: fs.Runs) -> list[dict[str, float]]:
    frame = runs.measurements().query("split == 'test' and name == 'accuracy' and round == 2").sort_values("run")
    return frame.to_dict("records")


def test_show_and_report_state_the_shares_of_the_variance(runs: fs.Runs, tmp_path: Path) -> None:
    results = runs.results()
    values = np.array([r["value"] for r in last(runs)]).reshape(3, 2, 2).transpose(2, 0, 1)
    found = sources(results)
    assert found[2:] == pytest.approx(variance_components(values)[2:])
    assert found.split + found.partition == pytest.approx(variance_components(values).partition)
    shares, flip = how_sure(results)
    assert shares.endswith("method x partition (analysis of variance, 2 methods x 3 partitions x 2 seeds)")
    assert flip.startswith("a repeat of this size orders fedprox:mu=1 and fedavg the other way with probability")
    out = line_of("show", "c1", "--runs", runs.store.folder)
    assert "mean and 95 % interval over 3 partitions" in out
    assert "2 methods x 3 partitions x 2 seeds" in out
    assert "2 methods x 3 partitions x 2 seeds" in runs.report(tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_command_that_repeats_them(runs: fs.Runs) -> None:
    command = repeat_command(runs.store, runs.records)
    assert command.endswith("--algorithms fedavg fedprox:mu=1 --partitions 0 1 2 --seeds 5 6")
    assert repeat_command(runs.store, runs.records[:-1]).startswith("fedskew run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--partitions", "2", "--folds", "3"], "leave out partitions or folds"),
        (["--partitions", "1", "1"], "partitions must be different numbers"),
        (["--partitions", "0"], "partitions: at least 1"),
        (["--partitions", "9999", "--seeds", "2"], "one comparison takes at most 10000"),
        (["--partitions", "1000", "1001", "--tuned"], "seed [1000] is also a seed of the comparison"),
    ],
)
def test_wrong_partitions_are_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    err = error_of("compare", "--dataset", "heart", "--runs", tmp_path / "runs", *words)
    assert message in err
    assert len(err.strip().splitlines()) == 1

"""Comparisons whose seeds draw their own test rows."""

import numpy as np
import pytest

import fedskew as fs
from fedskew.experiment.config import from_toml
from fedskew.measure.registry import Measures
from fedskew.measure.statistics import over_common_rows, over_splits
from fedskew.report.answer import answer
from fedskew.report.series import Results
from fedskew.report.tables import covered
from fedskew.store import test_rows


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> fs.Runs:
    folder = tmp_path_factory.mktemp("redrawn")
    return fs.compare(["fedavg", "fedprox:mu=1"], dataset="heart", seeds=3, rounds=2, runs=folder, progress=False)


def test_runs_of_a_seed_share_their_test_rows(runs: fs.Runs) -> None:
    read = {(r.name, r.seed): r.facts["data"]["fingerprint"] for r in runs.records}
    assert len(set(read.values())) == 3
    for seed in range(3):
        loaded = from_toml(runs.records[2 * seed].experiment).dataset.load()
        assert read["fedavg", seed] == read["fedprox:mu=1", seed] == loaded.fingerprint()


def values_by_row(runs: fs.Runs, number: int) -> np.ndarray:
    """Return right and wrong of one method (seeds, 920 rows), with NaN for rows that a seed does not test."""
    found = np.full((3, 920), np.nan)
    for seed in range(3):
        record = runs.records[2 * seed + number]
        stored = test_rows.read(runs.store, [record.id])[record.id]
        found[seed, stored.units] = stored.values
    return found


def test_the_interval_measures_the_effect_of_common_test_rows(runs: fs.Runs) -> None:
    first, second = (values_by_row(runs, number) for number in (0, 1))
    assert (np.isfinite(first).sum(1) == 307).all()
    table, ratio = Results(runs.store, runs.records).summary, 307 / 613
    assert table["accuracy_half"].tolist() == pytest.approx(
        [over_common_rows(v, ratio).half() for v in (first, second)]
    )
    assert table["difference_half"][1] == pytest.approx(over_common_rows(second - first, ratio).half())
    assert set(table["covers"]) == {"seeds and redrawn test rows"}
    assert covered(table, Measures().primary()) == (
        "the intervals of accuracy cover the seeds and the test rows that each seed draws "
        "(corrected resampled t test, Nadeau and Bengio 2003), all other intervals the seeds only"
    )
    assert "Undecided" in answer(Results(runs.store, runs.records))


def test_without_the_rows_numbers_the_interval_is_nadeau_and_bengios(runs: fs.Runs) -> None:
    runs.store.db.execute("ALTER TABLE test_units RENAME TO kept")  # a store of an older version
    try:
        table = Results(runs.store, runs.records).summary
    finally:
        runs.store.db.execute("ALTER TABLE kept RENAME TO test_units")
    last = runs.measurements().query("split == 'test' and name == 'accuracy' and round == 2").set_index("run")["value"]
    values = {name: [last[r.id] for r in runs.records if r.name == name] for name in ("fedavg", "fedprox:mu=1")}
    first, second = values.values()
    ratio = 307 / 613  # test rows for each training row, a third of each class of each hospital
    assert table["accuracy_half"].tolist() == pytest.approx(
        [over_splits(v, ratio).half() for v in values.values()], rel=1e-3
    )
    found = over_splits((np.array(second) - first).tolist(), ratio)
    assert table["difference_half"][1] == pytest.approx(found.half(), rel=1e-3)
    assert table["p"][1] == pytest.approx(found.p(), rel=1e-3)
    assert set(table["covers"]) == {"seeds and redrawn test rows"}
    assert "corrected resampled t test, Nadeau and Bengio 2003" in covered(table, Measures().primary())

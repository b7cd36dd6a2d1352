"""Intervals over seeds and test rows, from whole runs and from stores that were made by hand."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from torch import Tensor

import fedskew as fs
from fedskew.core.metrics import TaskMetric, metrics_of
from fedskew.measure.registry import Measures
from fedskew.measure.statistics import over_seeds_and_rows
from fedskew.report import tables
from fedskew.report.budgets import Budget
from fedskew.report.series import Results
from fedskew.report.tables import by_method
from fedskew.store import test_rows
from fedskew.store.runs import RunStore
from fedskew.tasks.classification import Classification
from fedskew.tasks.regression import Regression
from fedskew.tasks.survival import Survival
from tests.report import add


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """Return a store with two methods, three seeds and ten test rows. The second method is right on one more row on each seed."""
    made = RunStore(tmp_path / "runs")
    for name, right in (("fedavg", (5, 6, 7)), ("scaffold", (6, 7, 8))):
        for seed, count in enumerate(right):
            run = add(made, name, seed, [0.1, count / 10])
            test_rows.write(made, run, 1, (np.arange(10) < count).astype(float))
    yield made
    made.close()


def test_intervals_cover_seeds_and_test_rows(store: RunStore) -> None:
    first, second = (row for _, row in Results(store, store.runs()).summary.iterrows())
    right = np.array([np.arange(10) < count for count in (5, 6, 7)], dtype=float)
    assert first["accuracy_half"] == pytest.approx(over_seeds_and_rows(right).half())
    assert first["covers"] == second["covers"] == "seeds and test rows"
    # every seed has the same difference; the rows do not
    assert second["difference"] == pytest.approx(0.1)
    assert second["difference_half"] > 0.1
    assert second["verdict"] == "undecided"
    assert tables.on_verdicts(Results(store, store.runs()).summary, Measures().primary()) == [
        "All seeds gave scaffold the same difference, as with deterministic training; 6 seeds would decide it"
    ]


def test_runs_without_values_of_rows_are_compared_over_seeds(store: RunStore) -> None:
    store.db.execute("DELETE FROM test_rows WHERE run=5")
    first, second = (row for _, row in Results(store, store.runs()).summary.iterrows())
    assert (first["covers"], second["covers"]) == ("seeds and test rows", "seeds")
    table = Results(store, store.runs()).summary
    assert tables.covers(table, Measures().primary()) == "seeds"
    table.loc[1, "accuracy"] = math.nan  # as of a method without a shared model
    assert tables.covers(table, Measures().primary()) == "seeds and test rows"
    store.db.execute("DROP TABLE test_rows")  # a store of an older version
    assert by_method(store, store.runs()) == {}
    assert first["accuracy"] == Results(store, store.runs()).summary.iloc[0]["accuracy"]


def test_a_budget_is_compared_over_seeds(store: RunStore) -> None:
    assert set(Results(store, store.runs(), Budget("seconds", 0.25)).summary["covers"]) == {"seeds"}


def test_values_of_an_earlier_round_are_not_taken_for_the_last_models(store: RunStore) -> None:
    test_rows.write(store, 1, 0, np.zeros(10))
    assert set(by_method(store, store.runs())["fedavg"]) == {(0, 1), (0, 2)}


def test_rows_of_a_unit_become_one_value(store: RunStore) -> None:
    values, person = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]), np.array([7, 7, -2, 7, 2**62, 7])
    test_rows.write(store, 1, 1, values, person)
    found = test_rows.read(store, [1])[1]
    assert found.units is not None
    assert found.units.tolist() == [-2, 7, 2**62]
    # two rows a unit on average, 2/3 of all rows right; unit 7 has four rows, one of them wrong
    assert found.values.tolist() == pytest.approx([2 / 3 + 1 / 3 / 2, 2 / 3 + (3 / 4 - 2 / 3) * 2, 2 / 3 - 2 / 3 / 2])
    assert found.values.mean() == pytest.approx(values.mean())
    # a row that is its own unit keeps its value
    test_rows.write(store, 1, 1, values, np.array([9, 4, 5, 1, 0, 3]))
    assert test_rows.read(store, [1])[1].values.tolist() == [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]


def test_many_units_share_values_in_every_split(store: RunStore) -> None:
    rng, rows = np.random.default_rng(0), 3 * test_rows.MOST // 2
    units = rng.choice(10 * test_rows.MOST, rows, replace=False)
    values = units % test_rows.MOST / test_rows.MOST
    test_rows.write(store, 1, 1, values, units)
    found = test_rows.read(store, [1])[1]
    assert found.units is not None
    assert found.units.tolist() == np.unique(units % test_rows.MOST).tolist()
    assert found.values.mean() == pytest.approx(values.mean())


def test_units_take_little_room(store: RunStore) -> None:
    units = np.flatnonzero(np.random.default_rng(0).random(50_000) < 0.2)[: test_rows.MOST]
    test_rows.write(store, 1, 1, np.zeros(len(units)), units)
    assert store.query("SELECT length(compressed) FROM test_units")[0][0] < 0.6 * len(units)


def test_a_store_without_units_is_read(store: RunStore) -> None:
    test_rows.write(store, 1, 1, np.zeros(10), np.arange(10))
    store.db.execute("DROP TABLE test_units")  # a store of an older version
    assert test_rows.read(store, [1])[1].units is None
    assert len(by_method(store, store.runs())["fedavg"]) == 3


def test_splits_give_a_row_the_same_unit(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,site,y\n" + "".join(f"{i**1.5:.2f},{'abcd'[i % 4]},{'ny'[i // 4 % 2]}\n" for i in range(80)))
    for source in ("label=y,client=site", "target=x,client=site", "label=y"):
        for fold in ("", "1/3", "2/3"):
            data = fs.load(f"table:path={path},{source},split_seed=3" + f",fold={fold}" * bool(fold))
            assert data.test_units is not None
            if source == "label=y,client=site":
                # x is standardised
                assert np.corrcoef(data.test_units**1.5, data.x_test[:, 0])[0, 1] > 1 - 1e-9
            assert len(np.unique(data.test_units)) == len(data.y_test)
    clients = [fs.load(f"table:path={path},label=y,client=site,fold={k}/2:clients").test_units for k in (1, 2)]
    assert sorted({*clients[0].tolist()} | {*clients[1].tolist()}) == [0, 1, 2, 3]
    assert not {*clients[0].tolist()} & {*clients[1].tolist()}
    assert fs.load(f"table:path={path},label=y,client=site,test={path}").test_units is None


@dataclass(frozen=True, kw_only=True)
class ByAuc(Classification):
    """Classification with AUC as the primary metric."""

    primary: ClassVar[str] = "auc"


@dataclass(frozen=True, kw_only=True)
class Spread(Regression):
    """Regression with a primary metric of all rows together. It has no values with a single row left out."""

    metrics: ClassVar[tuple[TaskMetric, ...]] = (
        *metrics_of("regression"),
        TaskMetric(name="deviation", title="deviation", better="lower", pooled=True),
    )
    primary: ClassVar[str] = "deviation"  # type: ignore[misc]

    def pooled(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        return {"deviation": float((outputs[:, 0] - y).std())}


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("classification", "accuracy"),
        ("regression", "rmse"),
        (ByAuc(), "auc"),
        (Survival(), "c_index"),
        (Spread(), "deviation"),
    ],
)
def test_a_run_stores_its_test_rows(tmp_path: Path, task: object, metric: str) -> None:
    data = fs.load("heart") if metric in ("accuracy", "auc") else numbers(survival=metric == "c_index")
    runs = fs.run(dataset=data, task=task, rounds=2, clients=4, skew="iid", runs=tmp_path / "runs")
    stored = runs.measurements().query("split == 'test' and name == @metric")["value"].iloc[-1]
    _, values, units = test_rows.read(runs.store, [runs.records[0].id])[runs.records[0].id]
    assert len(values) == len(data.y_test)
    assert (units is not None) == (metric in ("accuracy", "auc"))
    assert values.mean() == pytest.approx(stored, rel=0.02)
    if metric == "accuracy":
        assert set(np.round(values.tolist(), 6)) == {0.0, 1.0}
        assert values.mean() == pytest.approx(stored, abs=1e-7)


def numbers(survival: bool = False) -> fs.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=400)).astype(np.float32)
    if survival:
        y = np.stack([np.exp(y), np.arange(400) % 3 > 0], axis=1).astype(np.float32)
    return fs.Dataset(x=x[:200], y=y[:200], x_test=x[200:], y_test=y[200:])

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
from fedskew.core.metrics import TaskMetric
from fedskew.measure.intervals import over_seeds_and_rows
from fedskew.report import tables, words
from fedskew.report.budget import Budget
from fedskew.report.test_rows import by_method
from fedskew.store import test_rows
from fedskew.store.runs import RunStore
from fedskew.tasks.classification import Classification
from fedskew.tasks.metrics import REGRESSION
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
    first, second = (row for _, row in tables.summary(store, store.runs()).iterrows())
    right = np.array([np.arange(10) < count for count in (5, 6, 7)], dtype=float)
    assert first["accuracy_half"] == pytest.approx(over_seeds_and_rows(right).half())
    assert first["covers"] == second["covers"] == "seeds and test rows"
    # every seed has the same difference; the rows do not
    assert second["difference"] == pytest.approx(0.1)
    assert second["difference_half"] > 0.1
    assert second["verdict"] == "undecided"
    assert tables.undecided(tables.summary(store, store.runs())) == [
        "About 7 seeds would decide scaffold's difference, if it is as large as here"
    ]


def test_runs_without_values_of_rows_are_compared_over_seeds(store: RunStore) -> None:
    store.db.execute("DELETE FROM test_rows WHERE run=5")
    first, second = (row for _, row in tables.summary(store, store.runs()).iterrows())
    assert (first["covers"], second["covers"]) == ("seeds and test rows", "seeds")
    table = tables.summary(store, store.runs())
    assert words.covers(table) == "seeds"
    table.loc[1, "accuracy"] = math.nan  # as of a method without a shared model
    assert words.covers(table) == "seeds and test rows"
    store.db.execute("DROP TABLE test_rows")  # a store of an older version
    assert by_method(store, store.runs()) == {}
    assert first["accuracy"] == tables.summary(store, store.runs()).iloc[0]["accuracy"]


def test_a_budget_is_compared_over_seeds(store: RunStore) -> None:
    assert set(tables.summary(store, store.runs(), Budget("seconds", 0.25))["covers"]) == {"seeds"}


def test_values_of_an_earlier_round_are_not_taken_for_the_last_models(store: RunStore) -> None:
    test_rows.write(store, 1, 0, np.zeros(10))
    assert set(by_method(store, store.runs())["fedavg"]) == {(0, 1), (0, 2)}


def test_many_rows_are_stored_as_means_of_groups(store: RunStore) -> None:
    test_rows.write(store, 1, 1, np.arange(2 * test_rows.MOST, dtype=float))
    _, values = test_rows.read(store, [1])[1]
    assert len(values) == test_rows.MOST
    assert values.mean() == pytest.approx(test_rows.MOST - 0.5)


@dataclass(frozen=True, kw_only=True)
class ByAuc(Classification):
    """Classification with AUC as the primary metric."""

    primary: ClassVar[str] = "auc"


@dataclass(frozen=True, kw_only=True)
class Spread(Regression):
    """Regression with a primary metric of all rows together. It has no values with a single row left out."""

    metrics: ClassVar[tuple[TaskMetric, ...]] = (
        *REGRESSION,
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
def test_a_run_stores_its_test_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: object, metric: str) -> None:
    monkeypatch.setattr("fedskew.measure.registry.OWN", {})  # no other test sees the metrics of `Spread`
    data = fs.load("heart") if metric in ("accuracy", "auc") else numbers(survival=metric == "c_index")
    runs = fs.run(dataset=data, task=task, rounds=2, clients=4, skew="iid", runs=tmp_path / "runs")
    stored = runs.measurements().query("split == 'test' and name == @metric")["value"].iloc[-1]
    (_, values), *_ = test_rows.read(runs.store, [runs.records[0].id]).values()
    assert len(values) == len(data.y_test)
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

"""Metrics of a user's own: computed on what they name, stored with the run, and shown without their code."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.experiment.config import Experiment, from_toml
from fedskew.measure.registry import Measures, measures_of
from fedskew.report.html import page
from fedskew.report.series import Results
from fedskew.store.runs import RunStore
from tests.commands import output_of

FILE = """
from dataclasses import dataclass
from typing import ClassVar
import torch

class Base:
    idea: ClassVar[str] = "a number"

@dataclass(frozen=True, kw_only=True)
class Right(Base):
    split: ClassVar[str] = "test"
    unit: ClassVar[str] = "%"
    better: ClassVar[str] = "higher"
    high: ClassVar[float] = 1.0
    def compute(self, outputs, targets):
        return (outputs.argmax(1) == targets).double().mean()

@dataclass(frozen=True, kw_only=True)
class WorstOf(Base):
    place: int = 0
    split: ClassVar[str] = "clients"
    score: ClassVar[str] = "loss"
    def compute(self, values, rows):
        assert len(values) == len(rows) == 3
        return values[self.place]

@dataclass(frozen=True, kw_only=True)
class Longest(Base):
    split: ClassVar[str] = "round"
    def compute(self, updates, rows):
        return updates.norm(dim=1).max()

@dataclass(frozen=True, kw_only=True)
class Accuracy(Right):
    pass

@dataclass(frozen=True, kw_only=True)
class Lost(Right):
    split: ClassVar[str] = "clint"
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(FILE)
    return f"{tmp_path / 'mine.py'}::"


def measured(metric: object, folder: Path) -> RunStore:
    x, y = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 2
    data = Dataset(x=x, y=y, x_test=x[:20], y_test=y[:20], classes=("no", "yes"))
    experiment = Experiment(
        metric=metric, skew="iid", model="softmax", engine="sequential", clients={"number": 3}, training={"rounds": 2}
    )
    assert from_toml(experiment.toml()) == experiment
    return run(experiment, data=data, runs=folder / "runs").store


def test_metrics_of_each_split_are_measured_and_shown_without_their_code(mine: str, tmp_path: Path) -> None:
    store = measured([f"{mine}Right", f"{mine}WorstOf", f"{mine}WorstOf:place=2", f"{mine}Longest"], tmp_path)
    frame = store.measurements([1])

    def values(split: str, name: str) -> list[float]:
        rows = frame[(frame["split"] == split) & (frame["name"] == name)].sort_values(["round", "client"])
        return rows["value"].tolist()

    assert values("test", "right") == values("test", "accuracy")
    losses = np.reshape(values("global-model", "loss"), (-1, 3))
    assert values("clients", "worst_of") == losses.max(1).tolist()
    assert values("clients", "worst_of_place_2") == losses.min(1).tolist()
    assert values("round", "longest") == pytest.approx(np.reshape(values("client", "update_norm"), (-1, 3)).max(1))
    # as another process that cannot read the file
    (tmp_path / "mine.py").unlink()
    store = RunStore(tmp_path / "runs")
    records = store.runs()
    assert Results(store, records).summary.iloc[0]["right"] == pytest.approx(values("test", "accuracy")[-1])
    assert 'aria-label="longest over rounds"' in page(Results(store, records))
    assert "worst_of_place_2" in json.loads(output_of("show", "1", "--runs", store.folder, "--json"))["methods"][0]


def test_a_stored_measure_names_no_function_to_import(mine: str, tmp_path: Path) -> None:
    store = measured(f"{mine}Right", tmp_path)
    row = {"split": "round", "name": "evil", "note": "", "compute": "os:abort"}
    store.add_facts(1, {"measures": [row, {**row, "name": "drift"}, {**row, "name": "odd", "reduce": "nowhere"}]})
    [evil] = measures_of([store.run(1).facts]).of_users
    assert (evil.split, evil.name, evil.compute) == ("round", "evil", "")
    store.add_facts(1, {"measures": [{"split": "round"}]})
    assert store.runs()[0].status == "damaged"


def test_stores_with_measures_of_one_name_do_not_mix(mine: str, tmp_path: Path) -> None:
    first = measured(f"{mine}Right", tmp_path / "first")
    (tmp_path / "other.py").write_text(
        FILE.replace('better: ClassVar[str] = "higher"', 'better: ClassVar[str] = "lower"')
    )
    second = measured(f"{tmp_path / 'other.py'}::Right", tmp_path / "second")
    results = [Results(store, store.runs()) for store in (first, second)]
    better = [result.measures.stored["test", "right"].better for result in results]
    assert better == ["higher", "lower"]
    assert ("test", "right") not in Measures().stored


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("Accuracy", "metric: accuracy is a measure of fedskew; give the class another name"),
        ("Lost", "metric Lost: split cannot be 'clint'; did you mean 'clients'"),
        ("Right Right", "metric: right is given twice"),
        ("Base", "is not a frozen dataclass"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(mine: str, names: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Experiment(metric=[f"{mine}{name}" for name in names.split()])

"""The registry of measures: a new row is computed, stored and shown in every view, and no row contradicts another."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from fedskew.api.functions import run
from fedskew.claims.quantities import curve, quantity, read_run
from fedskew.cli.main import main
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset
from fedskew.experiment.config import Experiment
from fedskew.measure import registry
from fedskew.measure.registry import ALL, MEASURES, Measure
from fedskew.report.budgets import budget_from
from fedskew.report.html import page
from fedskew.report.plots import plot
from fedskew.report.series import Results
from fedskew.report.sinks import Feed
from fedskew.store.runs import RunStore
from tests.commands import line_of, output_of
from tests.pages import loaded
from tests.report.test_sinks import Recorder

LONGEST = Measure(
    "round", "longest", "length of the longest update of a round", compute=f"{__name__}:longest", views=ALL,
    title="longest update", unit="m", budget="metres", remark="longest update: the mean over the rounds",
)  # fmt: skip
RANGE = Measure(
    "clients", "accuracy_range", "best minus worst accuracy over the clients", compute=f"{__name__}:between",
    score="accuracy", views=ALL, key="gap", unit="%", reduce="last",
)  # fmt: skip


def longest(updates: torch.Tensor, num_examples: torch.Tensor) -> torch.Tensor:
    assert len(updates) == len(num_examples) == 4
    return updates.norm(dim=1).max()


def between(values: torch.Tensor) -> torch.Tensor:
    assert values.sort().values.equal(values), "from worst to best"
    return values[-1] - values[0]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Return a store with a run of two rounds. It has two measures that fedskew does not know."""
    rows = np.random.default_rng(0).standard_normal((60, 4))
    data = Dataset(x=rows, y=np.arange(60) % 2, x_test=rows, y_test=np.arange(60) % 2, classes=("no", "yes"))
    experiment = Experiment(
        name="a", skew="iid", model="softmax", engine="stacked", clients={"number": 4}, training={"rounds": 2}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "MEASURES", (*MEASURES, LONGEST, RANGE))
        patch.setattr(registry, "USUAL", registry.Measures())
        return run(experiment, data=data, runs=tmp_path_factory.mktemp("new")).store


@pytest.fixture
def new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MEASURES", (*MEASURES, LONGEST, RANGE))
    monkeypatch.setattr(registry, "USUAL", registry.Measures())


@pytest.mark.usefixtures("new")
def test_a_new_measure_is_computed_stored_and_in_every_view(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("fedskew.report.files.FORMATS", ("svg",))
    frame, records = store.measurements([1], per_client=False), store.runs()
    lengths = frame[frame["name"] == "longest"].set_index("round")["value"]
    own = store.measurements([1]).query("split == 'client' and name == 'update_norm'")
    assert lengths.to_dict() == pytest.approx(own.groupby("round")["value"].max().to_dict())
    # tables
    row = Results(store, records).summary.iloc[0]
    assert row["longest"] == pytest.approx(lengths.mean())
    assert 0 <= row["gap"] <= 1
    shown = line_of("show", "1", "--runs", store.folder)
    assert shown.count("longest update") == 3  # a column of the rounds, one of the summary, and the remark
    assert "gap %" in shown
    for watched in (["watch", "1"], ["watch", "1", "--json"]):
        assert "longest" in output_of(*watched, "--runs", store.folder)
    # report
    text = page(Results(store, records))
    assert '<th scope="col">longest update<small>m, round mean</small></th>' in text
    assert 'aria-label="longest update over rounds"' in text
    assert "Length of the longest update of a round." in text
    assert "Longest update: the mean over the rounds." in text
    assert plot(Results(store, records), "longest").axes[0].get_ylabel() == "longest update"
    # files for a paper
    words = ["report", "1", "--runs", str(store.folder), "--output", str(tmp_path / "r.html")]
    assert main([*words, "--tables", str(tmp_path), "--figures", str(tmp_path)]) == 0
    assert {"longest.csv", "longest.svg", "gap.csv"} <= {path.name for path in tmp_path.iterdir()}
    for name in ("methods.md", "methods.tex"):
        assert "longest update m" in (tmp_path / name).read_text(encoding="utf-8")
    assert ",longest," in (tmp_path / "methods.csv").read_text(encoding="utf-8")
    # sinks, claims, budgets, the reference
    sink = Recorder()
    with Feed(store, [sink]) as feed:
        feed.send(records)
    assert {"round/longest", "clients/accuracy_range"} <= {
        name for _, _, sent in sink.received if isinstance(sent, dict) for name in sent
    }
    known = read_run(store, records[0])
    assert quantity("longest", known) == pytest.approx(lengths.mean())
    assert quantity("first-longest", known) == pytest.approx(lengths[1])
    assert curve("longest", known)[1].tolist() == pytest.approx(lengths.tolist())
    assert str(budget_from("metres=5")) == "metres=5"
    generate = loaded("docs/generate.py")
    assert "| round | `longest` | length of the longest update of a round |" in generate.reference.measurements()
    assert "| `gap` | clients accuracy_range | last |" in generate.reference.columns()


def test_an_unknown_measure_is_not_stored(store: RunStore) -> None:
    with pytest.raises(FedskewError, match="the measure round/longest has no row in"):
        store.write_round(1, 3, [(None, "round", "longest", 1.0)])


def test_rows_are_whole_and_unique() -> None:
    assert max(Counter((m.split, m.name) for m in MEASURES).values()) == 1
    # the splits whose measures a column of a table can name
    columns = [m.key for m in MEASURES if m.split in (*registry.OF_MODELS, "round")]
    assert max(Counter(columns).values()) == 1
    stored = registry.Measures().stored
    for measure in MEASURES:
        assert all((measure.split, name) in stored for name in measure.of), measure
        assert not measure.compute or callable(measure.function()), measure
        assert not measure.score or ("global-model", measure.score) in stored, measure
    assert registry.Measures().primary().views == ALL

"""Spans exclude each other, add up, and cost nothing unless a run is profiled. Evaluation takes under a tenth of a run."""

import numpy as np
import pytest

from fedskew.api.functions import run
from fedskew.cli.main import main
from fedskew.core import machine as spans
from fedskew.core.machine import REST, profiled, span
from fedskew.data.dataset import Dataset
from fedskew.execution.build import assemble
from fedskew.execution.measurements import measured_every
from fedskew.experiment.config import Experiment
from fedskew.report.answer import measuring
from fedskew.store.runs import RunStore
from tests.commands import output_of


@pytest.fixture
def clock(monkeypatch):
    """A clock that is moved by hand."""
    now = [100.0]
    monkeypatch.setattr(spans.time, "perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_each_moment_belongs_to_the_innermost_span(clock):
    with profiled({"training": 1.0}) as seconds:
        clock(0.5)
        with span("training"):
            clock(2)
            with span("batching"):
                clock(3)
            clock(4)
        with span("training"):
            clock(8)
    assert seconds == {REST: 0.5, "training": 1 + 2 + 4 + 8, "batching": 3}


def test_an_error_closes_its_spans(clock):
    def fail():
        with span("training"):
            clock(1)
            raise ValueError

    with profiled({}) as seconds:
        with pytest.raises(ValueError):
            fail()
        clock(2)
    assert seconds == {REST: 2, "training": 1}


def test_a_span_does_nothing_without_profiling():
    assert span("training") is span("store")


def test_a_profiled_run_prints_the_seconds_of_each_span(tmp_path):
    command = ["run", "--rounds", "2", "--engine", "sequential", "--runs", str(tmp_path), "--profile"]
    output = output_of(*command)
    record = RunStore(tmp_path).run(1)
    assert {"local training", "evaluation", "aggregation", "measures", "planning the round", "store"} <= set(
        record.facts["profile"]
    )
    assert all(part in output for part in record.facts["profile"])
    assert "Where the time went" in (tmp_path / "1.html").read_text()
    rounds = RunStore(tmp_path).measurements([1]).query("name == 'seconds'")["value"].sum()
    assert sum(record.facts["profile"].values()) > rounds


def test_a_run_without_profiling_prints_the_share_of_evaluation(tmp_path, capsys):
    assert main(["run", "--rounds", "2", "--engine", "sequential", "--runs", str(tmp_path)]) == 0
    facts = RunStore(tmp_path).run(1).facts
    assert facts["measured_every"] == 1
    cost = measuring(RunStore(tmp_path).runs())
    assert cost in (output := " ".join(capsys.readouterr().out.split()))
    assert cost in (tmp_path / "1.html").read_text()
    assert "local training" not in output
    assert cost.endswith(" % of the time of the rounds.")


def test_the_share_of_evaluation_matches_the_numbers_by_hand(tmp_path):
    """FedAvg: 2 s of 8 + 1 + 1 s. SCAFFOLD: 1 s of 9 + 1 s. Set-up is not counted."""
    store = RunStore(tmp_path)
    profiles = {
        "fedavg": {"local training": 4.0, "evaluation": 0.5, "measures": 0.5, "setting up": 7.0},
        "scaffold": {"local training": 9.0, "scores of local models": 1.0},
    }
    for name in ("fedavg", "fedavg", "scaffold"):
        run = store.add_run(name=name, experiment="", experiment_hash="", seed=0, partition_seed=0, rounds=1)
        store.add_facts(run, {"profile": profiles[name], "measured_every": 1})
    assert measuring(store.runs()) == "Measuring took 10 to 20 % of the time of the rounds."
    store.add_facts(run, {"measured_every": 4})
    assert measuring(store.runs("name='scaffold'")).endswith("models were measured every 4 rounds (evaluation.every).")
    store.add_facts(run, {"measured_every": 1})
    assert measuring(store.runs("name='scaffold'")) == "Measuring took 10 % of the time of the rounds."
    assert measuring([]) == ""


ROWS = Dataset(
    x=np.zeros((100, 2)), y=np.arange(100) % 2, x_test=np.zeros((20, 2)), y_test=np.arange(20) % 2, classes=("a", "b")
)


@pytest.mark.parametrize(
    ("changes", "every"),
    [
        # 3 x 100 x 5 rows trained, 20 + 100 + 100 measured: in 1000 rounds 5 / 95 x 1500 / 220 x 1000 = 358 times
        ({"local": {"epochs": 5}}, 4),
        ({"local": {"epochs": 20}}, 1),
        # 71 times
        ({"local": {"epochs": 1}}, 16),
        # without local models 131 times
        ({"local": {"epochs": 1}, "evaluation": {"every": "auto", "local_models": False}}, 8),
        # 2 of 10 clients train 5 steps of 4 rows: 5 / 95 x 120 / (20 + 100 + 20) x 1000 = 45 times
        ({"local": {"steps": 5, "batch_size": 4}, "selection": {"name": "uniform", "clients": 2}}, 32),
        # 10 rows trained, 90 held out: 5 / 95 x 30 / 200 x 1000 = 7 times; a curve has at least 20 points
        ({"local": {"epochs": 1}, "clients": {"number": 10, "held_out": 0.9}}, 32),
        # a curve keeps 20 points
        ({"local": {"epochs": 1}, "training": {"rounds": 39}}, 1),
        ({"local": {"epochs": 1}, "training": {"rounds": 40}}, 2),
        ({"local": {"epochs": 1}, "evaluation": {"every": 3}}, 3),
    ],
)
def test_the_automatic_interval_keeps_evaluation_under_a_tenth_of_the_work(changes, every):
    given = {
        "skew": "iid",
        "model": "softmax",
        "clients": {"number": 10, "held_out": 0.0},
        "training": {"rounds": 1000},
    }
    given["evaluation"] = {"every": "auto"}
    assert measured_every(assemble(Experiment(**{**given, **changes}), ROWS)) == every


def test_the_last_round_is_always_evaluated(tmp_path):
    stored = run(
        Experiment(
            skew="iid", model="softmax", clients={"number": 10, "held_out": 0.0}, evaluation={"every": "auto"},
            training={"rounds": 41}, local={"epochs": 5}, engine="stacked",
        ),
        data=ROWS, runs=tmp_path,
    )  # fmt: skip
    frame = stored.measurements()
    assert frame.query("split == 'test' and name == 'accuracy'")["round"].tolist() == [*range(0, 41, 2), 41]
    assert frame.query("split == 'round' and name == 'drift'")["round"].tolist() == list(range(1, 42))
    assert stored.records[0].facts["measured_every"] == 2

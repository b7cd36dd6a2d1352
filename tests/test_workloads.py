"""Real data to the accuracies that the field reports; minutes each, `make test-slow`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedskew.core.errors import Diverged
from fedskew.data.datasets.uci_har import FILE
from fedskew.experiment.config import Experiment
from fedskew.experiment.results import compare, run

HAS_DATA = (Path(os.environ.get("FEDSKEW_DATA", "/nowhere")) / FILE).is_file()
needs_data = pytest.mark.skipif(not HAS_DATA and not os.environ.get("CI"), reason="UCI-HAR is not here")


def sensors(skew: str, lr: float, rounds: int) -> Experiment:
    return Experiment(
        dataset="uci-har",
        skew=skew,
        solver=f"sgd:lr={lr},momentum=0.9",
        local={"epochs": 1, "batch_size": 32},
        training={"rounds": rounds, "threads": 1},
        engine="sequential",
    )


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("skew", "lr", "rounds", "at_least"), [("natural", 0.05, 60, 0.90), ("label-dirichlet:alpha=0.2", 0.01, 30, 0.89)]
)
def test_fedavg_on_unseen_people(tmp_path, skew: str, lr: float, rounds: int, at_least: float) -> None:
    runs = compare(sensors(skew, lr, rounds), ["fedavg"], seeds=3, folder=tmp_path, jobs=2)
    assert runs.table()["accuracy"][0] >= at_least


@needs_data
@pytest.mark.slow
def test_an_mlp_on_features_of_unseen_people(tmp_path) -> None:
    """On the official 561 features, or on those computed from the signals."""
    experiment = Experiment(
        dataset="uci-har:form=features",
        skew="natural",
        solver="sgd:lr=0.05,momentum=0.9",
        local={"epochs": 1, "batch_size": 32},
        training={"rounds": 50, "threads": 1},
        evaluation={"every": 50, "local_models": False},
        engine="stacked",
    )
    runs = compare(experiment, ["fedavg"], seeds=3, folder=tmp_path)
    assert runs.table()["accuracy"][0] >= 0.94


@needs_data
@pytest.mark.slow
def test_intents_of_messages_that_share_no_set_of_words(tmp_path) -> None:
    """Bitext customer support, 27 intents, eleven clients with skewed labels; unseen messages only."""
    experiment = Experiment(
        dataset="bitext-support",
        skew="label-dirichlet:alpha=0.5",
        clients={"number": 11},
        solver="adamw:lr=0.001",
        local={"epochs": 1, "batch_size": 32},
        training={"rounds": 10, "threads": 1},
        evaluation={"local_models": False},
        engine="sequential",
    )
    assert run(experiment, folder=tmp_path).table()["accuracy"][0] >= 0.95


@needs_data
def test_a_step_that_is_too_large_for_sensor_data_is_diagnosed(tmp_path) -> None:
    with pytest.raises(
        Diverged, match=r"round \d+, client \d+.*most likely cause: the client learning rate 5 is too large.*try lr"
    ):
        run(sensors("label-dirichlet:alpha=0.2", 5.0, 6), folder=tmp_path)

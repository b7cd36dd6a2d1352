"""Quantities of DualMetric's stories, by hand: lagging clients, clients that are alike, and rules that fire."""

import dataclasses

import numpy as np
import pytest

from fedskew.claims.quantities import Measured, curve, quantity
from fedskew.store.records import RunRecord

ACCURACY = np.array(
    [[0.1, 0.1, 0.1], [0.3, 0.45, 0.4], [0.5, 0.6, 0.6], [0.8, 0.7, 0.6], [0.9, 0.8, 0.6], [0.9, 0.85, 0.6]]
)
"""By round, from 0, and client."""


def run() -> Measured:
    """Five rounds of three clients. Client 0 lags after the first round, a fifth of the rounds."""
    record = RunRecord(
        id=0, comparison=None, name="a", experiment="", experiment_hash="h", seed=0, partition_seed=0, status="finished",
        message="", rounds=5, rounds_done=5, created="2026", updated="2027", facts={},
    )  # fmt: skip
    mu, rules = np.array([[1.0, 2.0, 3.0]] * 5), np.array([[1, 3, 0], [2, 0, 0], [2, 2, 0], [0, 0, 0], [1, 0, 0]])
    series = {("global-model", "accuracy", k): (np.arange(6), ACCURACY[:, k]) for k in range(3)}
    series |= {("client", "mu", k): (np.arange(1, 6), mu[:, k]) for k in range(3)}
    series |= {("client", "rule", k): (np.arange(1, 6), rules[:, k].astype(float)) for k in range(3)}
    series |= {("clients", "accuracy_std", None): (np.arange(6), ACCURACY.std(axis=1))}
    return Measured(record, series)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lagging-mu", 1.0),
        ("lagging-gain", 0.5),
        ("client-range-at:0.2", 0.15),
        ("clients-alike-at:0.2", 3),  # a difference of just 0.15 counts
        ("clients-alike-at:0.6", 2),
        ("intra-early", 2 / 3 - 1 / 12),
        ("inter-later", 1 / 2 - 1 / 3),
    ],
)
def test_quantities(name: str, value: float) -> None:
    assert quantity(name, run()) == pytest.approx(value)


def test_variance_over_the_clients() -> None:
    rounds, values = curve("client-variance", run())
    assert rounds.tolist() == [1, 2, 3, 4, 5]
    assert values == pytest.approx(ACCURACY[1:].var(axis=1))
    assert quantity("client-variance-at:0.4", run()) == pytest.approx(0.02 / 9)


def test_shares_of_clients_whose_rules_fire() -> None:
    assert curve("intra-rule", run())[1] == pytest.approx([2 / 3, 0, 0, 0, 1 / 3])
    assert curve("inter-rule", run())[1] == pytest.approx([1 / 3, 1 / 3, 2 / 3, 0, 0])


def test_a_run_without_these_measures_has_no_numbers() -> None:
    empty = dataclasses.replace(run(), series={})
    names = ["lagging-mu", "lagging-gain", "clients-alike-at:0.2", "intra-early", "client-variance-at:0.4"]
    assert np.isnan([quantity(name, empty) for name in names]).all()

"""Cosines of updates by layer, evenness over clients, recovery: against brute force, closed forms and SciPy."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats

from fedskew.api.functions import run
from fedskew.execution.measurements import client_rows
from fedskew.experiment.config import Experiment
from fedskew.measure.fairness import entropy, jain
from fedskew.measure.history import recovery
from fedskew.measure.updates import cosines, signal_to_noise
from tests.drifts import drift

LAYERS = {"first": [slice(0, 3), slice(5, 6)], "second": [slice(3, 5)]}
SHARES = st.lists(st.floats(0.01, 1), min_size=2, max_size=20)


def test_cosines_equal_the_mean_over_all_pairs() -> None:
    deltas = torch.tensor(np.random.default_rng(0).standard_normal((7, 6)))
    for name, places in LAYERS.items():
        rows = torch.cat([deltas[:, place] for place in places], 1)
        pairs = [torch.cosine_similarity(rows[i], rows[j], dim=0) for i, j in itertools.combinations(range(7), 2)]
        assert float(cosines(deltas, LAYERS)[name]) == pytest.approx(float(torch.stack(pairs).mean()), abs=1e-12)


def test_cosines_of_equal_opposite_and_zero_updates() -> None:
    one = torch.tensor([1.0, 2.0, 0.0, 0.0, 0.0, 3.0])
    found = cosines(torch.stack([one, 5 * one, 0 * one]), LAYERS)
    # a client that did not move is in no pair; no client moved the second layer
    assert float(found["first"]) == pytest.approx(1)
    assert math.isnan(float(found["second"]))
    assert float(cosines(torch.stack([one, -one]), LAYERS)["first"]) == pytest.approx(-1)
    assert math.isnan(float(cosines(one[None], LAYERS)["first"]))


def test_signal_to_noise_equals_its_definition() -> None:
    deltas, n = torch.tensor(np.random.default_rng(1).standard_normal((4, 5)) + 1), torch.tensor([1.0, 2.0, 3.0, 4.0])
    p = n / n.sum()
    mean = p.double() @ deltas
    expected = mean.square().sum() / (p.double() @ (deltas - mean).square().sum(1))
    assert float(signal_to_noise(drift(deltas, n)["relative_drift"])) == pytest.approx(float(expected))


@settings(max_examples=50)
@given(SHARES)
def test_evenness_is_scipys_and_bounded(values: list[float]) -> None:
    v = torch.tensor(values, dtype=torch.float64)
    cv = float(np.std(values) / np.mean(values))
    assert float(jain(v)) == pytest.approx(1 / (1 + cv**2))
    assert float(entropy(v)) == pytest.approx(stats.entropy(values) / math.log(len(values)))
    assert 1 / len(values) <= float(jain(v)) + 1e-12
    cosine = torch.cosine_similarity(v, torch.ones_like(v), dim=0)
    assert float(jain(v).sqrt()) == pytest.approx(float(cosine))


def test_evenness_of_extreme_shares() -> None:
    alone, zeros = torch.tensor([0.0, 0.0, 3.0]), torch.zeros(3)
    assert (float(jain(alone)), float(entropy(alone))) == (pytest.approx(1 / 3), 0)
    assert (float(jain(zeros)), float(entropy(zeros))) == (1, 1)
    assert float(entropy(torch.tensor([0.4]))) == 1


def test_layers_and_classes_are_stored_on_demand(tmp_path) -> None:
    settings = {"evaluation": {"layers": True, "classes": True}, "training": {"rounds": 2}, "engine": "stacked"}
    runs = run(Experiment(model="mlp:hidden=[8]", **settings), runs=tmp_path)
    frame = runs.measurements()
    layers = frame[frame["split"] == "layer"]
    assert runs.records[0].facts["layers"] == ["hidden.0", "out"]
    assert layers["client"].tolist() == [0, 1, 0, 1]
    assert layers["value"].abs().max() <= 1
    known = frame[(frame["split"] == "class") & (frame["round"] == 2)]
    classes = known[known["name"] == "accuracy"]
    assert len(known[known["name"] == "forgetting"]) == 10
    accuracy = frame[(frame["split"] == "test") & (frame["name"] == "accuracy") & (frame["round"] == 2)]["value"].item()
    # the test set has 35 to 37 rows of each digit
    assert len(classes) == 10
    assert classes["value"].mean() == pytest.approx(accuracy, abs=0.02)


def test_recovery_by_hand() -> None:
    """Mean before 0.8, so 0.76 is enough; a slow change counts from its beginning, once it is complete."""
    accuracy = {0: 0.7, 1: 0.9, 2: 0.1, 3: 0.5, 4: 0.76, 5: 0.9}
    assert recovery(accuracy, 2, 2) == 2
    assert recovery(accuracy, 2, 5) == 3
    assert recovery({0: 0.8, 1: 0.8, 2: 0.8, 3: 0.8}, 2, 2) == 0
    assert recovery({0: 0.8, 1: 0.1}, 1, 1) is None
    assert recovery({0: 0.8, 1: 0.1, 2: 0.7}, 1, 1) is None, "the round of the change is not one before it"
    assert recovery({3: 0.1}, 1, 1) is None
    old = dict.fromkeys(range(20), 0.1) | dict.fromkeys(range(20, 30), 1.0) | {30: 0.5}
    assert recovery(old, 30, 30) is None, "only the ten measurements before count"


@pytest.mark.parametrize(("dataset", "name", "worst"), [("digits", "accuracy", 0), ("parkinsons", "rmse", 19)])
def test_the_worst_client_has_the_lowest_accuracy_and_the_highest_error(dataset: str, name: str, worst: float) -> None:
    """Twenty clients in any order, and one without a value."""
    values = torch.tensor([*np.random.default_rng(0).permutation(20), math.nan], dtype=torch.float64)
    partition = SimpleNamespace(measured_rows=lambda client: [client])
    assembly = SimpleNamespace(experiment=Experiment(dataset=dataset), partition=partition)
    rows = client_rows(assembly, "clients", np.arange(21), {name: values})
    assert {measure: value for client, _, measure, value in rows if client is None}[f"{name}_worst"] == worst

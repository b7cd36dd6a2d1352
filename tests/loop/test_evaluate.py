"""Models on the clients' data: losses and accuracies against a loop over the rows."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from fedskew.core.task import Task
from fedskew.core.trees import ParameterSpace
from fedskew.loop import evaluate as evaluation
from fedskew.loop.evaluate import evaluate, evaluate_clients, per_row
from fedskew.tasks.classification import Classification
from tests.small import RAGGED, TASK, X0, partition_of


def data(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(6)
    return torch.tensor(rng.standard_normal((rows, 6))), torch.tensor(rng.integers(0, 3, rows))


def by_hand(x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Return loss and accuracy, computed row by row."""
    logits = [TASK.logits(X0, row[None])[0] for row in x]
    losses = [float(torch.logsumexp(z, 0) - z[k]) for z, k in zip(logits, y, strict=True)]
    right = [float(int(z.argmax()) == int(k)) for z, k in zip(logits, y, strict=True)]
    return {"loss": float(np.mean(losses)), "accuracy": float(np.mean(right))}


def held_out_of(sizes: list[int], aside: list[int]):
    """Clients of ``sizes`` rows with ``aside`` measured rows each, which follow the training rows in the pool."""
    part = partition_of(sizes)
    start = sum(sizes)
    return dataclasses.replace(
        part, held_out=(np.arange(start, start + sum(aside)), np.cumsum([0, *aside]).astype(np.int64))
    )


@pytest.mark.parametrize(
    ("limit", "number"), [("CHUNK", 1), ("CHUNK", 3), ("CHUNK", 1024), ("VALUES", 1), ("VALUES", 20)]
)
def test_evaluate_is_the_mean_over_rows(monkeypatch, limit, number):
    """The rows pass in parts, of a number of rows and of a number of values."""
    monkeypatch.setattr(evaluation, limit, number)
    x, y = data(50)
    expected = by_hand(x, y)
    measured = evaluate(TASK, X0, x, y)
    assert {name: measured[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    rows = per_row(TASK, X0, x, y)
    assert {name: tuple(v.shape) for name, v in rows.items()} == {"loss": (50,), "accuracy": (50,)}


@pytest.mark.parametrize("chunk", [1, 2, 1024])
@pytest.mark.parametrize("clients", [[0, 1, 2, 3, 4, 5, 6], [2], [6, 0, 4]], ids=str)
def test_joint_evaluation_of_clients_equals_one_by_one(monkeypatch, chunk, clients):
    monkeypatch.setattr(evaluation, "CHUNK", chunk)
    x, y = data(sum(RAGGED))
    part = partition_of(RAGGED)
    got = evaluate_clients(TASK, X0, x, y, part, np.array(clients))
    for i, k in enumerate(clients):
        expected = by_hand(x[part.rows(k)], y[part.rows(k)])
        assert {name: float(values[i]) for name, values in got.items()} == pytest.approx(expected, rel=1e-12)


def test_clients_are_measured_on_their_held_out_rows():
    x, y = data(60)
    part = held_out_of([10, 20, 10], [4, 0, 16])
    got = evaluate_clients(TASK, X0, x, y, part, np.arange(3))
    assert [float(got["loss"][k]) for k in (0, 2)] == pytest.approx(
        [by_hand(x[40:44], y[40:44])["loss"], by_hand(x[44:60], y[44:60])["loss"]]
    )
    assert got["loss"][1].isnan()
    assert got["accuracy"][1].isnan()


def test_scores_without_measured_rows_are_nan():
    x, y = data(40)
    got = evaluate_clients(TASK, X0, x, y, held_out_of([10, 20, 10], [0, 0, 0]), np.arange(3))
    assert set(got) == {"loss", "accuracy"}
    assert all(values.shape == (3,) and values.isnan().all() for values in got.values())


def test_images_are_evaluated_in_channels_last_format():
    seen = []

    class Looks(nn.Module):
        def forward(self, x):
            seen.append(x.stride())
            return x.flatten(1), x.flatten(1)[:, :4]

    task = Task(Classification(), Looks(), ParameterSpace(nn.Linear(1, 1)), 4)
    images, labels = torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.zeros(5, dtype=torch.long)
    scores = evaluate(task, torch.zeros(2, dtype=torch.float64), images, labels)
    assert seen == [(192, 1, 24, 3)]
    assert scores["accuracy"] == float((images.flatten(1)[:, :4].argmax(1) == 0).double().mean())

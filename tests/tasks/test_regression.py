"""Regression: losses and metrics by hand."""

import numpy as np
import pytest
import torch

from fedskew.tasks.regression import Regression

ERRORS = [-3.0, -0.5, 0.0, 0.5, 3.0]
"""Target minus prediction."""


def losses(task: Regression) -> list[float]:
    y = torch.tensor(ERRORS, dtype=torch.float64) + 7
    outputs = torch.full((len(y), 1), 7.0, dtype=torch.float64)
    return task.loss(outputs, y).tolist()


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (Regression(), [4.5, 0.125, 0, 0.125, 4.5]),
        (Regression(error="absolute"), [3, 0.5, 0, 0.5, 3]),
        (Regression(error="huber", delta=2), [4, 0.125, 0, 0.125, 4]),
        (Regression(error="quantile", q=0.9), [0.3, 0.05, 0, 0.45, 2.7]),
    ],
)
def test_losses_by_hand(task: Regression, expected: list[float]) -> None:
    assert losses(task) == pytest.approx(expected, rel=1e-15, abs=1e-15)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_the_constant_with_the_least_quantile_loss_is_the_quantile(q: float) -> None:
    y = torch.tensor(np.random.default_rng(0).normal(size=101))
    task = Regression(error="quantile", q=q)
    loss = [float(task.loss(torch.full((101, 1), c, dtype=torch.float64), y).mean()) for c in y.tolist()]
    assert float(y[int(np.argmin(loss))]) == np.quantile(y.numpy(), q, method="inverted_cdf")


def test_metrics_are_in_the_unit_of_the_target_and_exact_over_parts() -> None:
    rng = np.random.default_rng(1)
    y, outputs = torch.tensor(50 + 9 * rng.normal(size=40)), torch.tensor(rng.normal(size=(40, 1)))
    task = Regression().fitted(y.numpy())
    wrong = y.numpy() - task.predictions(outputs).numpy()
    expected = {
        "rmse": np.sqrt((wrong**2).mean()),
        "mae": np.abs(wrong).mean(),
        "r2": 1 - (wrong**2).sum() / ((y.numpy() - y.numpy().mean()) ** 2).sum(),
    }
    parts = [task.scores(outputs[part], y[part]) for part in (slice(0, 3), slice(3, 40))]
    means = {name: sum(part[name].sum() for part in parts) / 40 for name in parts[0]}
    found = task.measured(means)
    assert {name: float(found[name]) for name in expected} == pytest.approx(expected, rel=1e-12)


def test_r2_of_targets_far_from_their_centre() -> None:
    """In float32, their squares have an error larger than their variance."""
    y = torch.tensor(np.random.default_rng(2).normal(size=500) + 3000).float()
    task, wrong = Regression(center=0, scale=1), 0.5 * torch.tensor(np.random.default_rng(3).normal(size=500)).float()
    means = {name: values.double().mean() for name, values in task.scores((y + wrong)[:, None], y).items()}
    expected = 1 - float((y + wrong - y).double().square().mean() / y.double().var(correction=0))
    assert float(task.measured(means)["r2"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("target", [2.0, 1.6180339])
def test_r2_is_left_out_where_targets_do_not_vary(target: float, rows: int) -> None:
    task, y = Regression(center=0, scale=1), torch.full((rows,), target)
    scores = task.scores(y[:, None] - 1, y)
    found = task.measured({name: values.double().mean() for name, values in scores.items()})
    assert bool(found["r2"].isnan())
    assert float(found["rmse"]) == pytest.approx(1.0)

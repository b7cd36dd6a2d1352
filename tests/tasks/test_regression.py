"""Regression: losses and metrics by hand, training as on pooled rows, and one clear line for what it does not take."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedskew.algorithms import ALGORITHMS, FedAvg
from fedskew.core.algorithm import Algorithm, local_loss
from fedskew.core.records import Batch
from fedskew.core.task import ModelTask
from fedskew.core.trees import ParameterSpace
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.execution.build import setup_of
from fedskew.experiment.config import Experiment
from fedskew.loop.evaluate import evaluate, evaluate_clients
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local
from fedskew.slots import Everyone
from fedskew.tasks.regression import Regression
from tests.methods import federation, first
from tests.small import TinyNet, play

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


def test_r2_is_left_out_where_targets_do_not_vary() -> None:
    task, y = Regression(center=0, scale=1), torch.full((4,), 2.0)
    scores = task.scores(torch.ones(4, 1), y)
    found = task.measured({name: values.mean() for name, values in scores.items()})
    assert bool(found["r2"].isnan())
    assert float(found["rmse"]) == 1.0


# training


def of_numbers(algorithm: Algorithm | str, task: Regression | None = None, **changes) -> Federation:
    """The ragged clients of other tests, whose first input is the number to predict, with a little noise."""
    fed = federation(algorithm if isinstance(algorithm, str) else "fedavg", **changes)
    net = TinyNet(outputs=1).double()
    y = fed.x @ torch.arange(1.0, 7.0, dtype=torch.float64) + torch.sin(fed.x[:, 0])
    kind = (task or Regression()).fitted(y.numpy())
    data = fed.server_data
    assert data is not None
    return replace(
        fed,
        algorithm=fed.algorithm if isinstance(algorithm, str) else algorithm,
        task=ModelTask(kind, net, ParameterSpace(net), 1),
        y=y,
        server_data=data._replace(y=data.x[:, 0]),
    )


START = torch.randn(65, generator=torch.Generator().manual_seed(5), dtype=torch.float64) / 2


@pytest.mark.parametrize("error", ["squared", "absolute", "huber", "quantile"])
def test_one_full_batch_step_of_all_clients_is_gradient_descent_on_the_pooled_rows(error) -> None:
    local = Local(epochs=1, batch_size="all")
    fed = of_numbers(FedAvg(), Regression(error=error), solver="sgd", local=local, selection=Everyone())
    w, pooled = START.clone(), Batch(fed.x, fed.y, torch.ones(len(fed.y), dtype=torch.float64))
    for outcome in play(fed, START, 4):
        w = w - 0.1 * torch.func.grad(lambda v: local_loss(fed.task, v, pooled))(w)
        torch.testing.assert_close(outcome.server.x, w, rtol=1e-12, atol=1e-13)


NUMBERS = replace(setup_of(Experiment(task="regression")), server_rows=True, groups=False)
CLASS_FREE = [name for name in ALGORITHMS if not first(name).accepts(NUMBERS)]


FEW = ("fedavg", "scaffold", "moon")


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in CLASS_FREE])
def test_stacked_equals_sequential(name: str) -> None:
    fed = of_numbers(first(name))
    one, other = (play(fed, START, 2, engine=engine)[-1].server.x for engine in (Sequential(), Stacked()))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_padding_changes_nothing() -> None:
    fed = of_numbers(FedAvg())
    x, y = fed.x[:9], fed.y[:9]
    real = Batch(x, y, torch.ones(9, dtype=torch.float64))
    padded = Batch(torch.cat([x, 1e3 * x]), torch.cat([y, -y]), torch.cat([real.mask, 0 * real.mask]))
    assert float(local_loss(fed.task, START, padded)) == pytest.approx(float(local_loss(fed.task, START, real)), 1e-14)


def test_clients_metrics_add_up_to_metrics_of_all_rows() -> None:
    fed = of_numbers(FedAvg())
    means = evaluate_clients(fed.task, START, fed.x, fed.y, fed.partition, fed.clients)
    share = torch.tensor(fed.partition.sizes).double() / len(fed.y)
    over_all = fed.task.measured({name: (share * values).sum() for name, values in means.items()})
    whole = evaluate(fed.task, START, fed.x, fed.y)
    assert {name: float(value) for name, value in over_all.items()} == pytest.approx(whole, rel=1e-12)


def test_methods_that_need_classes_are_refused() -> None:
    assert {"fedlc", "fedntd", "fedproc", "fedga-alignment", "fedsol", "dualmetric"}.isdisjoint(CLASS_FREE)
    assert {"fedavg", "scaffold", "fedprox", "moon", "ditto", "ifca", "qfedavg", "krum"} <= set(CLASS_FREE)

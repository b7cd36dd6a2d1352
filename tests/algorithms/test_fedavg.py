"""FedAvg and local SGD."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedskew.algorithms import FedAvg
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.slots import Momentum, ServerSgd, Sgd
from tests.reference import (
    Batches,
    assert_close,
    full_gradient,
    ragged,
    real_batches,
    sized_pair,
    torch_sgd,
    train_plain,
    trajectory,
)
from tests.small import RAGGED, X0, Linear, Quadratic, exact_clients, play

FULL_BATCH = Local(epochs=1, batch_size="all")


def test_golden_round_with_a_shorter_last_batch() -> None:
    # h = 1 everywhere, x = 1, eta = 0.1. Client 1 has the row b = 0, client 2 the batches b = (1, 3) and b = (5)
    # client 1: 1 - 0.1 (1 - 0)       = 0.9
    # client 2: 1 - 0.1 (1 - (1+3)/2) = 1.1,  then 1.1 - 0.1 (1.1 - 5) = 1.49
    # samples:  (1/4) 0.9 + (3/4) 1.49 = 0.225 + 1.1175 = 1.3425;   uniform: (0.9 + 1.49) / 2 = 1.195
    rows = [[1.0, 0.0], [1.0, 1.0], [1.0, 3.0], [1.0, 5.0]]
    planner = Batches({0: [[0]], 1: [[1, 2], [3]]})
    for weighting, expected in (("samples", 1.3425), ("uniform", 1.195)):
        fed = exact_clients(Quadratic(), rows, (1, 2), FedAvg(weighting=weighting), lr=0.1, sizes=[1, 3])
        assert_close(play(replace(fed, planner=planner), [1.0], 1)[0].server.x, [expected])


def test_golden_two_rounds_with_a_server_rate() -> None:
    # gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps, eta_g = 1/2, samples 1/4 and 3/4
    # round 0: 1 -> 0.9 -> 0.81 (-0.19);  1 -> 1.8 -> 2.28 (+1.28);  x = 1 + (-0.0475 + 0.96) / 2 = 1.45625
    # round 1: -0.19 x = -0.2766875;  (1 - 0.6^2) (3 - x) = 0.64 * 1.54375 = 0.988
    #          x = 1.45625 + (0.25 * -0.2766875 + 0.75 * 0.988) / 2 = 1.45625 + 0.3359140625
    outcomes = play(sized_pair(FedAvg(), server=ServerSgd(lr=0.5)), [1.0], 2)
    assert_close(trajectory(outcomes)[:, 0], [1.45625, 1.7921640625])


@pytest.mark.parametrize("sizes", [[99], [33, 33, 33], RAGGED, [1] * 99], ids=len)
def test_fedsgd_is_gradient_descent_on_the_pooled_data_for_any_partition(sizes: list[int]) -> None:
    fed = ragged(FedAvg(), local=FULL_BATCH, sizes=sizes, solver=Sgd(lr=0.5))
    w = X0
    for outcome in play(fed, X0, 3):
        w = w - 0.5 * full_gradient(w, fed.x, fed.y)
        assert_close(outcome.server.x, w)


@pytest.mark.parametrize("steps", [1, 5])
def test_local_sgd_takes_independent_batches_between_uniform_means(steps: int) -> None:
    local = Local(steps=steps, batch_size=4, batches="independent")
    fed = ragged(FedAvg(weighting="uniform"), local=local)
    w = X0
    for t, outcome in enumerate(play(fed, X0, 3)):
        plans = [real_batches(fed, t, k) for k in range(len(RAGGED))]
        assert all(len(plan) == steps for plan in plans)
        w = torch.stack([train_plain(w, plan, torch_sgd(fed.solver))[0] for plan in plans]).mean(0)
        assert_close(outcome.server.x, w)


def test_independent_batches_are_drawn_with_replacement_anew_each_step_round_and_client() -> None:
    planner = SeededPlanner(Local(steps=200, batch_size=4, batches="independent"), 0)
    rows = np.arange(100, 105)
    plan = planner.train(0, 0, rows)
    assert plan.index.shape == (200, 4)
    assert plan.mask.all()
    counts = np.bincount(plan.index.ravel() - 100, minlength=5)
    assert counts.sum() == 800
    assert (abs(counts - 160) < 5 * np.sqrt(800 * 0.2 * 0.8)).all()
    assert any(len(set(batch)) < 4 for batch in plan.index.tolist())
    for other in (planner.train(1, 0, rows), planner.train(0, 1, rows)):
        assert (other.index != plan.index).any()
    assert (planner.train(0, 0, rows).index == plan.index).all()


def test_epochs_reshuffle_every_row_once_and_keep_the_last_batch() -> None:
    rows = np.arange(50, 67)
    plan = SeededPlanner(Local(epochs=3, batch_size=7), 0).train(0, 0, rows)
    assert plan.mask.sum(1).tolist() == [7, 7, 3] * 3
    epochs = [plan.index[i : i + 3][plan.mask[i : i + 3] == 1].tolist() for i in (0, 3, 6)]
    assert all(sorted(epoch) == rows.tolist() for epoch in epochs)
    assert len({tuple(order) for order in [*epochs, rows.tolist()]}) == 4
    cut = SeededPlanner(Local(steps=5, batch_size=7), 0).train(0, 0, rows)
    assert (cut.index == plan.index[:5]).all()
    assert (cut.mask == plan.mask[:5]).all()


def test_server_momentum_composes_with_fedavg() -> None:
    """v <- 0.5 v + Delta on a constant Delta = -0.2: steps -0.2, -0.3, -0.35."""
    fed = exact_clients(Linear(), [[1.0], [3.0]], (1, 1), FedAvg(), lr=0.1, server=Momentum(beta=0.5))
    assert_close(trajectory(play(fed, [0.0], 3))[:, 0], [-0.2, -0.5, -0.85])

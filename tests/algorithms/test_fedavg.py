"""FedAvg and local SGD."""

import numpy as np
import pytest
import torch

from fedskew.algorithms import FedAvg
from fedskew.loop.plan import Local, SeededPlanner
from tests.reference import assert_close, ragged, real_batches, torch_sgd, train_plain
from tests.small import RAGGED, X0, play


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

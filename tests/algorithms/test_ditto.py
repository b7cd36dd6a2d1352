"""Ditto: the personal models beside FedAvg's global one."""

import numpy as np
import pytest

from fedskew.algorithms import Ditto
from fedskew.core.errors import Diverged
from fedskew.engine.sequential import Sequential
from fedskew.loop.personal import evaluate_personal
from fedskew.loop.plan import Local
from fedskew.slots import AdamW, Sgd
from tests.reference import (
    PAIR,
    apart,
    assert_close,
    ragged,
    real_batches,
    run,
    square_distance,
    state_of,
    torch_sgd,
    train_plain,
    trajectory,
)
from tests.small import X0, Quadratic, exact_clients, play


@pytest.mark.parametrize("solver", [Sgd(lr=0.1), Sgd(lr=0.05, momentum=0.9, weight_decay=0.1, lr_decay=0.9)])
@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_against_an_ordinary_loop_with_an_optimiser_of_its_own(solver, lam: float) -> None:
    """lambda = 0 is local-only training, with momentum that starts afresh in every round."""
    fed = ragged(Ditto(lam=lam), solver=solver)
    outcomes, states = run(fed, X0, 3)
    anchors = [X0, *trajectory(outcomes)]
    for k in (1, 3, 4):
        v = X0
        for t in range(3):
            v, _ = train_plain(
                v,
                real_batches(fed, t, k),
                torch_sgd(solver, t),
                extra=lambda net, _, x=anchors[t]: lam / 2 * square_distance(net, x),
            )
        assert_close(state_of(states, "v", 7, X0)[k], v)
        scores = evaluate_personal(fed, Sequential(), outcomes[-1].server, states, np.array([k]))
        rows = fed.partition.rows(k)
        assert_close(scores["loss"], [float(fed.task.loss(fed.task.logits(v, fed.x[rows]), fed.y[rows]).mean())])


def test_adam_works_on_both_models() -> None:
    fed = ragged(Ditto(lam=0.0), solver=AdamW(lr=0.01), local=Local(steps=3, batch_size="all"), sizes=[9])
    outcome = play(fed, X0, 1)[0]
    # one client without a pull: both models are the same training
    assert_close(outcome.done.states["v"][0], X0 + outcome.done.uploads.delta[0])
    assert apart(outcome.done.states["v"][0], X0, 1e-3)


def test_a_personal_model_that_diverges_is_found_in_its_round() -> None:
    """The global model converges. The personal error grows by a factor 3.5 each step, because eta (lambda + 4) = 4.5."""
    fed = exact_clients(Quadratic(), PAIR, (700, 700), Ditto(lam=41.0), lr=0.1)
    with pytest.raises(Diverged, match=r"round 1, client 0 and 1 more: its own model.* lr x lam = 4.1"):
        play(fed, [1.0], 1)

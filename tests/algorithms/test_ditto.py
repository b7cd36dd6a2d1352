"""Ditto: the personal models beside FedAvg's global one."""

import numpy as np
import pytest

from fedskew.algorithms import Ditto
from fedskew.core.errors import Diverged
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.loop.personal import evaluate_personal
from fedskew.loop.plan import Local
from fedskew.slots import AdamW, Sgd
from tests.reference import (
    PAIR,
    apart,
    assert_close,
    f64,
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

# golden rounds: gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps, lambda = 1/2
#
# round 0   w_1 = 0.81, w_2 = 2.28,  x = 1.545
#           v_1: d = 1 -> 0.9;   d = 0.9 - 0.05 = 0.85 -> 0.815
#           v_2: d = -8 -> 1.8;  d = -4.8 + 0.4 = -4.4 -> 2.24
# round 1   v_1: d = 0.815 - 0.365 = 0.45 -> 0.77;       d = 0.77 - 0.3875 = 0.3825 -> 0.73175
#           v_2: d = -3.04 + 0.3475 = -2.6925 -> 2.50925;  d = -1.963 + 0.482125 = -1.480875 -> 2.6573375


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=repr)
def test_golden_two_rounds(engine) -> None:
    fed = exact_clients(Quadratic(), PAIR, (2, 2), Ditto(lam=0.5), lr=0.1)
    states = ClientStates()
    first = play(fed, [1.0], 1, engine, states=states)[-1]
    assert_close(first.server.x, [1.545])
    assert_close(state_of(states, "v", 2, f64([0.0]))[:, 0], [0.815, 2.24])
    server = play(fed, [1.0], 2, engine, server=first.server, states=states)[-1].server
    v = [0.73175, 2.6573375]
    assert_close(state_of(states, "v", 2, f64([0.0]))[:, 0], v)
    scores = evaluate_personal(fed, engine, server, states, np.arange(2))
    assert_close(scores["loss"], [v[0] ** 2 / 2, 2 * (v[1] - 3) ** 2])


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

"""FedProx, explicit and implicit."""

import pytest
import torch

from fedskew.algorithms import FedProx
from fedskew.core.errors import Diverged
from fedskew.slots import Sgd
from tests.reference import assert_close, matrices, matrix_clients, sized_pair
from tests.small import Quadratic, exact_clients, play

FORMS = ["explicit", "implicit"]


# golden rounds: gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps, mu = 2, samples 1/4 and 3/4


def test_golden_round_explicit() -> None:
    # client 1: 1 - 0.1 * 1    = 0.9,  0.9 - 0.1 (0.9 + 2 (0.9 - 1))   = 0.9 - 0.07 = 0.83
    # client 2: 1 - 0.1 * (-8) = 1.8,  1.8 - 0.1 (-4.8 + 2 (1.8 - 1))  = 1.8 + 0.32 = 2.12
    # x = 0.25 * 0.83 + 0.75 * 2.12 = 0.2075 + 1.59
    assert_close(play(sized_pair(FedProx(mu=2.0)), [1.0], 1)[0].server.x, [1.7975])


def test_golden_round_implicit() -> None:
    # w <- (w - eta g + 0.2 x) / 1.2
    # client 1: (1 - 0.1 + 0.2) / 1.2 = 11/12,  (0.9 * 11/12 + 0.2) / 1.2 = 1.025 / 1.2 = 41/48
    # client 2: (1 + 0.8 + 0.2) / 1.2 = 5/3,    (5/3 + 0.4 * 4/3 + 0.2) / 1.2 = 2.4 / 1.2 = 2
    # x = 0.25 * 41/48 + 0.75 * 2
    assert_close(play(sized_pair(FedProx(mu=2.0, step="implicit")), [1.0], 1)[0].server.x, [41 / 192 + 1.5])


@pytest.mark.parametrize("form", FORMS)
def test_quadratics(form: str) -> None:
    """Delta_k = -[I - C^tau] (A_k + mu I)^-1 A_k (w - b_k) with the form's contraction C."""
    a, b = matrices(3)
    steps, lr, mu, eye = (1, 4, 7), 0.2, 0.8, torch.eye(2).double()
    fed = matrix_clients(a, b, steps, FedProx(mu=mu, step=form), lr=lr)
    for outcome in play(fed, [2.0, -1.0], 3):
        x = outcome.work.view.x
        for k in range(3):
            step = eye - lr * (a[k] + mu * eye) if form == "explicit" else (eye - lr * a[k]) / (1 + lr * mu)
            settled = torch.linalg.solve(a[k] + mu * eye, a[k] @ (x - b[k]))
            assert_close(outcome.done.uploads.delta[k], -(eye - torch.linalg.matrix_power(step, steps[k])) @ settled)


def test_a_divergent_explicit_step_is_reported_with_its_cause() -> None:
    fed = exact_clients(Quadratic(), [[2.0, 0.0]], (400,), FedProx(mu=1000.0), lr=0.1)
    with pytest.raises(Diverged, match="mu"):
        play(fed, [1.0], 1)


@pytest.mark.parametrize("form", FORMS)
def test_weight_decay_belongs_to_the_local_loss(form: str) -> None:
    """The local limit solves h (w - b) + lambda w + mu (w - x) = 0: decay must not change its weight with the form."""
    fed = exact_clients(
        Quadratic(),
        [[2.0, 3.0]],
        (200,),
        FedProx(mu=4.0, step=form),
        lr=0.1,
        solver=Sgd(lr=0.1, weight_decay=0.5),
    )
    assert_close(play(fed, [1.0], 1)[0].server.x, [(2 * 3 + 4 * 1) / (2 + 0.5 + 4)])

"""FedProx, explicit and implicit."""

import pytest
import torch

from fedskew.algorithms import FedAvg, FedProx
from fedskew.core.errors import Diverged
from fedskew.loop.plan import Local
from fedskew.slots import ServerSgd, Sgd
from tests.reference import (
    apart,
    assert_close,
    decreasing,
    f64,
    local_models,
    matrices,
    matrix_clients,
    ragged,
    run,
    sized_pair,
    trajectory,
)
from tests.small import X0, Linear, Quadratic, exact_clients, play

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


# closed forms


@pytest.mark.parametrize("form", FORMS)
def test_linear_losses(form: str) -> None:
    """Explicit -eta g (1 - (1 - eta mu)^tau) / (eta mu), implicit -g/mu (1 - (1 + eta mu)^-tau)."""
    g, steps, lr, mu = [[1.0, -2.0], [0.5, 3.0]], (3, 8), 0.1, 1.5
    fed = exact_clients(Linear(), g, steps, FedProx(mu=mu, step=form), lr=lr, server=ServerSgd(lr=0.7))
    if form == "explicit":
        response = [(1 - (1 - lr * mu) ** t) / mu for t in steps]
    else:
        response = [(1 - (1 + lr * mu) ** -t) / mu for t in steps]
    for outcome in play(fed, [0.3, -4.0], 3):
        assert_close(outcome.done.uploads.delta, -f64(response)[:, None] * f64(g))


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


@pytest.mark.parametrize("form", FORMS)
def test_many_steps_solve_the_proximal_problem(form: str) -> None:
    """w_k = (A_k + mu I)^-1 (A_k b_k + mu w)."""
    a, b = matrices(2)
    mu, eye = 0.8, torch.eye(2).double()
    x = f64([2.0, -1.0])
    ends = local_models(play(matrix_clients(a, b, (150, 150), FedProx(mu=mu, step=form), lr=0.25), x, 1)[0])
    for k in range(2):
        assert_close(ends[k], torch.linalg.solve(a[k] + mu * eye, a[k] @ b[k] + mu * x), 1e-10)


# with eta = 1 / (a + mu) a single explicit step solves the scalar problem, a = 2, b = 3
@pytest.mark.parametrize(("form", "lr", "steps"), [("explicit", 0.2, 1), ("implicit", 0.5, 1), ("implicit", 0.3, 60)])
def test_one_client_with_exact_solves_is_the_proximal_point_method(form: str, lr: float, steps: int) -> None:
    """The error multiplies by mu / (a + mu) in each round."""
    fed = exact_clients(Quadratic(), [[2.0, 3.0]], (steps,), FedProx(mu=3.0, step=form), lr=lr)
    expected = [3 + (7.0 - 3) * 0.6 ** (t + 1) for t in range(5)]
    assert_close(trajectory(play(fed, [7.0], 5))[:, 0], expected)


# reductions


def test_the_first_explicit_step_does_not_depend_on_mu() -> None:
    one = Local(steps=1, batch_size=8)
    first, second = (
        play(ragged(FedProx(mu=5.0), local=Local(steps=s, batch_size=8)), X0, 1)[0].server.x for s in (1, 2)
    )
    assert_close(first, play(ragged(FedAvg(), local=one), X0, 1)[0].server.x)
    assert apart(second, play(ragged(FedAvg(), local=Local(steps=2, batch_size=8)), X0, 1)[0].server.x)


def test_the_first_implicit_step_is_shortened_by_one_plus_eta_mu() -> None:
    one = Local(steps=1, batch_size=8)
    plain, prox = (
        play(ragged(a, local=one), X0, 1)[0].done.uploads.delta for a in (FedAvg(), FedProx(mu=5.0, step="implicit"))
    )
    assert_close(prox, plain / 1.5)


@pytest.mark.parametrize("form", FORMS)
def test_the_anchor_is_this_rounds_global_model_not_the_first(form: str) -> None:
    """With a linear loss all rounds take the same step. If the anchor stayed at x0, later steps would be shorter."""
    fed = exact_clients(Linear(), [[1.0]], (4,), FedProx(mu=2.0, step=form), lr=0.2)
    moves = trajectory(play(fed, [0.0], 4))[:, 0]
    assert_close(moves.diff(), moves[0].expand(3))


# strength, stability


@pytest.mark.parametrize("form", FORMS)
def test_updates_shrink_as_mu_grows(form: str) -> None:
    # eta mu + eta lambda_max < 1 throughout
    a, b = matrices(2)
    assert 0.1 * (torch.linalg.eigvalsh(a).max() + 6) < 1
    lengths = []
    for mu in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0):
        fed = matrix_clients(a, b, (6, 6), FedProx(mu=mu, step=form), lr=0.1)
        lengths.append(play(fed, [2.0, -1.0], 1)[0].measures["update_norm"])
    for k in range(2):
        assert decreasing([float(row[k]) for row in lengths])


@pytest.mark.parametrize("eta_mu", [0.5, 1.5, 1.9])
def test_the_explicit_proximal_part_contracts_by_one_minus_eta_mu(eta_mu: float) -> None:
    """Towards -g/mu, step by step; it overshoots once eta mu > 1."""
    mu, g = eta_mu / 0.1, 3.0
    ends = [
        float(play(exact_clients(Linear(), [[g]], (t,), FedProx(mu=mu), lr=0.1), [0.0], 1)[0].server.x)
        for t in range(1, 6)
    ]
    errors = f64([0.0, *ends]) + g / mu
    assert_close(errors[1:], (1 - eta_mu) * errors[:-1])
    assert bool((errors < 0).any()) is (eta_mu > 1)


# h = 2, so the limits are eta (mu + 2) = 2 and 2 eta = 2 + eta mu
@pytest.mark.parametrize(
    ("form", "lr", "mu", "grows"),
    [
        ("explicit", 0.1, 17.9, False),
        ("explicit", 0.1, 18.1, True),
        ("implicit", 0.1, 1e6, False),
        ("implicit", 0.99, 0.0, False),
        ("implicit", 1.49, 0.67, False),
        ("implicit", 1.51, 0.67, True),
    ],
)
def test_limit_of_stability(form: str, lr: float, mu: float, grows: bool) -> None:
    def distance(steps: int) -> float:
        """Return the distance to the proximal solution."""
        fed = exact_clients(Quadratic(), [[2.0, 0.0]], (steps,), FedProx(mu=mu, step=form), lr=lr)
        return abs(float(play(fed, [1.0], 1)[0].server.x) - mu / (2 + mu))

    assert (distance(40) > distance(20)) is grows


def test_a_divergent_explicit_step_is_reported_with_its_cause() -> None:
    fed = exact_clients(Quadratic(), [[2.0, 0.0]], (400,), FedProx(mu=1000.0), lr=0.1)
    with pytest.raises(Diverged, match="mu"):
        play(fed, [1.0], 1)


def test_a_large_implicit_mu_freezes_the_model() -> None:
    fed = ragged(FedProx(mu=1e12, step="implicit"))
    assert_close(play(fed, X0, 2)[-1].server.x, X0, 1e-10)


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


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_kept_between_rounds(form: str) -> None:
    _, states = run(sized_pair(FedProx(step=form)), [1.0], 2)
    assert states.export()[1] == {}

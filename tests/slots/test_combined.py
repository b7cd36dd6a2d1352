"""Local solvers, server optimisers and selection of clients."""

from __future__ import annotations

from dataclasses import fields, replace
from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.algorithms import FedAvg
from fedskew.core.errors import BadInput
from fedskew.slots import Adagrad, Adam, AdamW, Everyone, Momentum, ServerSgd, Sgd, Uniform, Yogi
from tests.reference import apart, assert_close, f64, ragged, trajectory
from tests.small import Linear, exact_clients, play

G = torch.Generator().manual_seed(23)
DIM = 7
START = torch.randn(DIM, generator=G, dtype=torch.float64)
DELTAS = torch.randn(60, DIM, generator=G, dtype=torch.float64)
"""Movements of 60 rounds, as a server optimiser receives them."""


def walk(optimiser, deltas: Tensor = DELTAS, start: Tensor = START) -> Tensor:
    """The model after each round, (R, P)."""
    x, opt, path = start, optimiser.init(start), []
    for delta in deltas:
        x, opt = optimiser.update(-delta, opt, x)
        path.append(x)
    return torch.stack(path)


def second_moments(optimiser, deltas: Tensor = DELTAS) -> Tensor:
    opt, seen = optimiser.init(START), []
    seen.append(opt["v"])
    for delta in deltas:
        _, opt = optimiser.update(-delta, opt, START)
        seen.append(opt["v"])
    return torch.stack(seen)


def torch_walk(make, deltas: Tensor = DELTAS, before_step=None) -> Tensor:
    """The same with an optimiser of torch, whose gradient is minus the movement."""
    w = START.clone().requires_grad_()
    optimiser, path = make([w]), []
    for t, delta in enumerate(deltas):
        if before_step:
            before_step(optimiser, t + 1)
        w.grad = -delta
        optimiser.step()
        path.append(w.detach().clone())
    return torch.stack(path)


# server: averaging and momentum


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0, 2.5])
def test_server_sgd_adds_the_scaled_movement(rate: float) -> None:
    assert_close(walk(ServerSgd(lr=rate)), START + rate * DELTAS.cumsum(0))


@pytest.mark.parametrize("form", ["heavy-ball", "nesterov", "ema"])
def test_without_beta_every_momentum_is_plain(form: str) -> None:
    assert_close(walk(Momentum(lr=0.7, beta=0.0, form=form)), walk(ServerSgd(lr=0.7)))


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
def test_momentum_against_torch(beta: float) -> None:
    for form, nesterov in (("heavy-ball", False), ("nesterov", True)):
        theirs = torch_walk(lambda p, n=nesterov: torch.optim.SGD(p, lr=0.3, momentum=beta, nesterov=n))
        assert_close(walk(Momentum(lr=0.3, beta=beta, form=form)), theirs)


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_heavy_ball_at_a_scaled_rate_is_the_ema_form(beta: float) -> None:
    heavy, ema = Momentum(lr=0.3 * (1 - beta), beta=beta), Momentum(lr=0.3, beta=beta, form="ema")
    assert_close(walk(heavy), walk(ema))
    assert apart(walk(Momentum(lr=0.3, beta=beta)), walk(ema))


@pytest.mark.parametrize("beta", [0.6, 0.9])
def test_momentum_on_linear_losses(beta: float) -> None:
    """w^r - w^0 = eta_g sum_{j=1..r} sum_{i<j} beta^i Delta through whole rounds of FedAvg; Nesterov one term ahead."""
    delta = -0.1 * 3 * (1.0 * 1 + 3 * -2.0) / 4
    rows = [[1.0], *[[-2.0]] * 3]
    for form, ahead in (("heavy-ball", 0), ("nesterov", 1)):
        server = Momentum(lr=0.7, beta=beta, form=form)
        fed = exact_clients(Linear(), rows, (3, 3), FedAvg(), lr=0.1, sizes=[1, 3], server=server)
        sums = [sum(beta**i for i in range(j + ahead)) for j in range(1, 7)]
        assert_close(trajectory(play(fed, [0.0], 6))[:, 0], 0.7 * delta * f64(sums).cumsum(0))


# server: adaptive


def test_golden_adaptive_steps() -> None:
    # Delta = 0.3 then -0.1; lr 1, beta1 = 1/2, beta2 = 3/4, tau = 0.1, v_{-1} = 0.01
    # m = 0.15, then 0.075 - 0.05 = 0.025
    # Adagrad v = 0.01 + 0.09 = 0.1, then 0.11
    # Adam    v = 0.0075 + 0.0225 = 0.03, then 0.0225 + 0.0025 = 0.025
    # Yogi    v = 0.01 + 0.0225 = 0.0325 (0.01 < 0.09), then 0.0325 - 0.0025 = 0.03 (0.0325 > 0.01)
    common = {"lr": 1.0, "beta1": 0.5, "tau": 0.1}
    for made, v in (
        (Adagrad(**common), (0.1, 0.11)),
        (Adam(**common, beta2=0.75), (0.03, 0.025)),
        (Yogi(**common, beta2=0.75), (0.0325, 0.03)),
    ):
        first = 0.15 / (sqrt(v[0]) + 0.1)
        path = walk(made, f64([[0.3], [-0.1]]), f64([2.0]))
        assert_close(path[:, 0], [2 + first, 2 + first + 0.025 / (sqrt(v[1]) + 0.1)])


@pytest.mark.parametrize("optimiser", [Adam, Yogi])
@pytest.mark.parametrize(("initial_v", "divisor"), [("zero", 1), ("tau-squared", 2)])
def test_frozen_second_moment_is_fedavg(optimiser, initial_v: str, divisor: int) -> None:
    """beta1 = 0, beta2 = 1: the rate is lr / tau from v = 0, lr / (2 tau) from v = tau^2."""
    made = optimiser(lr=0.02, beta1=0.0, beta2=1.0, tau=0.05, initial_v=initial_v)
    assert_close(walk(made), walk(ServerSgd(lr=0.02 / (divisor * 0.05))))


@pytest.mark.parametrize("initial_v", ["zero", "tau-squared"])
def test_adam_without_memory_divides_by_the_movement(initial_v: str) -> None:
    def step(tau: float) -> Tensor:
        return walk(Adam(lr=0.3, beta1=0.0, beta2=0.0, tau=tau, initial_v=initial_v), DELTAS[:1])[0] - START

    delta = DELTAS[0]
    assert_close(step(0.1), 0.3 * delta / (delta.abs() + 0.1))
    assert_close(step(1e-15), 0.3 * delta.sign())
    error = step(1e4) / (0.3 / 1e4 * delta) - 1
    assert bool((error.abs() <= delta.abs() / 1e4 + 1e-9).all())


@pytest.mark.parametrize("optimiser", [Adam, Yogi])
def test_a_movement_whose_square_is_v_leaves_v(optimiser) -> None:
    v = second_moments(optimiser(tau=0.25), f64([[0.25, -0.25] * 3 + [0.25]] * 5))
    assert_close(v, torch.full_like(v, 0.0625))


def test_yogi_stays_positive_and_changes_by_a_bounded_amount() -> None:
    deltas = DELTAS * torch.logspace(0, -6, len(DELTAS), dtype=torch.float64)[:, None]
    for beta2 in (0.0, 0.5, 0.99):
        v = second_moments(Yogi(beta2=beta2), deltas)
        square, before, change = deltas**2, v[:-1], v.diff(dim=0)
        assert bool((v >= 0).all())
        above = before > square
        assert bool(above.any())
        assert bool((v[1:][above] > beta2 * square[above]).all())
        assert_close(change.abs(), (1 - beta2) * square)
        assert bool((change.sign() == (square - before).sign()).all())


def test_adams_second_moment_moves_by_a_share_of_the_gap() -> None:
    v = second_moments(Adam(beta2=0.9))
    assert_close(v.diff(dim=0), 0.1 * (DELTAS**2 - v[:-1]))


def test_adagrads_second_moment_sums_the_squares() -> None:
    v = second_moments(Adagrad(tau=0.1))
    assert_close(v[1:], 0.01 + (DELTAS**2).cumsum(0))
    assert bool((v.diff(dim=0) >= 0).all())


def test_adam_with_frozen_zero_v_is_momentum_in_ema_form() -> None:
    adam = Adam(lr=0.02, beta1=0.8, beta2=1.0, tau=0.05, initial_v="zero")
    assert_close(walk(adam), walk(Momentum(lr=0.4, beta=0.8, form="ema")))


@pytest.mark.parametrize("optimiser", [Adagrad, Adam, Yogi])
@pytest.mark.parametrize("initial_v", ["zero", "tau-squared"])
def test_coordinates_that_do_not_move(optimiser, initial_v: str) -> None:
    """No NaN; such a coordinate changes only by momentum."""
    still = DELTAS.clone()
    still[:, 0] = 0.0
    still[1:, 1] = 0.0
    for beta1 in (0.0, 0.9):
        path = walk(optimiser(beta1=beta1, initial_v=initial_v), still)
        assert bool(path.isfinite().all())
        assert_close(path[:, 0], START[0].expand(len(still)))
        assert (path[1] != path[0])[1] == (beta1 > 0)


def test_adagrad_against_torch() -> None:
    theirs = torch_walk(lambda p: torch.optim.Adagrad(p, lr=0.3, eps=0.01, initial_accumulator_value=0.01**2))
    assert_close(walk(Adagrad(lr=0.3, tau=0.01)), theirs)
    theirs = torch_walk(lambda p: torch.optim.Adagrad(p, lr=0.3, eps=0.01))
    assert_close(walk(Adagrad(lr=0.3, tau=0.01, initial_v="zero")), theirs)


@pytest.mark.parametrize(("beta1", "beta2", "tau"), [(0.9, 0.99, 1e-3), (0.0, 0.9, 0.1), (0.5, 0.999, 1e-8)])
def test_bias_corrected_adam_against_torch(beta1: float, beta2: float, tau: float) -> None:
    """lr sqrt(1 - beta2^j) / (1 - beta1^j) m / (sqrt v + tau) is torch's with eps tau / sqrt(1 - beta2^j), j from 1."""

    def widen(optimiser, j: int) -> None:
        optimiser.param_groups[0]["eps"] = tau / sqrt(1 - beta2**j)

    ours = Adam(lr=0.3, beta1=beta1, beta2=beta2, tau=tau, initial_v="zero", bias_correction=True)
    assert_close(
        walk(ours), torch_walk(lambda p: torch.optim.Adam(p, lr=0.3, betas=(beta1, beta2)), before_step=widen), 1e-11
    )


def test_bias_correction_scales_the_step_and_is_off_by_default() -> None:
    for optimiser in (Adam, Yogi):
        plain, corrected = optimiser(beta1=0.8, beta2=0.95), optimiser(beta1=0.8, beta2=0.95, bias_correction=True)
        paths = [torch.cat([START[None], walk(o)]).diff(dim=0) for o in (plain, corrected)]
        j = f64(range(1, len(DELTAS) + 1))[:, None]
        assert_close(paths[1], paths[0] * (1 - 0.95**j).sqrt() / (1 - 0.8**j), 1e-9)


def test_a_correction_that_makes_no_sense_cannot_be_asked_for() -> None:
    """Adagrad's v sums, so it has no bias to correct; at beta2 = 1 a corrected step would be 0."""
    assert not {"beta2", "bias_correction"} & {f.name for f in fields(Adagrad)}
    for optimiser in (Adam, Yogi):
        with pytest.raises(BadInput, match="beta2 below 1"):
            optimiser(beta2=1.0, bias_correction=True)


@pytest.mark.parametrize(("beta2", "factor"), [(0.99, 1.0), (0.999, sqrt(10))])
def test_size_of_the_first_step_from_zero(beta2: float, factor: float) -> None:
    """(1 - beta1) / sqrt(1 - beta2) uncorrected, 1 corrected, for movements far above tau."""
    for corrected, expected in ((False, factor), (True, 1.0)):
        made = Adam(lr=0.3, beta2=beta2, tau=1e-13, initial_v="zero", bias_correction=corrected)
        assert_close(walk(made, DELTAS[:1])[0] - START, 0.3 * expected * DELTAS[0].sign(), 1e-9)


def test_size_of_the_first_step_from_tau_squared() -> None:
    """(1 - beta1) lr Delta / ((1 + sqrt beta2) tau) for movements far below tau."""
    small = 1e-6 * DELTAS[:1]
    step = walk(Adam(lr=0.3, tau=1.0), small, torch.zeros(DIM, dtype=torch.float64))[0]
    assert_close(step, 0.1 * 0.3 * small[0] / (1 + sqrt(0.99)), 1e-10)


def test_adaptive_servers_move_with_the_clients() -> None:
    """Through whole rounds: a constant movement of 0.6 from v = 0, without momentum."""
    # Delta = -0.1 * 3 * (-2) = 0.6; beta1 = 0, beta2 = 3/4: v = 0.25 * 0.36, then (0.75 * 0.25 + 0.25) 0.36
    server = Adam(lr=0.1, beta1=0.0, beta2=0.75, tau=0.2, initial_v="zero")
    fed = exact_clients(Linear(), [[-2.0]], (3,), FedAvg(), lr=0.1, server=server)
    first = 0.06 / (0.3 + 0.2)
    assert_close(trajectory(play(fed, [1.0], 2))[:, 0], [1 + first, 1 + first + 0.06 / (0.6 * sqrt(0.4375) + 0.2)])


# local solvers


def solve(solver, gradient, steps: int, lr: float, start: Tensor = START) -> Tensor:
    """The path of a solver along ``gradient(w, t)``."""
    w, opt, path = start, solver.init(start), []
    for t in range(steps):
        w, opt = solver.update(gradient(w, t), opt, w, f64(lr))
        path.append(w)
    return torch.stack(path)


def torch_solve(make, gradient, steps: int) -> Tensor:
    w = START.clone().requires_grad_()
    optimiser, path = make([w]), []
    for t in range(steps):
        w.grad = gradient(w.detach(), t)
        optimiser.step()
        path.append(w.detach().clone())
    return torch.stack(path)


CURVATURE = torch.logspace(-1, 1, DIM, dtype=torch.float64)


def noisy(w: Tensor, t: int) -> Tensor:
    return CURVATURE * w + DELTAS[t % len(DELTAS)]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_sgd_against_torch(momentum: float) -> None:
    """Weight decay reaches SGD through the local loop: the oracle tests of whole rounds hold it against torch's."""
    theirs = torch_solve(lambda p: torch.optim.SGD(p, lr=0.05, momentum=momentum), noisy, 300)
    assert_close(solve(Sgd(lr=0.05, momentum=momentum), noisy, 300, 0.05), theirs)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("eps", [1e-8, 0.1])
def test_adamw_against_torch(betas: tuple[float, float], weight_decay: float, eps: float) -> None:
    solver = AdamW(lr=0.02, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
    theirs = torch_solve(
        lambda p: torch.optim.AdamW(p, lr=0.02, betas=betas, eps=eps, weight_decay=weight_decay), noisy, 300
    )
    assert_close(solve(solver, noisy, 300, 0.02), theirs)


def test_defaults_are_torchs() -> None:
    theirs = torch_solve(torch.optim.AdamW, noisy, 50)
    assert_close(solve(AdamW(), noisy, 50, AdamW().lr), theirs)


@pytest.mark.parametrize("solver", [Sgd(momentum=0.9), AdamW()], ids=["sgd", "adamw"])
def test_the_rate_is_the_one_of_the_round_not_the_solvers(solver) -> None:
    assert_close(solve(solver, noisy, 5, 0.007), solve(replace(solver, lr=0.5), noisy, 5, 0.007), 0.0)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 10, 100])
def test_unit_response_is_the_displacement_along_a_constant_gradient(momentum: float, steps: int) -> None:
    solver, one = Sgd(lr=0.05, momentum=momentum), torch.ones(DIM, dtype=torch.float64)
    displacement = solve(solver, lambda w, t: one, steps, 0.05)[-1] - START
    assert_close(displacement, -0.05 * solver.unit_response(f64(steps)) * one, 1e-11)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_respond_is_the_solver_without_weight_decay(momentum: float) -> None:
    solver = Sgd(momentum=momentum, weight_decay=0.7)
    expected = solve(replace(solver, weight_decay=0.0), noisy, 20, 0.03)
    position, velocity, path = START, torch.zeros_like(START), []
    for t in range(20):
        position, velocity = solver.respond(noisy(position, t), velocity, position, f64(0.03))
        path.append(position)
    assert_close(torch.stack(path), expected)


def test_only_sgd_is_linear_in_the_gradients() -> None:
    for solver in (Sgd(momentum=0.9, weight_decay=0.1), AdamW()):
        zero = torch.zeros_like(START)
        once, twice = (solve(solver, lambda w, t, s=s: s * DELTAS[t], 5, 0.1, zero)[-1] for s in (1, 2))
        assert torch.allclose(twice, 2 * once, rtol=1e-12) is solver.linear


# selection


def chosen(selection, num_clients: int, i: int = 0) -> list[int]:
    return selection.select(np.arange(num_clients), np.random.default_rng(i)).tolist()


def test_everyone() -> None:
    assert chosen(Everyone(), 9) == list(range(9))


@pytest.mark.parametrize(
    ("fraction", "num_clients", "size"),
    [
        (0.1, 100, 10),
        (0.29, 100, 29),
        (0.57, 100, 57),
        (0.07, 100, 7),
        (0.1, 9, 1),
        (0.01, 10, 1),
        (0.5, 7, 3),
        (0.999, 10, 9),
        (1.0, 13, 13),
    ],
)
def test_size_of_a_fraction_is_the_floor_and_at_least_one(fraction: float, num_clients: int, size: int) -> None:
    """The floor of the decimal that was written: 0.29 * 100 is 28.999... in floating point."""
    assert len(chosen(Uniform(fraction=fraction), num_clients)) == size


def test_every_two_digit_fraction_of_a_hundred() -> None:
    assert [Uniform(fraction=i / 100).size(100) for i in range(1, 101)] == list(range(1, 101))


@pytest.mark.parametrize("selection", [Uniform(clients=4), Uniform(fraction=0.4)], ids=["clients", "fraction"])
def test_a_cohort_is_sorted_without_repeats_and_repeatable(selection) -> None:
    seen = set()
    for i in range(50):
        cohort = chosen(selection, 10, i)
        assert len(cohort) == len(set(cohort)) == 4
        assert cohort == sorted(cohort)
        assert set(cohort) <= set(range(10))
        assert cohort == chosen(selection, 10, i)
        seen.add(tuple(cohort))
    assert len(seen) > 30


def test_every_client_and_pair_is_chosen_equally_often() -> None:
    rng, draws = np.random.default_rng(0), 4000
    table = np.zeros((draws, 6))
    for row in table:
        row[Uniform(clients=2).select(np.arange(6), rng)] = 1
    pairs = table.T @ table
    for value, share in ((np.diag(pairs), 1 / 3), (pairs[np.triu_indices(6, 1)], 1 / 15)):
        assert (abs(value - draws * share) < 5 * np.sqrt(draws * share * (1 - share))).all()


def test_the_whole_population_can_be_drawn_but_not_more() -> None:
    Uniform(clients=5).check(5)
    assert chosen(Uniform(clients=5), 5) == [0, 1, 2, 3, 4]
    with pytest.raises(BadInput, match="cohort of 6"):
        Uniform(clients=6).check(5)


@pytest.mark.parametrize(
    "options",
    [{}, {"clients": 3, "fraction": 0.5}, {"clients": 0}, {"fraction": 0.0}, {"fraction": 1.1}, {"fraction": -0.1}],
    ids=repr,
)
def test_impossible_cohorts_are_refused(options: dict) -> None:
    with pytest.raises(BadInput):
        Uniform(**options)


def test_cohorts_change_by_round_and_seed_only() -> None:
    def cohorts(seed: int, lr: float = 0.1) -> list[list[int]]:
        fed = ragged(FedAvg(), selection=Uniform(clients=3), seed=seed, solver=Sgd(lr=lr))
        return [o.work.clients.tolist() for o in play(fed, torch.zeros(83, dtype=torch.float64), 4)]

    assert cohorts(1) == cohorts(1, lr=0.3)
    assert cohorts(1) != cohorts(2)
    assert len({tuple(c) for c in cohorts(1)}) > 1


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Sgd, {"lr": 0.0}),
        (Sgd, {"lr": float("nan")}),
        (Sgd, {"momentum": 1.0}),
        (Sgd, {"weight_decay": -1.0}),
        (Sgd, {"lr_decay": 0.0}),
        (AdamW, {"beta2": 1.0}),
        (AdamW, {"eps": 0.0}),
        (ServerSgd, {"lr": -1.0}),
        (Momentum, {"beta": 1.0}),
        (Adam, {"tau": 0.0}),
        (Yogi, {"beta2": 1.5}),
        (Adagrad, {"beta1": 1.0}),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else value.__name__,
)
def test_impossible_options_are_refused(kind: type, options: dict) -> None:
    with pytest.raises(BadInput):
        kind(**options)

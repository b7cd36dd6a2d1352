"""Server optimisers against PyTorch and by hand, and the options that all optimisers refuse."""

from dataclasses import fields
from math import sqrt

import pytest
import torch
from torch import Tensor

from fedskew.slots import Adagrad, Adam, Momentum, ServerSgd, Yogi
from tests.reference import apart, assert_close, f64

G = torch.Generator().manual_seed(23)
DIM = 7
START = torch.randn(DIM, generator=G, dtype=torch.float64)
DELTAS = torch.randn(60, DIM, generator=G, dtype=torch.float64)
"""Movements of 60 rounds, as a server optimiser receives them."""


def walk(optimiser, deltas: Tensor = DELTAS, start: Tensor = START) -> Tensor:
    """Return the model after each round, (R, P)."""
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
    """Return the same with an optimiser of torch. Its gradient is minus the mean update."""
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
def test_coordinates_without_updates_change_only_by_momentum(optimiser, initial_v: str) -> None:
    """Such a coordinate is never NaN, and changes only by momentum."""
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


def test_adagrad_corrects_no_bias() -> None:
    """Its v sums, so it has none."""
    assert not {"beta2", "bias_correction"} & {f.name for f in fields(Adagrad)}

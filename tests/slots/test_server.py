"""Server optimisers against PyTorch and by hand."""

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

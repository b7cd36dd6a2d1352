"""Local solvers against PyTorch, and their response to a constant gradient."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedskew.slots import AdamW, Sgd
from tests.reference import assert_close, f64
from tests.slots.test_server import DELTAS, DIM, START


def solve(solver, gradient, steps: int, lr: float, start: Tensor = START) -> Tensor:
    """Return the path of a solver with gradients ``gradient(w, t)``."""
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

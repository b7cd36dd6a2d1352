"""Local solvers against PyTorch, and their response to a constant gradient."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler

from fedskew.algorithms import FedAvg
from fedskew.core.component import build, label
from fedskew.core.errors import BadInput
from fedskew.experiment.config import COMPONENTS, Experiment, from_toml
from fedskew.slots import SOLVERS, AdamW, Sgd
from fedskew.slots.optimisers import rate_factor
from tests.reference import assert_close, f64
from tests.slots.test_server import DELTAS, DIM, START
from tests.small import ragged


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


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("eps", [1e-8, 0.1])
def test_adamw_against_torch(betas: tuple[float, float], weight_decay: float, eps: float) -> None:
    solver = AdamW(lr=0.02, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
    theirs = torch_solve(
        lambda p: torch.optim.AdamW(p, lr=0.02, betas=betas, eps=eps, weight_decay=weight_decay), noisy, 60
    )
    assert_close(solve(solver, noisy, 60, 0.02), theirs)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 10, 100])
def test_unit_response_is_the_displacement_along_a_constant_gradient(momentum: float, steps: int) -> None:
    solver, one = Sgd(lr=0.05, momentum=momentum), torch.ones(DIM, dtype=torch.float64)
    displacement = solve(solver, lambda w, t: one, steps, 0.05)[-1] - START
    assert_close(displacement, -0.05 * solver.unit_response(f64(steps)) * one, 1e-11)


def torch_rates(make, rounds: int) -> list[float]:
    """The rates of a scheduler of PyTorch by round, for a rate of 1."""
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler, rates = make(optimiser), []
    for _ in range(rounds):
        rates.append(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()
    return rates


def warm(optimiser, after):
    """Five rounds of warm-up, then another scheduler."""
    first = lr_scheduler.LinearLR(optimiser, start_factor=1 / 5, total_iters=4)
    return lr_scheduler.SequentialLR(optimiser, [first, after(optimiser)], [5])


ROUNDS = 12


@pytest.mark.parametrize(
    ("decay", "make"),
    [
        ("cosine", lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS)),
        ("step:3", lambda o: lr_scheduler.StepLR(o, 3)),
        ("step:5:0.5", lambda o: lr_scheduler.StepLR(o, 5, 0.5)),
        ("warm-up:5", lambda o: lr_scheduler.LinearLR(o, 1 / 5, total_iters=4)),
        ("warm-up:5+cosine", lambda o: warm(o, lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS - 5))),
        ("warm-up:5+step:2:.5", lambda o: warm(o, lambda o: lr_scheduler.StepLR(o, 2, 0.5))),
        ("warm-up:5+0.9", lambda o: warm(o, lambda o: lr_scheduler.ExponentialLR(o, 0.9))),
        (0.9, lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    ],
)
def test_schedules_equal_torchs(decay, make) -> None:
    fed = replace(ragged(FedAvg(), solver=Sgd(lr=0.3, lr_decay=decay)), rounds=ROUNDS)
    expected = [0.3 * rate for rate in torch_rates(make, ROUNDS)]
    assert [fed.rate(round_) for round_ in range(ROUNDS)] == pytest.approx(expected, rel=1e-12)


def test_after_the_last_round_a_schedule_stays_at_its_last_rate() -> None:
    assert rate_factor("cosine", 10, 10) == rate_factor("cosine", 9, 10) > 0


def test_a_constant_rate_is_the_solvers_to_the_last_bit() -> None:
    """Also a schedule that has not changed yet."""
    for decay in (1.0, "step:100", "warm-up:1"):
        assert ragged(FedAvg(), solver=Sgd(lr=0.3, lr_decay=decay)).rate(7) == 0.3


@pytest.mark.parametrize("decay", ["cosine", "step:30:0.1", "warm-up:5+cosine", "warm-up:5+0.9"])
def test_a_schedule_is_an_option_like_any_other(decay: str) -> None:
    solver = build("solver", COMPONENTS["solver"], f"sgd:lr=0.2,lr_decay={decay}")
    assert solver == Sgd(lr=0.2, lr_decay=decay)
    assert label(solver, SOLVERS) == f"sgd:lr=0.2,lr_decay={decay}"
    experiment = Experiment(lr_decay=decay)
    assert from_toml(experiment.toml()) == experiment
    assert experiment.hash() != Experiment().hash() == Experiment(lr_decay=1.0).hash()


@pytest.mark.parametrize("decay", ["cosin", "step:0", "step:3:2", "warm-up:0", "cosine+warm-up:5", "warm-up:5+1.5", ""])
def test_a_schedule_that_does_not_exist_is_refused(decay: str) -> None:
    with pytest.raises(BadInput, match="lr_decay must be a number above 0 and at most 1 or cosine, step:30"):
        Experiment(solver={"name": "sgd", "lr_decay": decay})

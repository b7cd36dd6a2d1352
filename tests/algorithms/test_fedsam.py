"""FedSAM, MoFedSAM and FedCM."""

import pytest
import torch
from torch import Tensor

from fedskew.algorithms import FedSam, MoFedSam
from fedskew.core.errors import BadInput
from fedskew.core.trees import unit
from fedskew.execution.build import check_needs
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.slots import AdamW, ServerSgd, Sgd, Uniform
from tests.reference import assert_close, f64, full_gradient, local_models, ragged, real_batches
from tests.small import X0, Quadratic, exact_clients, play

SOLVERS = {"sgd": Sgd(lr=0.1), "momentum": Sgd(lr=0.05, momentum=0.9, weight_decay=0.1, lr_decay=0.5)}


def plain_client(fed, t: int, k: int, x: Tensor, rho: float, beta: float, direction: Tensor) -> tuple[Tensor, int]:
    """SGD as torch has it on v = beta g~ + (1 - beta) D; weight decay is part of every gradient."""
    solver = fed.solver
    w, velocity = x, torch.zeros_like(x)
    batches = real_batches(fed, t, k)
    for batch in batches:
        g = full_gradient(w, *batch) + solver.weight_decay * w
        up = w + rho * g / g.norm()
        v = beta * (full_gradient(up, *batch) + solver.weight_decay * up) + (1 - beta) * direction
        velocity = solver.momentum * velocity + v
        w = w - solver.lr * solver.lr_decay**t * velocity
    return w, len(batches)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize(("method", "rho"), [(FedSam, 0.3), (MoFedSam, 0.3), (MoFedSam, 0.0)])
def test_against_a_plain_loop(method, rho: float, weighting: str, solver: str) -> None:
    s = SOLVERS[solver]
    algorithm, beta = method(rho=rho, weighting=weighting), getattr(method, "beta", 1.0)
    fed = ragged(algorithm, solver=s, selection=Uniform(clients=3), server=ServerSgd(lr=0.7))
    x, direction = X0, torch.zeros_like(X0)
    for t, outcome in enumerate(play(fed, X0, 3)):
        cohort = outcome.work.clients.tolist()
        models, steps = zip(*(plain_client(fed, t, k, x, rho, beta, direction) for k in cohort), strict=True)
        assert_close(local_models(outcome), torch.stack(models))
        n = outcome.work.view.info.num_examples
        p = n / n.sum() if weighting == "samples" else torch.ones(3).double() / 3
        r, lr = s.momentum, s.lr * s.lr_decay**t
        response = f64([sum((1 - r ** (tau - j)) / (1 - r) for j in range(tau)) for tau in steps])
        delta = torch.stack(models) - x
        x = x + 0.7 * (p @ delta)
        assert_close(outcome.server.x, x)
        if method is MoFedSam:
            direction = -(p / (response * lr)) @ delta
            assert_close(outcome.server.state["D"], direction)


def test_fedcm_is_mofedsam_without_the_perturbation() -> None:
    experiment = with_method(Experiment(), "fedcm:beta=0.3")
    assert experiment.algorithm == MoFedSam(rho=0, beta=0.3)
    assert experiment.name == "fedcm:beta=0.3"
    assert with_method(Experiment(), "fedcm").algorithm == MoFedSam(rho=0, beta=0.1)


@pytest.mark.parametrize("algorithm", [FedSam(rho=0.5), MoFedSam(rho=0.5)])
def test_at_a_stationary_point_nothing_moves_and_nothing_is_undefined(algorithm) -> None:
    fed = exact_clients(Quadratic(), [[2.0, 1.0], [5.0, 1.0]], (3, 2), algorithm, lr=0.1)
    for outcome in play(fed, [1.0], 2):
        assert torch.equal(outcome.server.x, f64([1.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_unit_vector_has_length_one_and_zero_stays_zero(dtype: torch.dtype) -> None:
    v = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    for scale in (1.0, 1e-9, 1e9):
        assert abs(float((unit(scale * v)).double().norm()) - 1) < (1e-6 if dtype == torch.float32 else 1e-12)
    assert unit(v).dtype == dtype
    assert torch.equal(unit(torch.zeros(3, dtype=dtype)), torch.zeros(3, dtype=dtype))


def test_a_solver_whose_steps_are_not_linear_is_refused() -> None:
    with pytest.raises(BadInput, match="mofedsam needs a local solver whose steps are linear"):
        check_needs(Experiment(algorithm=MoFedSam(), solver=AdamW()))

"""FedSAM, MoFedSAM and FedCM."""

from math import hypot

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
from tests.reference import (
    assert_close,
    f64,
    full_gradient,
    local_models,
    matrix_clients,
    ragged,
    real_batches,
    sized_pair,
    trajectory,
)
from tests.small import X0, Quadratic, exact_clients, play

# golden rounds: client 1 has the gradient w, client 2 (2 (w_1 - 1.5), w_2); x = (3, 4), eta = 0.1, rho = 1/2, two steps of
# client 1 and one of client 2
#
# round 0   both gradients are (3, 4) of length 5: epsilon = (0.3, 0.4)
#           client 1: g~ = (3.3, 4.4);  along the same ray again, at w of length L: g~ = (L + 0.5) (0.6, 0.8)
#           client 2: g~ = (2 * 1.8, 4.4) = (3.6, 4.4)

A = f64([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]]])
B = f64([[0.0, 0.0], [1.5, 0.0]])


def pair(algorithm, **rest):
    return matrix_clients(A, B, (2, 1), algorithm, lr=0.1, **rest)


def test_golden_round_of_fedsam() -> None:
    # client 1: L = 5 -> 5 - 0.1 * 5.5 = 4.45 -> 4.45 - 0.1 * 4.95 = 3.955:  w = (2.373, 3.164),  delta (-0.627, -0.836)
    # client 2: w = (3 - 0.36, 4 - 0.44) = (2.64, 3.56),  delta (-0.36, -0.44)
    outcome = play(pair(FedSam(rho=0.5), sizes=(1, 3)), [3.0, 4.0], 1)[0]
    assert_close(local_models(outcome), [[2.373, 3.164], [2.64, 3.56]])
    assert_close(outcome.server.x, [2.5065, 3.362])


def test_golden_two_rounds_of_mofedsam() -> None:
    # beta = 1/4, D = 0: client 1: L = 5 -> 5 - 0.025 * 5.5 = 4.8625 -> 4.8625 - 0.025 * 5.3625 = 4.7284375,
    #                    delta -0.2715625 (0.6, 0.8) = (-0.1629375, -0.21725)
    #                    client 2: delta -0.025 (3.6, 4.4) = (-0.09, -0.11)
    # x = (3 - 0.12646875, 4 - 0.163625),  D = ((0.1629375 / 0.2 + 0.09 / 0.1) / 2, (0.21725 / 0.2 + 0.11 / 0.1) / 2)
    outcomes = play(pair(MoFedSam(rho=0.5, beta=0.25)), [3.0, 4.0], 2)
    x, d = (2.87353125, 3.836375), (0.85734375, 1.093125)
    assert_close(outcomes[0].server.x, x)
    assert_close(outcomes[0].server.state["D"], d)

    # round 1 by hand: v = 0.25 g~ + 0.75 D
    def step(w: tuple[float, float], h: float, b: float) -> tuple[float, float]:
        g = (h * (w[0] - b), w[1])
        up = 0.5 / hypot(*g)
        sharp = (h * (w[0] + up * g[0] - b), w[1] + up * g[1])
        return w[0] - 0.1 * (0.25 * sharp[0] + 0.75 * d[0]), w[1] - 0.1 * (0.25 * sharp[1] + 0.75 * d[1])

    one, two = step(step(x, 1.0, 0.0), 1.0, 0.0), step(x, 2.0, 1.5)
    assert_close(local_models(outcomes[1]), [one, two])
    fresh = [((x[i] - one[i]) / 0.2 + (x[i] - two[i]) / 0.1) / 2 for i in (0, 1)]
    assert_close(outcomes[1].server.state["D"], fresh)


# against plain loops on the tiny network


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
@pytest.mark.parametrize("method", [FedSam, MoFedSam])
def test_against_a_plain_loop(method, weighting: str, solver: str) -> None:
    s = SOLVERS[solver]
    algorithm, beta = method(rho=0.3, weighting=weighting), getattr(method, "beta", 1.0)
    fed = ragged(algorithm, solver=s, selection=Uniform(clients=3), server=ServerSgd(lr=0.7))
    x, direction = X0, torch.zeros_like(X0)
    for t, outcome in enumerate(play(fed, X0, 3)):
        cohort = outcome.work.clients.tolist()
        models, steps = zip(*(plain_client(fed, t, k, x, 0.3, beta, direction) for k in cohort), strict=True)
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


def test_fedcm_mixes_the_previous_direction_into_a_plain_step() -> None:
    # gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps, beta = 1/2
    # round 0  client 1: 1 -> 0.95 -> 0.9025    client 2: 1 -> 1.4 -> 1.72
    #          D = -(-0.0975 + 0.72) / 2 / 0.2 = -1.55625,  x = 1.31125
    # round 1  w <- w - 0.05 (g + D)   client 1: 1.31125 - 0.05 (-0.245) = 1.3235 -> 1.3235 - 0.05 (-0.23275) = 1.3351375
    #          client 2: 1.31125 - 0.05 (-6.755 - 1.55625) = 1.7268125 -> 1.7268125 - 0.05 (-5.09275 - 1.55625) = 2.0592625
    outcomes = play(sized_pair(MoFedSam(rho=0, beta=0.5)), [1.0], 2)
    assert_close(trajectory(outcomes)[:, 0], [1.31125, (1.3351375 + 2.0592625) / 2])
    assert_close(outcomes[0].server.state["D"], [-1.55625])


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

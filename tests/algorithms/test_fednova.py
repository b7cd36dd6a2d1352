"""FedNova with SGD, momentum, the proximal term, and both."""

import pytest
import torch

from fedskew.algorithms import FedAvg, FedNova, FedProx
from fedskew.loop.plan import Local
from fedskew.slots import Sgd, Uniform
from tests.reference import assert_close, ragged, sized_pair, trajectory
from tests.small import X0, Linear, exact_clients, play

SOLVERS = [(0.0, 0.0), (0.9, 0.0), (0.0, 1.5), (0.6, 1.5)]
"""Momentum and mu."""


def response(steps: int, lr: float, momentum: float, mu: float) -> float:
    """Displacement over -lr of torch's SGD on the scalar loss w + mu/2 w^2 from 0: the sum of a."""
    w = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([w], lr=lr, momentum=momentum)
    for _ in range(steps):
        optimiser.zero_grad()
        (w + mu / 2 * w**2).backward()
        optimiser.step()
    return -float(w.detach()) / lr


# golden rounds: gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps of client 1, three of client 2, p = 1/4, 3/4
#
# sgd       client 1: 1 -> 0.9 -> 0.81                      -0.19     a = 1 + 1 = 2
#           client 2: 1 -> 1.8 -> 2.28 -> 2.568             +1.568    a = 3
#           tau_eff = 0.5 + 2.25 = 2.75;   x = 1 + 2.75 (0.25 * -0.095 + 0.75 * 1.568 / 3) = 1 + 2.75 * 0.36825
# momentum  rho = 1/2: the j-th last gradient counts 1, 1.5, 1.75 times: a = 2.5 and 4.25
#           client 1: v = 1 -> 0.9;  v = 1.4 -> 0.76                                        -0.24
#           client 2: v = -8 -> 1.8;  v = -8.8 -> 2.68;  v = -4.4 - 1.28 = -5.68 -> 3.248   +2.248
#           tau_eff = 0.625 + 3.1875 = 3.8125
# prox      mu = 2: a = 0.8 + 1 = 1.8 and 0.64 + 0.8 + 1 = 2.44
#           client 1: 0.9;  d = 0.9 - 0.2 = 0.7 -> 0.83                                     -0.17
#           client 2: 1.8;  d = -4.8 + 1.6 = -3.2 -> 2.12;  d = -3.52 + 2.24 -> 2.248       +1.248
#           tau_eff = 0.45 + 1.83 = 2.28
# both      along gradient 1 from 0: v = 1 -> -0.1;  v = 0.5 + 0.8 = 1.3 -> -0.23;  v = 0.65 + 0.54 = 1.19 -> -0.349
#           a = 2.3 and 3.49
#           client 1: 0.9;  v = 0.5 + 0.9 - 0.2 = 1.2 -> 0.78                               -0.22
#           client 2: v = -8 -> 1.8;  v = -4 - 4.8 + 1.6 = -7.2 -> 2.52;
#                     v = -3.6 + 4 * (-0.48) + 2 * 1.52 = -2.48 -> 2.768                    +1.768
#           tau_eff = 0.575 + 2.6175 = 3.1925


@pytest.mark.parametrize(
    ("momentum", "mu", "a", "expected"),
    [
        (0.0, 0.0, [2, 3], 2.0126875),
        (0.5, 0.0, [2.5, 4.25], 1 + 3.8125 * (0.25 * -0.24 / 2.5 + 0.75 * 2.248 / 4.25)),
        (0.0, 2.0, [1.8, 2.44], 1 + 2.28 * (0.25 * -0.17 / 1.8 + 0.75 * 1.248 / 2.44)),
        (0.5, 2.0, [2.3, 3.49], 1 + 3.1925 * (0.25 * -0.22 / 2.3 + 0.75 * 1.768 / 3.49)),
    ],
    ids=["sgd", "momentum", "prox", "both"],
)
def test_golden_round(momentum: float, mu: float, a: list[float], expected: float) -> None:
    fed = sized_pair(FedNova(mu=mu), (2, 3), solver=Sgd(lr=0.1, momentum=momentum))
    outcome = play(fed, [1.0], 1)[0]
    assert_close(outcome.done.uploads.report["a"], a)
    assert_close(outcome.server.x, [expected])


# the norm of a


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
@pytest.mark.parametrize("lr", [0.1, 0.02])
def test_the_norm_in_closed_form(steps: int, lr: float) -> None:
    def a(momentum: float, mu: float) -> torch.Tensor:
        solver = Sgd(lr=lr, momentum=momentum)
        outcome = play(exact_clients(Linear(), [[1.0]], (steps,), FedNova(mu=mu), lr=None, solver=solver), [0.0], 1)[0]
        return outcome.done.uploads.report["a"]

    rho, mu = 0.9, 3.0
    assert_close(a(0.0, 0.0), [steps])
    assert_close(a(rho, 0.0), [(steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)])
    assert_close(a(rho, 0.0), [sum((1 - rho ** (steps - s)) / (1 - rho) for s in range(steps))])
    assert_close(a(0.0, mu), [(1 - (1 - lr * mu) ** steps) / (lr * mu)])
    assert_close(a(rho, mu), [response(steps, lr, rho, mu)])
    assert_close(a(0.0, 1e-9), [steps], 1e-6)


# where it becomes FedAvg


def same_solver(mu: float):
    return FedProx(mu=mu) if mu else FedAvg()


@pytest.mark.parametrize("weighting", ["samples", "uniform", "unbiased", "own"])
def test_equal_norms_give_fedavg_for_every_weighting_and_cohort(weighting: str) -> None:
    """tau_eff must be the mean of the norms, although unbiased weights do not sum to one."""
    local = Local(steps=4, batch_size=8)
    nova, plain = (
        ragged(a, local=local, selection=Uniform(clients=2))
        for a in (FedNova(weighting=weighting), FedAvg(weighting=weighting))
    )
    assert_close(trajectory(play(nova, X0, 3)), trajectory(play(plain, X0, 3)))


@pytest.mark.parametrize(("momentum", "mu"), SOLVERS)
def test_one_client_is_its_local_solver(momentum: float, mu: float) -> None:
    solver = Sgd(lr=0.05, momentum=momentum, weight_decay=0.1)
    nova, plain = (ragged(a, sizes=[21], solver=solver) for a in (FedNova(mu=mu), same_solver(mu)))
    assert_close(trajectory(play(nova, X0, 3)), trajectory(play(plain, X0, 3)))


def test_golden_round_of_the_published_number_of_steps() -> None:
    """The rounds above with momentum and with mu: tau_eff = (2 + 3 * 3) / 4 = 2.75 in place of 3.8125 and 2.28."""
    for solver, mu, moved, a in (
        (Sgd(lr=0.1, momentum=0.5), 0.0, (-0.24, 2.248), (2.5, 4.25)),
        (Sgd(lr=0.1), 2.0, (-0.17, 1.248), (1.8, 2.44)),
    ):
        fed = sized_pair(FedNova(mu=mu, tau_eff="steps"), (2, 3), solver=solver)
        x = play(fed, [1.0], 1)[0].server.x
        assert_close(x, [1 + 2.75 * (0.25 * moved[0] / a[0] + 0.75 * moved[1] / a[1])])

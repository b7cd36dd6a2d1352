"""FedNova with SGD, momentum, the proximal term, and both."""

import pytest
import torch

from fedskew.algorithms import FedNova
from fedskew.slots import Sgd
from tests.reference import assert_close, sized_pair
from tests.small import Linear, exact_clients, play


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


# steps     the published number of steps in place of the norms: tau_eff = (2 + 3 * 3) / 4 = 2.75


@pytest.mark.parametrize(
    ("momentum", "method", "a", "expected"),
    [
        (0.0, FedNova(), [2, 3], 2.0126875),
        (0.5, FedNova(), [2.5, 4.25], 1 + 3.8125 * (0.25 * -0.24 / 2.5 + 0.75 * 2.248 / 4.25)),
        (0.0, FedNova(mu=2.0), [1.8, 2.44], 1 + 2.28 * (0.25 * -0.17 / 1.8 + 0.75 * 1.248 / 2.44)),
        (0.5, FedNova(mu=2.0), [2.3, 3.49], 1 + 3.1925 * (0.25 * -0.22 / 2.3 + 0.75 * 1.768 / 3.49)),
        (0.5, FedNova(tau_eff="steps"), [2.5, 4.25], 1 + 2.75 * (0.25 * -0.24 / 2.5 + 0.75 * 2.248 / 4.25)),
        (0.0, FedNova(mu=2.0, tau_eff="steps"), [1.8, 2.44], 1 + 2.75 * (0.25 * -0.17 / 1.8 + 0.75 * 1.248 / 2.44)),
    ],
    ids=["sgd", "momentum", "prox", "both", "momentum-steps", "prox-steps"],
)
def test_golden_round(momentum: float, method: FedNova, a: list[float], expected: float) -> None:
    fed = sized_pair(method, (2, 3), solver=Sgd(lr=0.1, momentum=momentum))
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

"""FedNova with SGD, momentum, the proximal term, and both."""

import pytest
import torch

from fedskew.algorithms import FedNova
from fedskew.slots import Sgd
from tests.reference import assert_close
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

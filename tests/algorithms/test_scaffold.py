"""SCAFFOLD, options I and II, uniform and sample weights."""

from dataclasses import replace

import pytest
import torch

from fedskew.algorithms import FedAvg, Scaffold
from fedskew.engine.states import ClientStates
from fedskew.loop.round import start
from fedskew.slots import Sgd
from tests.reference import apart, assert_close, f64, matrices, matrix_clients, optimum, run, state_of
from tests.small import Linear, exact_clients, play


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_variates_on_linear_losses_are_the_gradients_at_any_momentum_and_rate(momentum: float) -> None:
    """The displacement is divided by eta_t ||a||_1; by eta_t tau it would diverge at momentum 0.9 from 4 steps on."""
    g = f64([[1.0, -2.0], [0.5, 3.0], [4.0, 0.0]])
    solver = Sgd(lr=0.1, momentum=momentum, lr_decay=0.5)
    fed = exact_clients(Linear(), g.tolist(), (2, 4, 10), Scaffold(), lr=None, solver=solver)
    states, server = ClientStates(), None
    for t in range(4):
        server = play(fed, [0.0, 0.0], t + 1, server=server, states=states)[-1].server
        assert_close(state_of(states, "c_k", 3, f64([0.0, 0.0])), g)
        assert_close(server.state["c"], g.mean(0))


def test_weight_decay_enters_the_variate() -> None:
    """c_k is the mean of g + lambda y over the local path."""
    fed = exact_clients(Linear(), [[1.0], [3.0]], (3, 3), Scaffold(), lr=None, solver=Sgd(lr=0.1, weight_decay=0.5))
    _, states = run(fed, [2.0], 1)
    expected = []
    for g in (1.0, 3.0):
        y, seen = 2.0, []
        for _ in range(3):
            seen.append(g + 0.5 * y)
            y -= 0.1 * seen[-1]
        expected.append(sum(seen) / 3)
    assert_close(state_of(states, "c_k", 2, f64([0.0]))[:, 0], expected)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_optimum_with_its_gradients_does_not_move(option: str, weighting: str) -> None:
    """With c = 0 and c_k = grad F_k(x), for any curvatures and step counts; FedAvg from there does move."""
    a, b = matrices(3)
    steps, sizes = (3, 5, 8), (1, 2, 4)
    x = optimum(a, b, f64(sizes) / 7 if weighting == "samples" else f64([1, 1, 1]) / 3)
    fed = matrix_clients(a, b, steps, Scaffold(option=option, weighting=weighting), lr=0.2, sizes=sizes)
    states = ClientStates()
    states.put(range(3), {"c_k": torch.einsum("kij,kj->ki", a, x - b)})
    assert_close(play(fed, x, 3, server=start(fed, x), states=states)[-1].server.x, x, 1e-13)
    fedavg = replace(fed, algorithm=FedAvg(weighting=weighting))
    assert apart(play(fedavg, x, 1)[0].server.x, x, 1e-3)

"""SCAFFOLD, options I and II, uniform and sample weights."""

from dataclasses import replace

import pytest
import torch

from fedskew.algorithms import FedAvg, Scaffold
from fedskew.engine.states import ClientStates
from fedskew.loop.round import start
from fedskew.slots import Sgd, Uniform
from tests.reference import (
    apart,
    assert_close,
    f64,
    full_gradient,
    matrices,
    matrix_clients,
    optimum,
    ragged,
    run,
    sized_pair,
    state_of,
    trajectory,
)
from tests.small import X0, Linear, exact_clients, play

# golden rounds: gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps, sizes 1 and 3
#
# Round 0 has no variates: client 1 goes 1 -> 0.9 -> 0.81 (-0.19), client 2 goes 1 -> 1.8 -> 2.28 (+1.28).
# Option II  c_1 = 0.19 / 0.2 = 0.95,  c_2 = -1.28 / 0.2 = -6.4;   option I  c_1 = 1,  c_2 = -8, the gradients at x = 1.

GOLDEN = {
    # x = 1 + (1.28 - 0.19) / 2 = 1.545,  c = (0.95 - 6.4) / 2 = -2.725,  c - c_1 = -3.675,  c - c_2 = 3.675
    # client 1: d = 1.545 - 3.675 = -2.13 -> 1.758;   d = 1.758 - 3.675 = -1.917 -> 1.9497      delta 0.4047
    #           c_1 = 0.95 + 2.725 - 0.4047 / 0.2 = 1.6515
    # client 2: d = -5.82 + 3.675 = -2.145 -> 1.7595; d = -4.962 + 3.675 = -1.287 -> 1.8882     delta 0.3432
    #           c_2 = -6.4 + 2.725 - 0.3432 / 0.2 = -5.391
    # x = 1.545 + (0.4047 + 0.3432) / 2,  c = (1.6515 - 5.391) / 2
    ("II", "uniform"): ([1.545, 1.91895], [-2.725, -1.86975], [1.6515, -5.391]),
    # x = 1 + 0.25 * -0.19 + 0.75 * 1.28 = 1.9125,  c = 0.25 * 0.95 - 0.75 * 6.4 = -4.5625
    # client 1: c - c_1 = -5.5125:  d = -3.6 -> 2.2725;      d = -3.24 -> 2.5965       delta 0.684
    #           c_1 = 0.95 + 4.5625 - 0.684 / 0.2 = 2.0925
    # client 2: c - c_2 = 1.8375:   d = -4.35 + 1.8375 = -2.5125 -> 2.16375
    #                               d = -3.345 + 1.8375 = -1.5075 -> 2.3145            delta 0.402
    #           c_2 = -6.4 + 4.5625 - 0.402 / 0.2 = -3.8475
    # x = 1.9125 + 0.25 * 0.684 + 0.75 * 0.402,  c = 0.25 * 2.0925 - 0.75 * 3.8475
    ("II", "samples"): ([1.9125, 2.385], [-4.5625, -2.3625], [2.0925, -3.8475]),
    # x = 1.545,  c = (1 - 8) / 2 = -3.5
    # client 1: c - c_1 = -4.5:  d = -2.955 -> 1.8405;          d = -2.6595 -> 2.10645         delta 0.56145
    # client 2: c - c_2 = 4.5:   d = -5.82 + 4.5 -> 1.677;      d = -5.292 + 4.5 -> 1.7562     delta 0.2112
    # x = 1.545 + (0.56145 + 0.2112) / 2,  c_1 = 1.545,  c_2 = 4 (1.545 - 3) = -5.82,  c = -4.275 / 2
    ("I", "uniform"): ([1.545, 1.931325], [-3.5, -2.1375], [1.545, -5.82]),
    # x = 1.9125,  c = 0.25 - 6 = -5.75
    # client 1: c - c_1 = -6.75: d = -4.8375 -> 2.39625;        d = -4.35375 -> 2.831625       delta 0.919125
    # client 2: c - c_2 = 2.25:  d = -4.35 + 2.25 -> 2.1225;    d = -3.51 + 2.25 -> 2.2485     delta 0.336
    # x = 1.9125 + 0.25 * 0.919125 + 0.75 * 0.336,  c_1 = 1.9125,  c_2 = -4.35,  c = 0.478125 - 3.2625
    ("I", "samples"): ([1.9125, 2.39428125], [-5.75, -2.784375], [1.9125, -4.35]),
}


@pytest.mark.parametrize(("option", "weighting"), GOLDEN)
def test_golden_two_rounds(option: str, weighting: str) -> None:
    x, c, c_k = GOLDEN[option, weighting]
    outcomes, states = run(sized_pair(Scaffold(option=option, weighting=weighting)), [1.0], 2)
    assert_close(trajectory(outcomes)[:, 0], x)
    assert_close(torch.cat([o.server.state["c"] for o in outcomes]), c)
    assert_close(state_of(states, "c_k", 2, f64([0.0]))[:, 0], c_k)


# the variates


def test_option_one_variate_is_the_full_gradient_at_the_server_model() -> None:
    # 400 rows take two passes of at most 256
    fed = ragged(Scaffold(option="I"), sizes=[400, 17, 3], selection=Uniform(clients=2))
    states, server, seen = ClientStates(), None, {}
    for t in range(3):
        outcome = play(fed, X0, t + 1, server=server, states=states)[-1]
        for k in outcome.work.clients:
            rows = fed.partition.rows(int(k))
            seen[int(k)] = full_gradient(outcome.work.view.x, fed.x[rows], fed.y[rows])
        server = outcome.server
        table = state_of(states, "c_k", 3, X0)
        for k, gradient in seen.items():
            assert_close(table[k], gradient)


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


@pytest.mark.parametrize(("option", "weighting"), GOLDEN)
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

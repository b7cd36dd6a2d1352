"""FedDyn, uniform and sample weights."""

import pytest
import torch

from fedskew.algorithms import FedDyn
from fedskew.engine.states import ClientStates
from fedskew.loop.round import start
from fedskew.slots import ServerSgd, Sgd
from tests.reference import assert_close, f64, matrices, matrix_clients, optimum, run, sized_pair, state_of, trajectory
from tests.small import play

WEIGHTINGS = ["uniform", "samples"]


# golden rounds: gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps, alpha = 1/2, sizes 1 and 3
#
# round 0   client 1: 0.9;  d = 0.9 + 0.5 * (-0.1) = 0.85 -> 0.815         -0.185   g_1 = 0.0925
#           client 2: 1.8;  d = -4.8 + 0.5 * 0.8 = -4.4 -> 2.24            +1.24    g_2 = -0.62

GOLDEN = {
    # h = -0.5 (-0.185 + 1.24) / 2 = -0.26375,  x = (0.815 + 2.24) / 2 + 0.26375 / 0.5 = 1.5275 + 0.5275 = 2.055
    # client 1: d = 2.055 - 0.0925 = 1.9625 -> 1.85875;  d = 1.85875 - 0.0925 - 0.098125 = 1.668125 -> 1.6919375
    #           delta -0.3630625,  g_1 = 0.0925 + 0.18153125 = 0.27403125
    # client 2: d = -3.78 + 0.62 = -3.16 -> 2.371;  d = -2.516 + 0.62 + 0.158 = -1.738 -> 2.5448
    #           delta 0.4898,  g_2 = -0.62 - 0.2449 = -0.8649
    # h = -0.26375 - 0.5 * 0.06336875,  x = (1.6919375 + 2.5448) / 2 + 2 * 0.295434375
    "uniform": ([2.055, 2.7092375], [-0.26375, -0.295434375], [0.27403125, -0.8649]),
    # h = -0.5 (0.25 * -0.185 + 0.75 * 1.24) = -0.441875,  x = 0.20375 + 1.68 + 0.88375 = 2.7675
    # client 1: d = 2.7675 - 0.0925 = 2.675 -> 2.5;  d = 2.5 - 0.0925 - 0.13375 = 2.27375 -> 2.272625
    #           delta -0.494875,  g_1 = 0.0925 + 0.2474375 = 0.3399375
    # client 2: d = -0.93 + 0.62 = -0.31 -> 2.7985;  d = -0.806 + 0.62 + 0.0155 = -0.1705 -> 2.81555
    #           delta 0.04805,  g_2 = -0.62 - 0.024025 = -0.644025
    # h = -0.441875 - 0.5 (-0.12371875 + 0.0360375) = -0.398034375
    # x = 0.25 * 2.272625 + 0.75 * 2.81555 + 2 * 0.398034375 = 0.56815625 + 2.1116625 + 0.79606875
    "samples": ([2.7675, 3.4758875], [-0.441875, -0.398034375], [0.3399375, -0.644025]),
}


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_golden_two_rounds(weighting: str) -> None:
    x, h, g_k = GOLDEN[weighting]
    outcomes, states = run(sized_pair(FedDyn(alpha=0.5, weighting=weighting)), [1.0], 2)
    assert_close(trajectory(outcomes)[:, 0], x)
    assert_close(torch.cat([o.server.state["h"] for o in outcomes]), h)
    assert_close(state_of(states, "g_k", 2, f64([0.0]))[:, 0], g_k)


def test_weight_decay_belongs_to_the_objective() -> None:
    # sum h b / sum (h + lambda) = 12 / 6
    solver = Sgd(lr=0.15, weight_decay=0.5)
    assert_close(play(sized_pair(FedDyn(alpha=1.5), (4, 4), solver=solver), [-1.0], 35)[-1].server.x, [2.0], 1e-8)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("rate", [1.0, 1.5])
def test_the_optimum_with_its_gradients_does_not_move(weighting: str, rate: float) -> None:
    a, b = matrices(3)
    steps, sizes = (3, 5, 8), (1, 2, 4)
    pi = f64(sizes) / 7 if weighting == "samples" else f64([1, 1, 1]) / 3
    x = optimum(a, b, pi)
    dyn = FedDyn(alpha=0.5, weighting=weighting)
    fed = matrix_clients(a, b, steps, dyn, lr=0.2, sizes=sizes, server=ServerSgd(lr=rate))
    states = ClientStates()
    states.put(range(3), {"g_k": torch.einsum("kij,kj->ki", a, x - b)})
    server = play(fed, x, 3, server=start(fed, x), states=states)[-1].server
    assert_close(server.x, x, 1e-13)
    assert_close(server.state["h"], [0.0, 0.0], 1e-13)

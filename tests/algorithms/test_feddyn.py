"""FedDyn, uniform and sample weights."""

import pytest
import torch

from fedskew.algorithms import FedDyn
from fedskew.engine.states import ClientStates
from fedskew.loop.round import start
from fedskew.slots import ServerSgd, Sgd
from tests.reference import assert_close, f64, matrices, matrix_clients, optimum, sized_pair
from tests.small import play

WEIGHTINGS = ["uniform", "samples"]


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

"""MOON."""

from dataclasses import dataclass
from math import exp

import torch
from torch import Tensor
from torch.func import grad

from fedskew.algorithms import Moon
from fedskew.core.algorithm import local_loss
from fedskew.core.records import Batch, Info, View
from tests.reference import assert_close, f64, run, state_of
from tests.small import TASK, X0, Linear, exact_clients


@dataclass(frozen=True)
class Direct(Linear):
    """Loss <g, w> for a row g; the features of every row are the parameters themselves."""

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return w.expand(len(x), -1), super().outputs(w, x)[1]


def contrastive(
    algorithm: Moon, w: Tensor, x: Tensor, previous: Tensor, rows: int = 6, task=TASK
) -> tuple[Tensor, Tensor]:
    """mu l_con and its gradient at w: the objective less the plain loss."""
    g = torch.Generator().manual_seed(0)
    batch = Batch(torch.randn(rows, 6, generator=g).double(), torch.arange(rows) % 3, torch.ones(rows).double())
    info = Info(*(f64(1.0) for _ in Info._fields))
    view = View(x, {}, {"previous": previous}, info, {}, f64(0.1), f64(1.0))

    def value(w: Tensor) -> Tensor:
        return algorithm.objective(task, view, w, batch) - local_loss(task, w, batch)

    return value(w), grad(value)(w)


def other(i: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(len(X0), generator=torch.Generator().manual_seed(i), dtype=torch.float64)


def test_golden_two_rounds() -> None:
    # features z = w, loss <g, w>, g = (1, -5) and (-3, -1), eta = 1, one step, T = 1/2, x = (1, 2), p = 1/4, 3/4
    # round 0: the stored model is x itself, so w_1 = (0, 7), w_2 = (4, 3) and x = (0.25 * 0 + 3, 1.75 + 2.25) = (3, 4)
    # round 1: at w = x the similarity to z_glob is 1 and stationary; that to z_prev has the gradient
    #          (u_prev - s u) / |w|, u = (0.6, 0.8), |w| = 5, and l_con that times sigmoid(2 (s - 1)) * 2
    #   client 1: u_prev = (0, 1),     s = 0.8:   (0 - 0.48, 1 - 0.64) / 5        = (-0.096, 0.072),   2 (s - 1) = -0.4
    #   client 2: u_prev = (0.8, 0.6), s = 0.96:  (0.8 - 0.576, 0.6 - 0.768) / 5  = (0.0448, -0.0336), 2 (s - 1) = -0.08
    #   w_1 = (3, 4) - (1, -5) - c_1 (-0.096, 0.072),    w_2 = (3, 4) - (-3, -1) - c_2 (0.0448, -0.0336)
    c_1, c_2 = 2 / (1 + exp(0.4)), 2 / (1 + exp(0.08))
    w_1 = f64([2 + 0.096 * c_1, 9 - 0.072 * c_1])
    w_2 = f64([6 - 0.0448 * c_2, 5 + 0.0336 * c_2])
    rows = [[1.0, -5.0], *[[-3.0, -1.0]] * 3]
    fed = exact_clients(Direct(), rows, (1, 1), Moon(mu=1.0, temperature=0.5), lr=1.0, sizes=[1, 3])
    outcomes, states = run(fed, [1.0, 2.0], 2)
    assert_close(outcomes[0].server.x, [3.0, 4.0])
    assert_close(outcomes[1].server.x, 0.25 * w_1 + 0.75 * w_2)
    assert_close(state_of(states, "previous", 2, f64([0.0, 0.0])), torch.stack([w_1, w_2]))


def test_a_low_temperature_does_not_overflow() -> None:
    value, gradient = contrastive(Moon(mu=1.0, temperature=1e-4), other(1), other(2), other(3))
    assert value.isfinite()
    assert gradient.isfinite().all()

"""What unequal amounts of local work do to the optimum, against formulas."""

from dataclasses import replace

import torch

from fedskew.algorithms import FedAvg, FedNova
from fedskew.loop.plan import Local, SeededPlanner, System
from tests.reference import assert_close, f64, matrices, matrix_clients, optimum
from tests.small import play


def test_unequal_epochs_move_the_fixed_point_of_fedavg_from_the_optimum_but_hardly_of_fednova() -> None:
    """At a fixed point the weighted sum of M_k (w - b_k) vanishes, M_k = I - (I - eta A_k)^tau_k. FedNova's weights are p / tau."""
    a, b = matrices(4)
    seed, lr = 3, 0.02
    own = System(epochs=(1, 2, 10)).own_work(Local(batch_size="all"), 4, seed)
    tau = [w.epochs for w in own]
    assert len(set(tau)) > 1
    identity = torch.eye(2, dtype=torch.float64)
    m = torch.stack(
        [identity - torch.linalg.matrix_power(identity - lr * a_k, t) for a_k, t in zip(a, tau, strict=True)]
    )
    ends = {}
    for algorithm, p in ((FedAvg(), f64([0.25] * 4)), (FedNova(), 0.25 / f64(tau))):
        fed = matrix_clients(a, b, (1,) * 4, algorithm, lr=lr)
        fed = replace(fed, planner=SeededPlanner(Local(batch_size="all"), seed, own))
        ends[type(algorithm)] = end = optimum(m, b, p)
        assert_close(play(fed, end, 1)[-1].server.x, end)
    best = optimum(a, b, f64([0.25] * 4))
    assert (ends[FedAvg] - best).norm() > 0.2
    assert (ends[FedNova] - best).norm() < (ends[FedAvg] - best).norm() / 5

"""What unequal amounts of local work do to the optimum, against formulas."""

from dataclasses import replace

import numpy as np
import torch

from fedskew.algorithms import FedAvg, FedNova
from fedskew.loop.plan import Local, SeededPlanner, System
from tests.reference import assert_close, f64, matrices, matrix_clients, optimum
from tests.small import Quadratic, exact_clients, play


def test_rounds_with_stragglers_match_the_numbers_by_hand() -> None:
    """Two clients w and 4 (w - 3), two steps of 0.1 from 1: 0.81 and 2.28. If one is late, the other decides the model."""
    fed = exact_clients(Quadratic(), [[1.0, 0.0], [4.0, 3.0]], (2, 2), FedAvg(), lr=0.1)
    for t in (t for t in range(30) if len(System(stragglers=0.5).late(np.arange(2), 2, 0, t)) == 1):
        dropping = replace(fed, system=System(stragglers=0.5, drop_stragglers=True), seed=t)
        outcome = play(dropping, [1.0], 1)[0]
        assert_close(outcome.server.x, [[0.81], [2.28]][int(outcome.work.clients[0])])
        # partial work: one step instead of two, so 0.9 or 1.8, averaged with the other's two
        late = 1 - int(outcome.work.clients[0])
        partly = play(replace(dropping, system=System(stragglers=0.5)), [1.0], 1)[0]
        assert_close(partly.server.x, [[(0.9 + 2.28) / 2], [(0.81 + 1.8) / 2]][late])


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

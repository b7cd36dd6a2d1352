"""AFL: the projection onto the simplex, and rounds by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.algorithms import Afl
from fedskew.core.trees import project_onto_simplex
from fedskew.loop.plan import Local
from tests.reference import Only, assert_close, f64, local_models, ragged, sized_pair, trajectory
from tests.small import RAGGED, X0, play

# the projection


def random_vectors() -> list[Tensor]:
    rng = np.random.default_rng(0)
    return [torch.tensor(rng.normal(0, scale, k)) for k in (1, 2, 5, 40) for scale in (0.01, 1.0, 30.0)]


@pytest.mark.parametrize("v", random_vectors(), ids=lambda v: f"{len(v)}, {float(v.abs().max()):.2g}")
def test_the_projection_is_the_nearest_point(v: Tensor) -> None:
    p = project_onto_simplex(v)
    assert float(p.min()) >= 0
    assert_close(p.sum(), 1.0)
    # p is nearest to v in a convex set if <v - p, q - p> <= 0 for all corners q of the set
    assert float(((v - p) @ (torch.eye(len(v), dtype=torch.float64) - p).T).max()) < 1e-10
    assert_close(project_onto_simplex(p), p)
    assert_close(project_onto_simplex(v + 3.7), p)


def test_the_projection_in_plain_numbers() -> None:
    for v, expected in (
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([0.5, 0.5, 0.6], [0.3, 0.3, 0.4]),  # theta = 0.6 / 3
        ([0.9, 0.6, -1.0], [0.65, 0.35, 0.0]),  # theta = 0.5 / 2, and -1 is below it
        ([5.0, 1.0, 1.0], [1.0, 0.0, 0.0]),
        ([1e12, 1e12 - 0.5, 0.0], [0.75, 0.25, 0.0]),
        ([1e15] * 3, [1 / 3] * 3),
        ([-3.0], [1.0]),
    ):
        assert_close(project_onto_simplex(f64(v)), expected)


# golden rounds: gradients w and 4 (w - 3), eta = 0.1, one step, gamma = 0.02
#
# x = 1      F = (0.5, 8)       moved -0.1, 0.8
#   lambda (1/4, 3/4):  x = 1 - 0.025 + 0.6 = 1.575;   lambda + (0.01, 0.16) = (0.26, 0.91), less 0.085 each: (0.175, 0.825)
#   lambda (1/2, 1/2):  x = 1 + 0.35 = 1.35;           (0.51, 0.66) less 0.085: (0.425, 0.575)
# samples, x = 1.575:  F = (1.2403125, 2 * 1.425^2 = 4.06125)   moved -0.1575, 0.57
#   x = 1.575 - 0.0275625 + 0.47025 = 2.0176875
#   lambda + (0.02480625, 0.081225) = (0.19980625, 0.906225), less 0.053015625: (0.146790625, 0.853209375)
# uniform, x = 1.35:  F = (0.91125, 2 * 1.65^2 = 5.445)   moved -0.135, 0.66
#   x = 1.35 - 0.425 * 0.135 + 0.575 * 0.66 = 1.672125
#   lambda + (0.018225, 0.1089) = (0.443225, 0.6839), less 0.0635625: (0.3796625, 0.6203375)

GOLDEN = {
    "samples": ([1.575, 2.0176875], [[0.175, 0.825], [0.146790625, 0.853209375]]),
    "uniform": ([1.35, 1.672125], [[0.425, 0.575], [0.3796625, 0.6203375]]),
}


@pytest.mark.parametrize("weighting", GOLDEN)
def test_golden_two_rounds(weighting: str) -> None:
    x, mixtures = GOLDEN[weighting]
    outcomes = play(sized_pair(Afl(gamma=0.02, weighting=weighting), (1, 1)), [1.0], 2)
    assert_close(trajectory(outcomes)[:, 0], x)
    assert_close(torch.stack([o.server.state["lambda"] for o in outcomes]), mixtures)
    start = {"samples": [0.25, 0.75], "uniform": [0.5, 0.5]}[weighting]
    assert_close(outcomes[-1].server.state["mean_lambda"], (f64(start) + f64(mixtures[0])) / 2)
    assert_close(outcomes[-1].server.state["mean_x"], [(1.0 + x[0]) / 2])


def test_golden_round_of_a_cohort() -> None:
    """Client 1 alone: 2 * 0.75 of its step; its loss counts twice, (0.25, 0.75 + 0.02 * 16) less 0.16 each."""
    fed = sized_pair(Afl(gamma=0.02), (1, 1))
    object.__setattr__(fed, "selection", Only((1,)))
    server = play(fed, [1.0], 1)[0].server
    assert_close(server.x, [1 + 1.5 * 0.8])
    assert_close(server.state["lambda"], [0.09, 0.91])


def test_the_losses_are_over_all_rows_before_training() -> None:
    """With several steps on small batches, lambda depends only on the full losses at the model that was sent."""
    fed = ragged(Afl(gamma=0.01), local=Local(epochs=2, batch_size=4))
    outcome = play(fed, X0, 1)[0]
    rows = [fed.partition.rows(k) for k in range(len(RAGGED))]
    losses = [fed.task.loss(fed.task.logits(X0, fed.x[r]), fed.y[r]).mean() for r in rows]
    start = f64(RAGGED) / sum(RAGGED)
    assert_close(outcome.server.state["lambda"], project_onto_simplex(start + 0.01 * torch.stack(losses)))
    assert_close(outcome.server.x, start @ local_models(outcome))

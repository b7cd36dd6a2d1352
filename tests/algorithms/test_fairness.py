"""FairFed and F3: group fairness on two groups of people, against counts and rounds worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskew.algorithms import F3, F3Gradient, FairFed, FedAvg
from fedskew.core.errors import BadInput
from fedskew.core.records import Batch, Cohort
from fedskew.core.rows import accuracy, check_groups, counts, odds, opportunity, parity
from fedskew.execution.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.slots import Everyone, ServerSgd, Sgd
from tests.reference import apart, assert_close, f64
from tests.small import OneLayer, classifier, partition_of, play

SIZES = [6, 11, 9, 4]


TASK = classifier(OneLayer(nn.Linear(4, 2)).double(), 2)
X0 = torch.randn(TASK.space.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def people(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows with the group as last column, and labels that depend on the group."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 4))
    x[:, 3] = rng.integers(0, 2, n)
    y = (x[:, 0] + 0.8 * x[:, 3] + 0.5 * rng.standard_normal(n) > 0.4).astype(int)
    return torch.tensor(x), torch.tensor(y)


def federation(algorithm, *, selection=None, steps: int | None = None) -> Federation:
    x, y = people(sum(SIZES), 0)
    server_x, server_y = people(40, 1)
    return Federation(
        algorithm=algorithm,
        task=TASK,
        solver=Sgd(lr=0.5),
        server_optimiser=ServerSgd(),
        selection=selection or Everyone(),
        planner=SeededPlanner(Local(epochs=2, batch_size=4, steps=steps), 3),
        x=x,
        y=y,
        partition=partition_of(SIZES),
        seed=3,
        server_data=Batch(server_x, server_y, torch.ones(40, dtype=torch.float64)),
    )


def plain_gap(w: Tensor, x: Tensor, y: Tensor) -> float:
    """Return the equal-opportunity difference, computed by simple counting."""
    predicted = TASK.logits(w, x).argmax(1).numpy()
    rate = []
    for group in (0, 1):
        of = (x[:, 3].numpy() == group) & (y.numpy() == 1)
        rate.append(predicted[of].mean() if of.any() else float("nan"))
    return rate[0] - rate[1]


# the gaps


def test_gaps_by_hand() -> None:
    """Group 0: 3 of 4 positives found, 2 of 6 negatives taken. Group 1: 1 of 5, and 4 of 5."""
    rows = [(0, 1, 1)] * 3 + [(0, 1, 0)] + [(0, 0, 1)] * 2 + [(0, 0, 0)] * 4
    rows += [(1, 1, 1)] + [(1, 1, 0)] * 4 + [(1, 0, 1)] * 4 + [(1, 0, 0)]
    group, y, predicted = torch.tensor(rows).T
    cells = counts(predicted, y, group, torch.ones(20, dtype=torch.float64))
    assert_close(opportunity(cells), 3 / 4 - 1 / 5)
    assert_close(parity(cells), 5 / 10 - 5 / 10)
    assert_close(odds(cells), max(3 / 4 - 1 / 5, 4 / 5 - 2 / 6))
    assert_close(accuracy(cells), (3 + 4 + 1 + 1) / 20)
    masked = counts(predicted, y, group, torch.arange(20) < 10)
    assert masked.sum() == 10
    assert bool(opportunity(masked.double()).isnan()), "group 1 is gone"


# FairFed


def test_fairfed_round_by_hand() -> None:
    """Gaps, weights and the average of round 1 in plain numpy; the local models are FedAvg's."""
    fed = federation(FairFed(beta=0.7))
    local = X0 + play(replace(fed, algorithm=FedAvg()), X0, 1)[0].done.uploads.delta
    rows = [torch.as_tensor(fed.partition.rows(k)) for k in range(4)]
    gaps = np.array([plain_gap(X0, fed.x[r], fed.y[r]) for r in rows])
    pooled = plain_gap(X0, fed.x, fed.y)
    hit = [(TASK.logits(X0, fed.x[r]).argmax(1) == fed.y[r]).double().mean().item() for r in rows]
    right = (TASK.logits(X0, fed.x).argmax(1) == fed.y).double().mean().item()
    delta = np.where(np.isnan(gaps), np.abs(right - np.array(hit)), np.abs(pooled - gaps))
    omega = np.array(SIZES) / 30 - 0.7 * (delta - delta.mean())
    clipped = np.maximum(omega, 0)
    expected = f64(clipped / clipped.sum()) @ local
    outcome = play(fed, X0, 1)[0]
    assert_close(outcome.server.x, expected)
    assert_close(outcome.server.state["omega"], omega)
    assert_close(outcome.server.state["omega"].sum(), 1.0)
    assert apart(outcome.server.x, f64(np.array(SIZES) / 30) @ local)


def test_fairfed_without_any_weight_left_averages_by_samples() -> None:
    huge = FairFed(beta=1e6)
    fed = federation(huge)
    before = play(fed, X0, 1)[0]
    none = before.server._replace(state={"omega": torch.full((4,), -1e9, dtype=torch.float64)})
    cohort = Cohort(before.work.view.info, before.done.uploads)
    step, _ = huge.aggregate(none, cohort)
    assert_close(step, FedAvg().aggregate(none, cohort)[0])


# F3


def test_f3_rules_by_hand() -> None:
    fed = federation(FedAvg())
    local = X0 + play(fed, X0, 1)[0].done.uploads.delta
    x, y, _ = fed.server_data
    f = np.array([abs(plain_gap(w, x, y)) for w in local])
    a = np.array([(TASK.logits(w, x).argmax(1) == y).double().mean().item() for w in local])
    assert len(set(f.round(9))) == 4, "no ties"
    fairest, ranked = np.argsort(f), np.argsort(-(0.75 * a + 0.25 * (1 - f)))
    expected = {
        F3(rule="fair-best"): local[fairest[0]],
        F3(rule="fair-average", alpha=0.5): local[fairest[:2]].mean(0),
        F3(rule="fair-average", alpha=0.51): local[fairest[:3]].mean(0),
        F3(rule="fair-accuracy-average", alpha=0.5, beta=0.75): local[ranked[:2]].mean(0),
        F3(rule="fair-accuracy-average", alpha=0.5, beta=0.0): local[fairest[:2]].mean(0),
    }
    for algorithm, model in expected.items():
        outcome = play(replace(fed, algorithm=algorithm), X0, 1)[0]
        assert_close(outcome.server.x, model)
        assert_close(X0 + outcome.decisions["client/weight"] @ outcome.done.uploads.delta, model)
    best = play(replace(fed, algorithm=F3(rule="fair-best")), X0, 1)[0].server.x
    assert abs(plain_gap(best, x, y)) == f.min()


def test_f3_gradient_step_by_hand() -> None:
    """One full-batch step: w = x - eta (g_k + lam grad gap^2), with the gap's gradient from a plain loop over the rows."""
    fed = federation(F3Gradient(lam=2.0), steps=1)
    fed = replace(fed, planner=SeededPlanner(Local(steps=1, batch_size="all"), 3))
    x, y, _ = fed.server_data
    w = X0.clone().requires_grad_()
    chance = torch.softmax(TASK.logits(w, x), 1)[:, 1]
    mean = [chance[(x[:, 3] == g) & (y == 1)].mean() for g in (0, 1)]
    fair = torch.autograd.grad((mean[0] - mean[1]) ** 2, w)[0]
    plain = play(replace(fed, algorithm=FedAvg()), X0, 1)[0].server.x
    outcome = play(fed, X0, 1)[0]
    assert_close(outcome.server.x, plain - 0.5 * 2.0 * fair)
    assert outcome.bytes_down == 4 * 2 * 8 * X0.numel()


def test_f3_needs_both_classes_of_both_groups_on_the_server() -> None:
    x, y = people(40, 1)
    with pytest.raises(BadInput, match="both classes in both groups"):
        check_groups(Batch(x, torch.ones_like(y), torch.ones(40)), -1)
    with pytest.raises(BadInput, match="both classes in both groups"):
        check_groups(None, -1)


# both


def test_data_without_groups_are_refused() -> None:
    experiment = Experiment(algorithm="fairfed")
    with pytest.raises(
        BadInput, match=r"fairfed compares two groups of people, but the data set names no.*--dataset adult"
    ):
        assemble(experiment, experiment.dataset.load())

"""Survival: partial likelihood and concordance by hand and against lifelines."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

import fedskew
from fedskew.algorithms import ALGORITHMS
from fedskew.algorithms.per_fedavg import on_part
from fedskew.core.records import Batch
from fedskew.core.task import Task
from fedskew.core.trees import ParameterSpace
from fedskew.execution.build import setup_of
from fedskew.experiment.config import Experiment
from fedskew.tasks.survival import Survival, concordance
from tests.methods import first
from tests.real import real_data
from tests.small import TinyNet

TASK = Survival()
LARGE = 800.0
"""exp of it is infinite in float64."""


def targets(time, event) -> torch.Tensor:
    return torch.tensor(np.stack([time, event], axis=1), dtype=torch.float64)


def drawn(seed: int, rows: int = 30, times: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (rows, 1) and targets with many equal times."""
    rng = np.random.default_rng(seed)
    outputs = torch.tensor(rng.normal(size=(rows, 1)))
    return outputs, targets(rng.integers(1, times, size=rows), rng.random(rows) < 0.5)


def textbook(o: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Minus the log of the product over events of exp(o_i) / sum over the risk set of exp(o_j)."""
    time, event = y.unbind(-1)
    terms = [torch.log(o[i].exp() / o[time >= time[i]].exp().sum()) for i in range(len(o)) if event[i]]
    return -torch.stack(terms).sum()


# the loss


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_are_the_textbook_formula(seed: int) -> None:
    o, y = drawn(seed)
    torch.testing.assert_close(TASK.loss(o, y).sum(), textbook(o[:, 0], y), rtol=1e-13, atol=0)
    slopes = [grad(f)(o) for f in (lambda o: TASK.loss(o, y).sum(), lambda o: textbook(o[:, 0], y))]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-13)


def test_many_clients_at_once_are_each_alone() -> None:
    o, y = (torch.stack(parts) for parts in zip(*map(drawn, range(4)), strict=True))
    slope = grad(lambda o, y: TASK.loss(o, y).sum())
    alone = torch.stack([slope(*rows) for rows in zip(o, y, strict=True)])
    torch.testing.assert_close(vmap(slope)(o, y), alone, rtol=0, atol=0)


def test_large_outputs_overflow_nowhere_and_a_shift_changes_nothing() -> None:
    o, y = drawn(1)
    torch.testing.assert_close(TASK.loss(o + LARGE, y), TASK.loss(o, y), rtol=1e-10, atol=1e-12)
    wide = grad(lambda o: TASK.loss(o, y).sum())(LARGE * o)
    assert bool(wide.isfinite().all())
    torch.testing.assert_close(wide.sum(), torch.tensor(0.0, dtype=torch.float64), rtol=0, atol=1e-12)


def test_rows_without_an_event_have_no_loss() -> None:
    o, y = drawn(2)
    y[:, 1] = 0
    assert TASK.loss(o, y).tolist() == [0.0] * 30
    assert math.isnan(TASK.pooled(o, y)["c_index"])


LIFELINES = {
    None: ([0.4202762828370737, -0.04186814522355911], -14.914457285386385),
    "site": ([0.3664391801283236, -0.028958337508801793], -10.154505857712294),
}
"""Coefficients and log partial likelihood of lifelines 0.30.3, ``CoxPHFitter().fit(..., fit_options={"precision": 1e-12})``."""


@pytest.mark.parametrize("strata", LIFELINES)
def test_coefficients_of_lifelines_are_the_optimum_with_the_same_likelihood(strata: str | None) -> None:
    """Twelve rows without equal times, of one site or of two that are strata. The index has lifelines' value, too, with ties."""
    a = [0.1, 0.6, -0.5, 1.3, -0.7, -0.6, -2.3, -1.2, -0.5, 0.4, -0.1, -0.7]
    b = [-0.1, 0.1, 0.4, 0.9, -1.3, 0.0, -0.2, -0.7, -0.3, 1.0, 1.4, 0.4]
    time, event = [5, 1, 8, 3, 12, 2, 9, 7, 4, 11, 6, 10], [1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1]
    x, y = torch.tensor([a, b], dtype=torch.float64).T, targets(time, event)
    sites = [slice(0, None, 2), slice(1, None, 2)] if strata else [slice(None)]
    wanted, likelihood = LIFELINES[strata]

    def loss(beta: torch.Tensor) -> torch.Tensor:
        return sum(TASK.loss((x[rows] @ beta)[:, None], y[rows]).sum() for rows in sites)

    beta = torch.tensor(wanted, dtype=torch.float64)
    assert float(loss(beta)) == pytest.approx(-likelihood, rel=1e-13)
    assert grad(loss)(beta).tolist() == pytest.approx([0, 0], abs=1e-10)


# the concordance index


def test_concordance_equals_lifelines_with_equal_times_and_risks() -> None:
    """`lifelines.utils.concordance_index(time, -risk, event)` of version 0.30.3 on twelve rows."""
    time = np.array([2.0, 2, 3, 5, 5, 5, 7, 8, 8, 9, 9, 10])
    risk = np.array([0.0, 1, 0, 1, -1, -1, -2, -1, 0, 0, 0, -1])
    event = np.array([1.0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1])
    assert concordance(risk, time, event) == 0.6382978723404256


def by_pairs(risk, time, event) -> Fraction:
    """Harrell's C, one pair after the other."""
    total, points = 0, Fraction(0)
    for i, j in itertools.permutations(range(len(risk)), 2):
        if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
            total += 1
            points += Fraction(1, 2) if risk[i] == risk[j] else Fraction(int(risk[i] > risk[j]))
    return points / total


@pytest.mark.parametrize(("rows", "levels"), [(2, 5), (3, 1), (40, 4), (41, 1000), (64, 7)])
def test_concordance_counts_the_pairs(rows: int, levels: int) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        risk, time = rng.integers(levels, size=rows) / levels, rng.integers(1, 9, size=rows).astype(float)
        event = (rng.random(rows) < 0.5).astype(float)
        event[np.argmin(time)], time[np.argmin(time)] = 1.0, 0.5
        found = concordance(risk, time, event)
        assert found == float(by_pairs(risk, time, event))
        assert concordance(np.exp(3 * risk), time**2 + 7, event) == found, "only orders count"
        assert concordance(-risk, time, event) == pytest.approx(1 - found, abs=1e-15)


# in runs


TIMES = replace(setup_of(Experiment(task="survival")), server_rows=True, groups=False)
CLASS_FREE = [name for name in ALGORITHMS if not first(name).accepts(TIMES)]


def test_a_part_of_a_batch_has_its_own_risk_sets() -> None:
    net = TinyNet(outputs=1).double()
    task, w = Task(TASK, net, ParameterSpace(net), 1), ParameterSpace(net).flatten(net)
    x, y = torch.tensor(np.random.default_rng(3).normal(size=(9, 6))), drawn(3, rows=9)[1]
    found = on_part(1, 2)(task, None, w, Batch(x, y, torch.ones(9, dtype=torch.float64)))
    alone = TASK.loss(task.logits(w, x[1::2]), y[1::2]).mean()
    torch.testing.assert_close(found, alone, rtol=1e-12, atol=0)


def test_methods_that_need_the_gradient_of_each_row_are_refused() -> None:
    for name in ("fedbs", "fedpbs"):
        assert "a row's loss depends on other rows" in replace(first(name), variance="gradient").accepts(TIMES)
        assert not replace(first(name), variance="loss").accepts(TIMES)
    assert {"fedavg", "scaffold", "moon", "per-fedavg", "qfedavg", "ditto", "krum"} <= set(CLASS_FREE)


@pytest.mark.slow
def test_tcga_brca_reaches_the_concordance_of_the_page(tmp_path: Path) -> None:
    real_data()
    settings = {"lr": 0.1, "epochs": 1, "batch_size": "all", "rounds": 20, "engine": "sequential", "held_out": 0.0}
    found = fedskew.run(dataset="tcga-brca", algorithm="fedavg", runs=tmp_path, **settings).table()
    assert found["c_index"][0] == pytest.approx(0.826, abs=0.0005)

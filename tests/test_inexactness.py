"""The realised gamma-inexactness of local solves (FedProx, definition 2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedskew.algorithms import FedAvg, FedDyn, FedProx
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.experiment.results import run
from fedskew.loop.inexactness import inexactness
from fedskew.loop.system import System
from fedskew.slots import Sgd, Uniform
from tests.reference import PAIR, assert_close, f64, full_gradient, local_models, sized_pair
from tests.reference import run as played
from tests.small import X0, Quadratic, exact_clients, play, ragged
from tests.test_conformance import FIRST, federation
from tests.test_experiment import DATA, numbers, small

torch.set_num_threads(1)


def gammas(fed: Any, x0: Any, rounds: int = 1, engine: Any = None) -> torch.Tensor:
    return inexactness(fed, engine or Sequential(), play(fed, x0, rounds)[-1])


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_golden_gamma_by_hand(mu: float) -> None:
    """Gradients w and 4 (w - 3) from 1, step 0.1: the gradient of h shrinks by 1 - 0.1 (1 + mu) and 1 - 0.1 (4 + mu) a step.

    mu = 2, two steps: client 1 goes 1, 0.9, 0.83, where h' = 0.83 - 0.34 = 0.49 = 0.7^2 of 1; client 2 goes 1, 1.8, 2.12, where
    h' = -3.52 + 2.24 = -1.28 = -8 * 0.4^2.
    """
    expected = {0.0: [0.81, 0.36], 2.0: [0.49, 0.16]}[mu]
    assert_close(gammas(sized_pair(FedProx(mu=mu)), [1.0]), expected)


def test_an_exact_solve_is_0_and_an_overshooting_one_above_1() -> None:
    fed = exact_clients(Quadratic(), [PAIR[1]], (1,), FedProx(mu=1.0), lr=0.2)
    assert_close(gammas(fed, [1.0]), [0.0])
    fed = exact_clients(Quadratic(), [PAIR[1]], (3,), FedProx(mu=1.0), lr=0.5)
    assert_close(gammas(fed, [1.0]), [1.5**3])


def test_nothing_to_solve_has_no_gamma() -> None:
    assert gammas(exact_clients(Quadratic(), [PAIR[0]], (2,), FedAvg(), lr=0.1), [0.0]).isnan().all()


def test_weight_decay_belongs_to_the_objective() -> None:
    """h' = 4 (w - 3) + w / 2 shrinks by 0.55 a step; 4 (w - 3) alone goes from -8 to -3.35."""
    fed = exact_clients(Quadratic(), [PAIR[1]], (2,), FedAvg(), lr=None, solver=Sgd(lr=0.1, weight_decay=0.5))
    assert_close(gammas(fed, [1.0]), [0.55**2])


def test_a_straggler_solves_less_exactly() -> None:
    fed = exact_clients(Quadratic(), [PAIR[0]] * 6, (5,) * 6, FedProx(mu=1.0), lr=0.1)
    outcome = play(replace(fed, system=System(stragglers=0.5)), [1.0], 1)[0]
    assert outcome.work.turnout.stragglers == 3
    assert_close(inexactness(fed, Sequential(), outcome), 0.8 ** f64(outcome.steps))


@pytest.mark.parametrize("passes", [7, 128])
def test_of_a_network_it_is_the_ratio_of_full_gradients(monkeypatch: Any, passes: int) -> None:
    monkeypatch.setattr("fedskew.loop.plan.PASS_ROWS", passes)
    fed = ragged(FedDyn(alpha=0.4), selection=Uniform(clients=4))
    outcomes, _ = played(fed, X0, 3)
    outcome, expected = outcomes[-1], []
    x, g = outcomes[-2].server.x, outcome.work.view.state["g_k"]
    assert float(g.abs().max()) > 0
    for i, (k, w) in enumerate(zip(outcome.work.clients, local_models(outcome), strict=True)):
        rows = torch.as_tensor(fed.partition.rows(k))
        end = full_gradient(w, fed.x[rows], fed.y[rows]) - g[i] + 0.4 * (w - x)
        start = full_gradient(x, fed.x[rows], fed.y[rows]) - g[i]
        expected.append(end.norm() / start.norm())
    for engine in (Sequential(), Stacked()):
        assert_close(inexactness(fed, engine, outcome), torch.stack(expected))


@pytest.mark.parametrize("spec", FIRST)
def test_every_method_has_one_on_every_engine(spec: str) -> None:
    fed = federation(spec)
    outcome = play(fed, X0, 2)[-1]
    one, two = (inexactness(fed, engine, outcome) for engine in (Sequential(), Stacked()))
    assert_close(two, one)
    assert one.isfinite().all()


def test_it_is_stored_where_it_is_asked_for_and_changes_nothing_else(tmp_path: Any) -> None:
    plain = run(small(evaluation={"every": 2}), data=DATA, folder=tmp_path / "a")
    asked = run(small(evaluation={"every": 2, "inexactness": True}), data=DATA, folder=tmp_path / "b")
    mine = asked.measurements().query("name == 'inexactness'")
    assert set(mine["round"]) == {2, 4}
    by_client = mine.query("split == 'client'").groupby("round")["value"]
    assert (by_client.size() == 4).all()
    means = mine.query("split == 'round'").set_index("round")["value"]
    assert means.tolist() == pytest.approx(by_client.mean().tolist())
    assert numbers(plain) == [row for row in numbers(asked) if row[3] != "inexactness"]

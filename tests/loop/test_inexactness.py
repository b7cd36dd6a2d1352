"""The realised gamma-inexactness of local solves (FedProx, definition 2)."""

from typing import Any

import pytest
import torch

from fedskew.algorithms import DualMetric, F3Gradient, FedAvg, FedDyn, FedNova, FedPBS, FedProx, FedSmoo, Scaffold
from fedskew.api.functions import run
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.loop.inexactness import inexactness
from fedskew.slots import Sgd, Uniform
from tests.blobs import DATA, numbers, small
from tests.methods import FIRST, federation
from tests.reference import PAIR, apart, assert_close, full_gradient, local_models, run as played, sized_pair
from tests.small import X0, Quadratic, exact_clients, play, ragged

torch.set_num_threads(1)


def gammas(fed: Any, x0: Any, rounds: int = 1, engine: Any = None) -> torch.Tensor:
    return inexactness(fed, engine or Sequential(), play(fed, x0, rounds)[-1])


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_gamma_matches_the_numbers_by_hand(mu: float) -> None:
    """Gradients w and 4 (w - 3) from 1, step 0.1: the gradient of h shrinks by 1 - 0.1 (1 + mu) and 1 - 0.1 (4 + mu) a step.

    mu = 2, two steps: client 1 goes 1, 0.9, 0.83, where h' = 0.83 - 0.34 = 0.49 = 0.7^2 of 1; client 2 goes 1, 1.8, 2.12, where
    h' = -3.52 + 2.24 = -1.28 = -8 * 0.4^2.
    """
    expected = {0.0: [0.81, 0.36], 2.0: [0.49, 0.16]}[mu]
    assert_close(gammas(sized_pair(FedProx(mu=mu)), [1.0]), expected)


UNSTEADY = {"batch_threshold": 1.0}  # no batch is above the largest one: everybody trains with the proximal term


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        # h' shrinks by 1 - 0.1 (A + 2) a step, for A = 1 and 4
        (FedPBS(mu=2.0, **UNSTEADY), [0.49, 0.16]),
        (FedNova(mu=2.0), [0.49, 0.16]),
        # by 1 - 0.1 (A + 2) / (1 + 0.1 * 2)
        (FedProx(mu=2.0, step="implicit"), [0.5625, 0.25]),
    ],
    ids=["fedpbs", "fednova", "implicit"],
)
def test_gamma_includes_every_proximal_term(algorithm: Any, expected: list[float]) -> None:
    assert_close(gammas(sized_pair(algorithm), [1.0]), expected)


@pytest.mark.parametrize("algorithm", [Scaffold(), FedDyn(alpha=2.0), FedSmoo(beta=0.5, rho=0.0)], ids=repr)
def test_gamma_includes_corrections_from_earlier_rounds(algorithm: Any) -> None:
    """A linear term shifts the local optimum, and h' shrinks as before: by 1 - 0.1 A, or 1 - 0.1 (A + 2), a step."""
    expected = [0.81, 0.36] if isinstance(algorithm, Scaffold) else [0.49, 0.16]
    assert_close(gammas(sized_pair(algorithm), [1.0], 3), expected)


def test_gamma_uses_each_clients_own_mu() -> None:
    """DualMetric with mu = 0.4 for all clients equals FedProx."""
    ours, prox = (ragged(a) for a in (DualMetric(mu=0.4, mu_min=0.4, mu_max=0.4), FedProx(mu=0.4)))
    assert_close(gammas(ours, X0, 2), gammas(prox, X0, 2))
    assert apart(gammas(ours, X0, 2), gammas(ragged(FedAvg()), X0, 2), 1e-3)


def test_gamma_includes_the_fairness_gradient() -> None:
    outcome = play(fed := ragged(F3Gradient(lam=3.0)), X0, 1)[0]
    g_fair, expected = outcome.work.view.extras["g_fair"], []
    for k, w in zip(outcome.work.clients, local_models(outcome), strict=True):
        rows = torch.as_tensor(fed.partition.rows(k))
        start, end = (full_gradient(v, fed.x[rows], fed.y[rows]) + 3 * g_fair for v in (X0, w))
        expected.append(end.norm() / start.norm())
    assert_close(inexactness(fed, Sequential(), outcome), torch.stack(expected))


def test_gamma_is_nan_if_the_gradient_at_the_start_is_0() -> None:
    assert gammas(exact_clients(Quadratic(), [PAIR[0]], (2,), FedAvg(), lr=0.1), [0.0]).isnan().all()


def test_gamma_includes_weight_decay() -> None:
    """h' = 4 (w - 3) + w / 2 shrinks by 0.55 a step; 4 (w - 3) alone goes from -8 to -3.35."""
    fed = exact_clients(Quadratic(), [PAIR[1]], (2,), FedAvg(), lr=None, solver=Sgd(lr=0.1, weight_decay=0.5))
    assert_close(gammas(fed, [1.0]), [0.55**2])


@pytest.mark.parametrize("passes", [7, 128])
def test_gamma_of_a_network_is_the_ratio_of_full_gradients(monkeypatch: Any, passes: int) -> None:
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
def test_every_method_has_a_gamma_on_every_engine(spec: str) -> None:
    fed = federation(spec)
    outcome = play(fed, X0, 2)[-1]
    one, two = (inexactness(fed, engine, outcome) for engine in (Sequential(), Stacked()))
    assert_close(two, one)
    assert one.isfinite().all()


def test_inexactness_is_stored_on_request_and_changes_no_other_number(tmp_path: Any) -> None:
    plain = run(small(evaluation={"every": 2}), data=DATA, runs=tmp_path / "a")
    measured = run(small(evaluation={"every": 2, "inexactness": True}), data=DATA, runs=tmp_path / "b")
    mine = measured.measurements().query("name == 'inexactness'")
    assert set(mine["round"]) == {2, 4}
    by_client = mine.query("split == 'client'").groupby("round")["value"]
    assert (by_client.size() == 4).all()
    means = mine.query("split == 'round'").set_index("round")["value"]
    assert means.tolist() == pytest.approx(by_client.mean().tolist())
    assert numbers(plain) == [row for row in numbers(measured) if row[3] != "inexactness"]

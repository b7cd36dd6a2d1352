"""IFCA: who trains which model, what the clusters become, and what is sent."""

import numpy as np
import pytest
import torch

from fedskew.algorithms import FedAvg, Ifca
from fedskew.api.functions import run as run_experiment
from fedskew.core.errors import BadInput
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.execution.build import assemble
from fedskew.loop.federation import Federation
from fedskew.loop.personal import evaluate_personal
from fedskew.loop.round import start
from fedskew.slots import Momentum, ServerSgd
from tests.blobs import DATA, small
from tests.reference import assert_close, f64, ragged
from tests.small import X0, Quadratic, exact_clients, play

FOUR = [[1.0, 0.0], [1.0, 1.0], [4.0, 3.0], [1.0, 5.0]]
"""Rows (h, b) of h/2 (w - b)^2, one a client."""


def started(fed: Federation, thetas: list[float]):
    server = start(fed, f64(thetas[:1]))
    return server._replace(state={"others": f64(thetas[1:])[:, None]})


def thetas(server) -> list[float]:
    return [float(server.x), *server.state["others"][:, 0].tolist()]


# golden round: theta = (0, 4); losses at 0: 0, 0.5, 18, 12.5; at 4: 8, 4.5, 2, 0.5; so clusters 0 0 1 1. One step at 0.1:
#   0;  0 + 0.1 = 0.1;  4 - 0.1 * 4 = 3.6;  4 + 0.1 = 4.1
#   uniform  0.05 and 3.85;   with sizes 1 3 1 1  (0 + 0.3) / 4 = 0.075 and 3.85
# the best of them for each client then: 0.05, 0.05, 3.85, 3.85


@pytest.mark.parametrize(
    ("weighting", "sizes", "first"), [("uniform", 1, 0.05), ("uniform", 3, 0.05), ("samples", 3, 0.075)]
)
def test_golden_round(weighting: str, sizes: int, first: float) -> None:
    rows = [FOUR[0], *[FOUR[1]] * sizes, *FOUR[2:]]
    fed = exact_clients(Quadratic(), rows, (1,) * 4, Ifca(weighting=weighting), lr=0.1, sizes=[1, sizes, 1, 1])
    states = ClientStates()
    outcome = play(fed, None, 1, server=started(fed, [0.0, 4.0]), states=states)[0]
    assert outcome.done.uploads.report["cluster"].tolist() == [0, 0, 1, 1]
    assert_close(outcome.done.uploads.delta[:, 0], [0.0, 0.1, -0.4, 0.1])
    assert_close(f64(thetas(outcome.server)), [first, 3.85])
    scores = evaluate_personal(fed, Sequential(), outcome.server, states, np.arange(4))
    assert_close(scores["loss"], [first**2 / 2, (first - 1) ** 2 / 2, 2 * 0.85**2, 1.15**2 / 2])


def test_golden_round_of_gradient_averaging() -> None:
    """Sums over a cluster, divided by the whole cohort: 0 + 0.1 / 4 and 4 - 0.3 / 4, which is theta - 0.1 / 4 sum of gradients."""
    fed = exact_clients(Quadratic(), FOUR, (1,) * 4, Ifca(averaging="gradients"), lr=0.1)
    outcome = play(fed, None, 1, server=started(fed, [0.0, 4.0]))[0]
    assert_close(f64(thetas(outcome.server)), [0.025, 3.925])
    gradients = f64([sum(h * (t - b) for h, b in rows) for t, rows in ((0.0, FOUR[:2]), (4.0, FOUR[2:]))])
    assert_close(f64(thetas(outcome.server)), f64([0.0, 4.0]) - 0.1 / 4 * gradients)


def test_gradient_averaging_weighs_by_rows_and_keeps_an_empty_cluster() -> None:
    """Of 6 rows client 2 has 3: 0 + 3 / 6 * 0.1, 4 - 0.3 / 6."""
    rows, method = [FOUR[0], *[FOUR[1]] * 3, *FOUR[2:]], Ifca(k=3, averaging="gradients", weighting="samples")
    fed = exact_clients(Quadratic(), rows, (1,) * 4, method, lr=0.1, sizes=[1, 3, 1, 1])
    outcome = play(fed, None, 1, server=started(fed, [0.0, 4.0, -7.0]))[0]
    assert_close(f64(thetas(outcome.server)), [0.05, 3.95, -7.0])


def test_a_proximal_term_pulls_to_the_clusters_model() -> None:
    """theta = (0, 4), mu = 2, two steps of 0.1.

    0;  0.1, 0.1 - 0.1 (-0.9 + 0.2) = 0.17;  3.6, 3.6 - 0.1 (2.4 - 0.8) = 3.44;  4.1, 4.1 - 0.1 (-0.9 + 0.2) = 4.17
    """
    fed = exact_clients(Quadratic(), FOUR, (2,) * 4, Ifca(mu=2.0), lr=0.1)
    outcome = play(fed, None, 1, server=started(fed, [0.0, 4.0]))[0]
    assert_close(f64(thetas(outcome.server)), [0.085, 3.805])
    assert "mu" not in Ifca().contract().hazard(100.0)
    assert "mu = 200" in Ifca(mu=2.0).contract().hazard(100.0)


def test_an_empty_cluster_keeps_its_model() -> None:
    fed = exact_clients(Quadratic(), FOUR, (1,) * 4, Ifca(k=3), lr=0.1)
    outcome = play(fed, None, 1, server=started(fed, [0.0, 4.0, -7.0]))[0]
    assert_close(f64(thetas(outcome.server)), [0.05, 3.85, -7.0])
    outcome = play(fed, None, 1, server=started(fed, [-7.0, 4.0, 0.0]))[0]
    assert_close(f64(thetas(outcome.server)), [-7.0, 3.85, 0.05])


def test_ties_go_to_the_first_and_equal_models_collapse() -> None:
    fed = ragged(Ifca(k=3, spread=0.0))
    outcomes = play(fed, X0, 1)
    assert outcomes[0].done.uploads.report["cluster"].tolist() == [0.0] * 7
    assert_close(outcomes[0].server.state["others"], torch.stack([X0, X0]))
    theirs = play(ragged(FedAvg(weighting="uniform")), X0, 1)[0]
    assert_close(outcomes[0].server.x, theirs.server.x)


def test_initial_models_differ_by_the_spread_and_the_seed() -> None:
    def others(seed: int = 7, x0=X0, **options):
        return start(ragged(Ifca(**options), seed=seed), x0).state["others"]

    far = others(k=400, spread=0.3) - X0
    size = float(X0.square().mean().sqrt())
    assert abs(float(far.std()) / (0.3 * size) - 1) < 0.02
    assert abs(float(far.mean())) < 0.01
    assert torch.equal(others(k=3), others(k=3))
    assert not torch.equal(others(k=3), others(k=3, seed=8))
    assert float(others(k=2, x0=torch.zeros_like(X0)).std()) > 0.1, "also from a model of zeros"


def test_the_cluster_is_stored_for_each_client(tmp_path) -> None:
    runs = run_experiment(small("ifca:k=2"), data=DATA, runs=tmp_path)
    frame = runs.measurements()
    stored = frame.query("split == 'client' and name == 'cluster'")
    assert len(stored) == 4 * 4
    assert set(stored["value"]) <= {0.0, 1.0}
    assert set(frame.query("split == 'personal-model'")["round"]) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"server": Momentum()}, "use --server sgd"),
        ({"server": ServerSgd(lr=0.5)}, "use --server sgd"),
        ({"refine": "distillation", "server_data": {"share": 0.1}}, "use --refine none"),
        ({"evaluation": {"inexactness": True}}, "leave out evaluation.inexactness"),
    ],
)
def test_settings_that_need_one_model_are_refused_with_the_reason(changes, remedy: str) -> None:
    with pytest.raises(BadInput, match=rf"ifca averages more than one model.*{remedy}"):
        assemble(small("ifca", **changes), DATA)

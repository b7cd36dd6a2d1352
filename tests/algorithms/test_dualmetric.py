"""DualMetric-Adaptive FL: every cell and edge of the two tables, rounds by hand, and bounds."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.algorithms import DualMetric
from fedskew.algorithms.dualmetric import difference, inter, intra
from fedskew.core.records import Batch, Info, View
from fedskew.core.task import accuracy
from fedskew.engine.states import ClientStates
from fedskew.experiment.config import Experiment
from fedskew.loop.round import start
from tests.reference import Only, assert_close, f64, ragged, state_of
from tests.small import X0, Quadratic, exact_clients, own_rows, play

DTYPES = [torch.float32, torch.float64]


def around(edge: float, dtype) -> list[Tensor]:
    """Return the next smaller floating-point number, the number itself, and the next larger one."""
    kind = {torch.float32: np.float32, torch.float64: np.float64}[dtype]
    at = kind(edge)
    return [torch.tensor(v) for v in (np.nextafter(at, kind(-1)), at, np.nextafter(at, kind(1)))]


# the tables


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("edge", "factors"),
    [
        (-0.05, (0.85, 1.0, 0.95)),
        (-0.02, (0.95, 1.0, 1.0)),
        (0.0, (1.0, 1.0, 1.0)),
        (0.02, (1.0, 1.0, 1.05)),
        (0.05, (1.05, 1.0, 1.15)),
    ],
)
def test_inter_at_its_edges(dtype, edge: float, factors) -> None:
    assert [inter(v) for v in around(edge, dtype)] == [torch.tensor(f, dtype=dtype) for f in factors]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("d_local", "edge", "factors"),
    [
        # a fall: 1.005 up to a global change of 0, 0.95 above 0.05
        (-0.2, -0.03, (1.005, 1.005, 1.005)),
        (-0.2, 0.0, (1.005, 1.005, 1.0)),
        (-0.2, 0.05, (1.0, 1.0, 0.95)),
        # a rise: 1.05 below a global change of -0.03, 0.995 from 0
        (0.2, -0.03, (1.05, 1.0, 1.0)),
        (0.2, 0.0, (1.0, 0.995, 0.995)),
        (0.2, 0.05, (0.995, 0.995, 0.995)),
        # neither
        (0.0, -0.03, (1.0, 1.0, 1.0)),
        (0.0, 0.0, (1.0, 1.0, 1.0)),
        (0.0, 0.05, (1.0, 1.0, 1.0)),
    ],
)
def test_intra_at_the_edges_of_the_global_change(dtype, d_local, edge, factors) -> None:
    found = [intra(torch.tensor(d_local, dtype=dtype), v) for v in around(edge, dtype)]
    assert found == [torch.tensor(f, dtype=dtype) for f in factors]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("d_global", "edge", "factors"),
    [
        (-0.5, -0.03, (1.005, 1.0, 1.0)),
        (-0.5, 0.05, (1.0, 1.0, 1.05)),
        (0.0, -0.03, (1.005, 1.0, 1.0)),
        (0.0, 0.05, (1.0, 1.0, 0.995)),
        (0.5, -0.03, (0.95, 1.0, 1.0)),
        (0.5, 0.05, (1.0, 1.0, 0.995)),
        # the gaps: a fall while the global accuracy rises a little, a rise while it falls a little
        (0.03, -0.03, (1.0, 1.0, 1.0)),
        (-0.02, 0.05, (1.0, 1.0, 1.0)),
        (0.5, 0.0, (1.0, 1.0, 1.0)),
        (-0.5, 0.0, (1.0, 1.0, 1.0)),
    ],
)
def test_intra_at_the_edges_of_the_local_change(dtype, d_global, edge, factors) -> None:
    found = [intra(v, torch.tensor(d_global, dtype=dtype)) for v in around(edge, dtype)]
    assert found == [torch.tensor(f, dtype=dtype) for f in factors]


def mu_next(d_local: float, d_global: float, lead: float, **options) -> float:
    """Return the new mu of a client with one row. Its accuracy was 1/2 and rises by ``d_local``."""
    method = DualMetric(**options)
    now, zero = 0.5 + d_local, f64(0.0)
    view = View(
        x=f64([0.0]),
        extras={"d_global": f64(d_global), "mean": f64(now - lead), "aggregated": f64(1.0)},
        state={"mu": f64(method.mu), "accuracy": f64(0.5)},
        info=Info(zero, f64(1.0), f64([1.0]), f64(1.0)),
        before={"right": f64(now)},
        lr=f64(0.1),
        steps=f64(1.0),
    )
    return float(method.local_init(None, None, view)[1]["mu"])


def test_mu_stays_within_its_bounds() -> None:
    assert mu_next(0.0, 0.0, 0.3, mu=0.095) == 0.1
    assert mu_next(0.0, 0.0, -0.3, mu=0.0011) == 0.001
    free = {"mu_min": 0.0, "mu_max": float("inf")}
    assert mu_next(0.0, 0.0, 0.3, mu=0.095, **free) == pytest.approx(0.10925, rel=1e-14)
    assert mu_next(0.0, 0.0, -0.3, mu=0.0011, **free) == pytest.approx(0.000935, rel=1e-14)


# golden rounds, on a task whose accuracies can be read off


@dataclass(frozen=True)
class Above(Quadratic):
    """1/2 (w - b)^2 for a row (1, b), which is right where w > b."""

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.stack([x[:, 0] / 2 * (w[0] - x[:, 1]) ** 2, w[0] - x[:, 1]], dim=1)
        return value, value

    def scores(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": logits[:, 0], "accuracy": (logits[:, 1] > 0).to(logits.dtype)}


def above(clients: list[list[float]], own: list[float], method, *, steps=2, lr=0.2):
    rows = [[1.0, b] for client in clients for b in client]
    fed = exact_clients(Above(), rows, (steps,) * len(clients), method, lr=lr, sizes=[len(c) for c in clients])
    x = f64([[1.0, b] for b in own])
    return replace(fed, server_data=Batch(x, torch.zeros(len(own), dtype=torch.long), torch.ones(len(own)).double()))


def averaged(x: float, mu: list[float]) -> float:
    """Return the mean of both clients' models after two proximal steps from ``x`` on the means 3 and 6."""
    moved = [x, x]
    for _ in range(2):
        moved = [w - 0.2 * (w - mean + m * (w - x)) for w, mean, m in zip(moved, (3.0, 6.0), mu, strict=True)]
    return sum(moved) / 2


GOLDEN = {
    # accuracies of clients   1/4, 0    1/2, 0    1/2, 1/4     1/2, 1/4
    # change, local           -         -         0, 1/4       0, 0
    # lead                    -         -         1/8, -1/8    1/8, -1/8
    "received": (
        [(1, 1), (1, 1), (1 * 1.15, 0.995 * 0.85), (1 * 1.15, 1 * 0.85)],
        [(-1, -1), (0.5, 0.0), (0.5, 0.25), (0.5, 0.25)],
        [[0, 0], [0, 0], [2, 3], [2, 2]],
    ),
    # models 1.72 and 2.79, 2.73 and 3.59, 3.10 and 4.17 after their steps; mu moves by them in the next round
    # accuracies of clients   1/4, 0    1/2, 1/4    1/2, 1/4
    # change, local           -         1/4, 1/4    0, 0
    # lead                    -         1/8, -1/8   1/8, -1/8
    "updated": (
        [(1, 1), (1, 1), (0.995 * 1.15, 0.995 * 0.85), (1 * 1.15, 1 * 0.85)],
        [(0.25, 0.0), (0.5, 0.25), (0.5, 0.25), (0.5, 0.25)],
        [[0, 0], [0, 0], [3, 3], [2, 2]],
    ),
}
"""By the measured model: the factors of both mu in each round, the clients' accuracies after it, and the rules that fired."""


@pytest.mark.parametrize("measured", GOLDEN)
def test_golden_four_rounds(measured: str) -> None:
    """Means 3 and 6, two steps of 0.2: the model goes 1 -> 2.25 -> 3.06 -> 3.57; the server's rows 1/5, 2/5, 3/5, 4/5."""
    factors, accuracies, rules = GOLDEN[measured]
    method = DualMetric(mu=0.05, measured=None if measured == "received" else measured)
    fed = above([[0, 2, 4, 6], [3, 5, 7, 9]], [0.5, 1.5, 2.5, 3.5, 4.5], method)
    x, mu, states, server = 1.0, [0.05, 0.05], ClientStates(), None
    for t in range(4):
        outcome = play(fed, [1.0], t + 1, server=server, states=states)[-1]
        server = outcome.server
        mu = [m * f for m, f in zip(mu, factors[t], strict=True)]
        x = averaged(x, mu)
        assert_close(server.x, [x])
        assert_close(outcome.decisions["client/mu"], mu)
        assert_close(state_of(states, "mu", 2, f64(0.0)), mu)
        assert_close(state_of(states, "accuracy", 2, f64(0.0)), accuracies[t])
        assert_close(server.state["accuracy"], [0.0, 0.4, 0.6, 0.8][t])
        assert outcome.decisions["client/rule"].tolist() == rules[t]
    assert_close(server.state["d_global"], 0.2)
    assert_close(server.state["mean"], 0.375)


def test_only_the_measured_models_rows_are_read() -> None:
    received, updated = (ragged(DualMetric(measured=which)).program for which in (None, "updated"))
    assert (received.after, updated.before) == (None, None)
    assert "measured" not in Experiment(algorithm="dualmetric").toml()


@pytest.mark.parametrize("empty", [0, 1])
def test_the_initial_model_is_no_last_accuracy_even_after_empty_rounds(empty: int) -> None:
    """The accuracy rises from 0 to 4/5 at once. If the initial accuracies counted, the second round would have factor 0.995."""
    fed = above([[0.1, 0.1, 0.1, 0.1, 5.0]] * 2, [0.1], DualMetric(mu=0.05), steps=1, lr=0.5)
    outcomes = play(fed, [0.0], 3 + empty, server=start(fed, f64([0.0]))._replace(round=empty))
    assert [o.done.uploads.report["mu"].tolist() for o in outcomes] == [[0.05, 0.05]] * 3


def test_a_change_by_exactly_a_threshold_is_at_it_and_not_beyond() -> None:
    """Of n rows, n / 20 more or fewer: 0.05 for every n and from every count, though 0.15 - 0.1 is not."""
    assert 0.15 - 0.1 != 0.05
    for n in range(20, 420, 20):
        right = f64(range(n - n // 20 + 1))
        for sign in (1, -1):
            change = sign * difference((right + n // 20) / n, right / n)
            assert (change == sign * 0.05).all()
            assert (inter(change) == 1).all()
            assert (intra(change, f64(-0.5)) == (1 if sign > 0 else 1.005)).all()
    thousandths = difference(f64([0.151, 0.149]), f64([0.1, 0.1]))
    assert inter(thousandths).tolist() == [1.15, 1.05]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_client_at_a_threshold_keeps_its_mu_at_any_precision(dtype) -> None:
    """Accuracies 3/20 and 1/20 with a mean of 1/10: the leads are 0.05 and -0.05, which no row of the table covers."""
    method = DualMetric()
    for right, moved in ((3.0, 1.0), (1.0, 1.0), (4.0, 1.15), (0.0, 0.85)):
        view = View(
            x=torch.zeros(1, dtype=dtype),
            extras={"d_global": f64(0.0), "mean": f64([3 / 20, 1 / 20]).mean(), "aggregated": f64(1.0)},
            state={"mu": torch.tensor(0.01, dtype=dtype), "accuracy": f64(right / 20)},
            info=Info(*torch.tensor([0.0, 20.0, 20.0, 20.0], dtype=dtype)),
            before={"right": torch.tensor(right, dtype=dtype)},
            lr=torch.tensor(0.1, dtype=dtype),
            steps=torch.tensor(1.0, dtype=dtype),
        )
        mu = method.local_init(None, None, view)[1]["mu"]
        assert mu.dtype == dtype
        assert float(mu) == pytest.approx(0.01 * moved, rel=1e-6)


def standing(method, leads: list[list[float]], own=(0.0,)):
    """Return clients whose model and accuracies do not change, because the learning rate is almost 0."""
    return above(leads, list(own), method, steps=1, lr=1e-12)


# the two accuracies


@pytest.mark.parametrize("count", [1, 30, 1024, 2500])
def test_the_global_accuracy_is_on_the_servers_rows(count: int) -> None:
    fed, data = ragged(DualMetric()), own_rows(count)
    right = fed.task.logits(X0, data.x).argmax(1) == data.y
    assert_close(accuracy(fed.task, X0, data), right.double().mean())
    half = data._replace(mask=(torch.arange(count) % 2 == 0).double())
    assert_close(accuracy(fed.task, X0, half), right[::2].double().mean())


def test_only_the_cohort_moves_its_mu_against_its_own_mean() -> None:
    """Accuracies 1, 0, 1/2. Clients 0 and 2 alone lead by 1/4 and -1/4; 1 and 2 alone by -1/4 and 1/4."""
    fed, states, server = standing(DualMetric(), [[-1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]), ClientStates(), None
    expected = [0.01, 0.01, 0.01]
    # everybody twice, to have a last accuracy; then who is there
    plan = [((0, 1, 2), {}), ((0, 1, 2), {}), ((0, 2), {0: 1.15, 2: 0.85}), ((1, 2), {1: 0.85, 2: 1.15}), ((0,), {})]
    for t, (members, factors) in enumerate(plan):
        object.__setattr__(fed, "selection", Only(members))
        server = play(fed, [0.0], t + 1, server=server, states=states)[-1].server
        expected = [m * factors.get(k, 1.0) for k, m in enumerate(expected)]
        assert_close(state_of(states, "mu", 3, f64(0.0)), expected)


def test_a_late_client_moves_its_mu_when_it_comes_back() -> None:
    fed, states, server = standing(DualMetric(), [[-1.0], [1.0]]), ClientStates(), None
    mus = []
    for t, members in enumerate([(0,), (0,), (0, 1), (0, 1)]):
        object.__setattr__(fed, "selection", Only(members))
        server = play(fed, [0.0], t + 1, server=server, states=states)[-1].server
        mus.append(state_of(states, "mu", 2, f64(0.0)).tolist() if t > 1 else [])
    assert_close(f64(mus[2]), [0.01 * 1.15, 0.01])
    assert_close(f64(mus[3]), [0.01 * 1.15**2, 0.01 * 0.85])

"""Coordinate-wise median and trimmed mean, Krum and Multi-Krum."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.algorithms import FedAvg, Krum, Median, TrimmedMean
from fedskew.api.functions import run as run_experiment
from fedskew.core.errors import BadInput, Diverged, TooFew
from fedskew.core.records import Cohort, Info, Upload
from fedskew.core.trees import square_distances
from fedskew.data.dataset import Dataset
from fedskew.execution.build import check_clients
from fedskew.execution.plan import prepare
from fedskew.experiment.config import Experiment
from fedskew.experiment.settings import Training
from fedskew.loop.round import start
from fedskew.slots import Uniform
from fedskew.studies.compare import cross
from tests.reference import Only, apart, assert_close, f64, ragged, run
from tests.small import X0, Linear, Quadratic, exact_clients, play

SERVER = start(ragged(FedAvg()), X0)
METHODS = {
    "median": Median(),
    "trimmed mean": TrimmedMean(beta=0.3),
    "krum": Krum(f=2),
    "multi-krum": Krum(f=2, c=4),
}
EVERY = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def result(algorithm, deltas: Tensor) -> Tensor:
    """Return the method's aggregate of these updates (C, P)."""
    info = Info(*(torch.arange(len(deltas)) + 1.0 for _ in Info._fields))
    return algorithm.aggregate(SERVER, Cohort(info, Upload(deltas, {}, {})))[0]


def updates(clients: int, params: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(clients, params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# golden rounds: constant gradients, one step at eta = 1, from x = (10, 10); the deltas are minus the rows

ROWS = [[1.0, -2.0], [2.0, 8.0], [3.0, 0.0], [4.0, 1.0], [100.0, -1.0]]


@pytest.mark.parametrize(
    ("algorithm", "delta"),
    [
        (Median(), (-3.0, 0.0)),  # of 1 2 3 4 100 and of -2 -1 0 1 8
        (TrimmedMean(beta=0.2), (-3.0, 0.0)),  # b = 1: (2 + 3 + 4) / 3, (-1 + 0 + 1) / 3
        (TrimmedMean(beta=0.19), (-22.0, -1.2)),  # b = 0: 110 / 5, 6 / 5
        # square distances 1-2: 101, 1-3: 8, 1-4: 18, 2-3: 65, 2-4: 53, 3-4: 2, those to 5 above 9000; of m - f - 2 = 2
        # scores 26, 118, 10, 20
        (Krum(f=1), (-3.0, 0.0)),
        (Krum(f=1, c=3), (-8 / 3, 1 / 3)),  # the rows 3, 4, 1
        # m - f - 2 = 3: scores 127, 219, 75, 73
        (Krum(f=0), (-4.0, -1.0)),
    ],
)
def test_golden_round(algorithm, delta: tuple[float, float]) -> None:
    fed = exact_clients(Linear(), ROWS, (1,) * 5, algorithm, lr=1.0)
    assert_close(play(fed, [10.0, 10.0], 1)[0].server.x, [10 + delta[0], 10 + delta[1]])


@pytest.mark.parametrize("m", [1, 2, 3, 8, 9])
def test_median_and_trimmed_mean_against_numpy(m: int, monkeypatch) -> None:
    monkeypatch.setattr("fedskew.core.trees.CHUNK", 2 * m)  # two columns at a time
    deltas = updates(m, 7)
    assert_close(result(Median(), deltas), np.median(deltas.numpy(), axis=0))
    for beta in (0.0, 0.1, 0.25, 0.49):
        b = int(np.floor(beta * m))
        assert_close(result(TrimmedMean(beta=beta), deltas), np.sort(deltas.numpy(), axis=0)[b : m - b].mean(0))


def test_the_share_is_a_decimal_number() -> None:
    """0.29 * 100 is 28.999... in floating point."""
    deltas = updates(100, 2)
    assert_close(result(TrimmedMean(beta=0.29), deltas), np.sort(deltas.numpy(), axis=0)[29:71].mean(0))


@pytest.mark.parametrize(("m", "f", "c"), [(5, 1, 1), (9, 3, 1), (9, 2, 5), (9, 0, 9), (12, 1, 11)])
def test_krum_against_plain_loops(m: int, f: int, c: int, monkeypatch) -> None:
    monkeypatch.setattr("fedskew.core.trees.CHUNK", 2 * m)
    d = updates(m, 7).numpy()
    scores = []
    for k in range(m):
        others = sorted(float(((d[k] - d[j]) ** 2).sum()) for j in range(m) if j != k)
        scores.append(sum(others[: m - f - 2]))
    best = sorted(range(m), key=lambda k: scores[k])[:c]
    assert_close(result(Krum(f=f, c=c), torch.tensor(d)), d[best].mean(0))


def test_square_distances_against_torch() -> None:
    rows = updates(9, 40)
    far = square_distances(torch.cat([rows[:2], 1e200 * rows[2:4]]))
    assert far.isinf().tolist() == [[False, False, True, True]] * 2 + [[True] * 4] * 2
    assert_close(square_distances(rows), torch.cdist(rows, rows).square(), 1e-12)
    assert float(square_distances(rows.float() * 0 + 1e6).min()) >= 0


# what broken clients can do


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [1e30, -1e30])
@EVERY
def test_two_broken_clients_of_nine_stay_without_effect(method, value: float, dtype: torch.dtype) -> None:
    """Each coordinate stays within the range of the honest updates. Krum selects only honest updates."""
    honest = updates(7).to(dtype)
    low, high = honest.min(0).values, honest.max(0).values
    for at in (0, 4, 7):
        broken = torch.full((2, 5), value, dtype=dtype)
        broken[1, ::2] *= -1
        got = result(method, torch.cat([honest[:at], broken, honest[at:]]))
        assert got.dtype == dtype
        assert bool(((low <= got) & (got <= high)).all())
    assert apart(result(FedAvg(weighting="uniform"), torch.cat([honest, broken])), honest.mean(0), 1.0)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@EVERY
def test_updates_that_are_not_finite_are_left_out(method, broken: float) -> None:
    deltas = updates(9)
    with_broken = torch.cat([deltas[:3], torch.full((1, 5), 0.1).double(), deltas[3:]])
    with_broken[3, 2] = broken
    assert torch.equal(result(method, with_broken), result(method, deltas))


def test_updates_whose_squares_overflow_are_far_from_everybody() -> None:
    deltas = torch.cat([updates(7), f64([[1e200] * 5, [1e200] * 5])])
    assert float(result(Krum(f=2, c=4), deltas).abs().max()) < 10


@pytest.mark.parametrize("method", [Median(), TrimmedMean(beta=0.2), Krum(f=1)], ids=["median", "trimmed", "krum"])
def test_a_run_survives_a_diverging_client(method) -> None:
    """Client 2 diverges, because its curvature is far above 2 / lr. FedAvg stops and names this client."""
    rows = [[1.0, 0.5], [1.2, 1.0], [1e150, -1.0], [0.8, 0.7], [1.1, 0.9], [0.9, 0.6]]
    fed = exact_clients(Quadratic(), rows, (4,) * 6, method, lr=0.5)
    end = play(fed, [3.0], 20)[-1].server.x
    assert 0.4 < float(end) < 1.1
    with pytest.raises(Diverged, match="round 1, client 2: "):
        play(replace(fed, algorithm=FedAvg()), [3.0], 1)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_run_with_a_broken_client_stores_no_undefined_measures(engine: str, tmp_path) -> None:
    rng = np.random.default_rng(0)
    y, groups = np.arange(120) % 3, np.arange(120) % 6
    x = rng.standard_normal((120, 4)).astype(np.float32) + np.eye(4)[y].astype(np.float32)
    x[groups == 3] *= 1e30
    kept = groups != 3
    data = Dataset(x=x, y=y, x_test=x[kept], y_test=y[kept], classes=tuple("abc"), groups=groups, name="broken sensor")
    experiment = Experiment(
        algorithm=Median(), skew="natural", model="softmax", engine=engine, training=Training(rounds=3, threads=1)
    )
    runs = run_experiment(experiment, data=data, runs=tmp_path)
    frame = runs.measurements()
    assert [record.status for record in runs.records] == ["finished"]
    assert frame["value"].notna().all()
    assert set(frame.query("split == 'client' and name == 'update_norm'")["client"]) == {0, 1, 2, 4, 5}
    assert "drift" not in set(frame["name"])
    assert float(frame.query("split == 'test' and name == 'accuracy' and round == 3")["value"].iloc[0]) > 0.4
    assert len(runs.table()) == 1


def test_too_many_broken_clients_stop_the_run() -> None:
    rows = [[1.0, 0.5], [1.2, 1.0], [1e150, -1.0], [0.8, 0.7], [1e150, 0.9], [0.9, 0.6]]
    fed = exact_clients(Quadratic(), rows, (4,) * 6, Krum(f=1), lr=0.5)
    with pytest.raises(Diverged, match="round 1, client 2 and 1 more"):
        play(fed, [3.0], 1)
    with pytest.raises(Diverged, match="round 1, client 0 and 1 more"):
        play(exact_clients(Quadratic(), [[1e150, 1.0]] * 2, (4, 4), Median(), lr=0.5), [3.0], 1)


# how many are needed


def test_too_small_a_cohort_is_refused_before_anything_starts() -> None:
    for selection in (Uniform(clients=4), Uniform(fraction=0.4)):
        experiment = Experiment(algorithm=Krum(f=1), selection=selection)
        with pytest.raises(BadInput, match="krum needs at least 5 clients in a round, but the selection gives 4"):
            check_clients(experiment, 10)
    with pytest.raises(BadInput, match="krum needs at least 9 clients in a round, but the selection gives 8"):
        check_clients(Experiment(algorithm=Krum(f=1, c=8)), 8)
    check_clients(Experiment(algorithm=Krum(f=1, c=7)), 8)
    check_clients(Experiment(algorithm=Krum(f=3), selection=Uniform(clients=9)), 10)
    check_clients(Experiment(algorithm=Median(), selection=Uniform(clients=1)), 10)


def test_a_comparison_with_it_is_refused_too() -> None:
    base = Experiment(selection=Uniform(clients=4), training=Training(rounds=1))
    with pytest.raises(BadInput, match="krum needs at least 5 clients"):
        prepare(cross(base, ["fedavg", "krum"], [0]), None, 1)


def test_too_small_a_cohort_is_refused_before_it_is_aggregated() -> None:
    fed = replace(ragged(Krum(f=1)), selection=Only((1, 2, 4, 6)))
    with pytest.raises(
        TooFew, match="round 1: 4 of 4 clients gave a usable answer, but 5 are needed; select more clients"
    ):
        run(fed, X0, 1)

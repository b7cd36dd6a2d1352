"""FedAvg and its baselines: centralised, parallel and local SGD."""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest
import torch

from fedskew.algorithms import FedAvg
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.skew.partition import deal
from fedskew.slots import Momentum, ServerSgd, Sgd
from tests.reference import (
    Batches,
    Only,
    apart,
    assert_close,
    f64,
    full_gradient,
    local_models,
    matrices,
    matrix_clients,
    optimum,
    ragged,
    real_batches,
    sized_pair,
    torch_sgd,
    train_plain,
    trajectory,
)
from tests.small import RAGGED, X0, Linear, Quadratic, exact_clients, play

BOTH = ["samples", "uniform"]
FULL_BATCH = Local(epochs=1, batch_size="all")


# golden round


def test_golden_round_with_a_shorter_last_batch() -> None:
    # h = 1 everywhere, x = 1, eta = 0.1. Client 1 has the row b = 0, client 2 the batches b = (1, 3) and b = (5)
    # client 1: 1 - 0.1 (1 - 0)       = 0.9
    # client 2: 1 - 0.1 (1 - (1+3)/2) = 1.1,  then 1.1 - 0.1 (1.1 - 5) = 1.49
    # samples:  (1/4) 0.9 + (3/4) 1.49 = 0.225 + 1.1175 = 1.3425;   uniform: (0.9 + 1.49) / 2 = 1.195
    rows = [[1.0, 0.0], [1.0, 1.0], [1.0, 3.0], [1.0, 5.0]]
    planner = Batches({0: [[0]], 1: [[1, 2], [3]]})
    for weighting, expected in (("samples", 1.3425), ("uniform", 1.195)):
        fed = exact_clients(Quadratic(), rows, (1, 2), FedAvg(weighting=weighting), lr=0.1, sizes=[1, 3])
        assert_close(play(replace(fed, planner=planner), [1.0], 1)[0].server.x, [expected])


def test_golden_two_rounds_with_a_server_rate() -> None:
    # gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps, eta_g = 1/2, samples 1/4 and 3/4
    # round 0: 1 -> 0.9 -> 0.81 (-0.19);  1 -> 1.8 -> 2.28 (+1.28);  x = 1 + (-0.0475 + 0.96) / 2 = 1.45625
    # round 1: -0.19 x = -0.2766875;  (1 - 0.6^2) (3 - x) = 0.64 * 1.54375 = 0.988
    #          x = 1.45625 + (0.25 * -0.2766875 + 0.75 * 0.988) / 2 = 1.45625 + 0.3359140625
    outcomes = play(sized_pair(FedAvg(), server=ServerSgd(lr=0.5)), [1.0], 2)
    assert_close(trajectory(outcomes)[:, 0], [1.45625, 1.7921640625])


# T-Q and T-L


@pytest.mark.parametrize("weighting", BOTH)
@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_quadratic_closed_form(weighting: str, rate: float) -> None:
    """w_k = b_k + (I - eta A_k)^tau_k (w - b_k), over several rounds, with unequal A, tau and n."""
    a, b = matrices(3)
    steps, sizes, lr = (1, 4, 7), (1, 2, 4), 0.2
    fed = matrix_clients(a, b, steps, FedAvg(weighting=weighting), lr=lr, sizes=sizes, server=ServerSgd(lr=rate))
    p = f64(sizes if weighting == "samples" else (1, 1, 1))
    p = p / p.sum()
    w = f64([2.0, -1.0])
    for outcome in play(fed, w, 4):
        ends = [b[k] + torch.linalg.matrix_power(torch.eye(2) - lr * a[k], steps[k]) @ (w - b[k]) for k in range(3)]
        assert_close(local_models(outcome), torch.stack(ends))
        w = w + rate * (p @ (torch.stack(ends) - w))
        assert_close(outcome.server.x, w)


@pytest.mark.parametrize("rate", [1.0, 0.5, 1.5])
def test_biased_fixed_point(rate: float) -> None:
    """A = (1, 3), b = (1, -1), eta 0.1, 10 steps: (M_1 - M_2) / (M_1 + M_2), not the optimum -1/2."""
    m1, m2 = 1 - 0.9**10, 1 - 0.7**10
    point = (m1 - m2) / (m1 + m2)
    assert abs(point + 0.197422) < 1e-6
    fed = exact_clients(Quadratic(), [[1, 1], [3, -1]], (10, 10), FedAvg(), lr=0.1, server=ServerSgd(lr=rate))
    assert abs(float(play(fed, [point], 1)[-1].server.x) - point) < 1e-14
    assert_close(play(fed, [5.0], 30)[-1].server.x, [point], 1e-6)
    assert apart(play(fed, [-0.5], 1)[-1].server.x, [-0.5], 0.01)


@pytest.mark.parametrize("weighting", BOTH)
def test_fixed_point_with_matrices(weighting: str) -> None:
    """(sum p M)^-1 sum p M b, M_k = I - (I - eta A_k)^tau_k."""
    a, b = matrices(3)
    steps, sizes, lr = (2, 5, 9), (3, 1, 2), 0.2
    fed = matrix_clients(a, b, steps, FedAvg(weighting=weighting), lr=lr, sizes=sizes)
    p = f64(sizes) / 6 if weighting == "samples" else f64((1, 1, 1)) / 3
    m = torch.stack([torch.eye(2) - torch.linalg.matrix_power(torch.eye(2) - lr * a[k], steps[k]) for k in range(3)])
    point = optimum(m, b, p)
    assert_close(play(fed, point, 1)[0].server.x, point, 1e-13)
    assert apart(point, optimum(a, b, p), 1e-3)


@pytest.mark.parametrize(("common", "steps"), [(True, (5, 5, 5)), (False, (1, 1, 1))])
def test_unbiased_if_all_equal_or_one_step(common: bool, steps: tuple[int, ...]) -> None:
    a, b = matrices(3, common=common)
    sizes = (1, 2, 4)
    best = optimum(a, b, f64(sizes) / 7)
    assert_close(play(matrix_clients(a, b, steps, FedAvg(), lr=0.2, sizes=sizes), best, 1)[0].server.x, best, 1e-13)


@pytest.mark.parametrize("steps", [1, 6])
def test_common_curvature_contracts_at_the_power_of_local_steps(steps: int) -> None:
    """The error multiplies by (I - eta A)^tau a round; with uniform weights the limit is mean b."""
    a, b = matrices(3, common=True)
    fed = matrix_clients(a, b, (steps,) * 3, FedAvg(weighting="uniform"), lr=0.15)
    x = f64([1.0, 2.0])
    factor = torch.linalg.matrix_power(torch.eye(2) - 0.15 * a[0], steps)
    for outcome in play(fed, x, 4):
        error = factor @ (outcome.work.view.x - b.mean(0))
        assert_close(outcome.server.x, b.mean(0) + error)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_linear_losses_move_by_the_solver_response(momentum: float) -> None:
    """-eta g_k [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho): the buffer starts afresh in every round."""
    g, steps, lr = [[1.0, -2.0], [0.5, 3.0]], (3, 8), 0.1
    fed = exact_clients(Linear(), g, steps, FedAvg(), lr=lr, solver=Sgd(lr=lr, momentum=momentum))
    response = [(t - momentum * (1 - momentum**t) / (1 - momentum)) / (1 - momentum) for t in steps]
    expected = -lr * f64(g) * f64(response)[:, None]
    for outcome in play(fed, [0.3, 0.7], 3):
        assert_close(outcome.done.uploads.delta, expected)


def test_learning_rate_decays_by_round() -> None:
    fed = exact_clients(Linear(), [[2.0]], (3,), FedAvg(), lr=None, solver=Sgd(lr=0.1, lr_decay=0.5))
    for t, outcome in enumerate(play(fed, [0.0], 4)):
        assert_close(outcome.done.uploads.delta, [[-3 * 0.1 * 0.5**t * 2]])


# FedSGD, one client, identical clients


@pytest.mark.parametrize("sizes", [[99], [33, 33, 33], RAGGED, [1] * 99], ids=len)
def test_fedsgd_is_gradient_descent_on_the_pooled_data_for_any_partition(sizes: list[int]) -> None:
    fed = ragged(FedAvg(), local=FULL_BATCH, sizes=sizes, solver=Sgd(lr=0.5))
    w = X0
    for outcome in play(fed, X0, 3):
        w = w - 0.5 * full_gradient(w, fed.x, fed.y)
        assert_close(outcome.server.x, w)


def test_uniform_fedsgd_descends_the_uniform_objective() -> None:
    fed = ragged(FedAvg(weighting="uniform"), local=FULL_BATCH)
    rows = [fed.partition.rows(k) for k in range(len(RAGGED))]
    g = torch.stack([full_gradient(X0, fed.x[r], fed.y[r]) for r in rows]).mean(0)
    assert_close(play(fed, X0, 1)[0].server.x, X0 - 0.1 * g)


@pytest.mark.parametrize("batches", ["shuffled", "independent"])
@pytest.mark.parametrize("steps", [None, 4])
def test_one_client_is_centralised_sgd(batches: str, steps: int | None) -> None:
    """FedAvg equals one SGD run over the batches of all rounds, also with a shorter last batch."""
    local = Local(epochs=2, steps=steps, batch_size=8, batches=batches)
    fed = ragged(FedAvg(), local=local, sizes=[37])
    everything = [batch for t in range(3) for batch in real_batches(fed, t, 0)]
    assert len(everything) == 3 * (steps or 10)
    w, _ = train_plain(X0, everything, torch_sgd(fed.solver))
    assert_close(play(fed, X0, 3)[-1].server.x, w)


def test_full_batch_training_ignores_the_order_of_the_rows() -> None:
    fed = ragged(FedAvg(), local=Local(epochs=3, batch_size="all"))
    order = np.random.default_rng(5)
    mixed = np.concatenate([order.permutation(fed.partition.rows(k)) for k in range(len(RAGGED))])
    shuffled = replace(fed, x=fed.x[mixed], y=fed.y[mixed])
    assert apart(shuffled.x, fed.x)
    assert_close(trajectory(play(shuffled, X0, 2)), trajectory(play(fed, X0, 2)))


# weighting and aggregation


@pytest.mark.parametrize("rate", [1.0, 0.5, 1.7])
def test_averaging_models_equals_averaging_deltas_only_at_server_rate_one(rate: float) -> None:
    outcome = play(ragged(FedAvg(), server=ServerSgd(lr=rate)), X0, 1)[0]
    p = f64(RAGGED) / sum(RAGGED)
    average = p @ local_models(outcome)
    if rate == 1:
        assert_close(outcome.server.x, average)
    else:
        assert apart(outcome.server.x, average)
    assert_close(outcome.server.x, (1 - rate) * X0 + rate * average)


@pytest.mark.parametrize(("sizes", "same"), [([9, 9, 9], True), ([9, 9, 8], False)])
def test_samples_is_uniform_only_for_equal_sizes(sizes: list[int], same: bool) -> None:
    a, b = (trajectory(play(ragged(FedAvg(weighting=w), sizes=sizes), X0, 3)) for w in BOTH)
    assert apart(a, b, 1e-13) is not same


def test_unbiased_weights_average_to_the_full_mean_over_all_cohorts() -> None:
    """(K / m) n_k / n: their expectation over uniform cohorts is exact, which samples' is not."""
    g = f64([[1.0], [-2.0], [5.0], [0.5]])
    sizes = [1, 2, 4, 5]
    rows = g.repeat_interleave(torch.tensor(sizes), 0).tolist()
    full = -0.1 * 3 * float(f64(sizes) / 12 @ g[:, 0])
    for weighting, unbiased in (("unbiased", True), ("samples", False)):
        fed = exact_clients(Linear(), rows, (3,) * 4, FedAvg(weighting=weighting), lr=0.1, sizes=sizes)
        for m in (1, 2, 3):
            cohorts = list(combinations(range(4), m))
            steps = [float(play(replace(fed, selection=Only(c)), [0.0], 1)[0].server.x) for c in cohorts]
            assert (abs(float(np.mean(steps)) - full) < 1e-14) is unbiased
        assert abs(float(play(fed, [0.0], 1)[0].server.x) - full) < 1e-14


def test_samples_weights_are_normalised_within_the_cohort() -> None:
    rows = [[1.0], [-2.0], [-2.0], [5.0]]
    fed = exact_clients(Linear(), rows, (1,) * 3, FedAvg(), lr=1.0, sizes=[1, 2, 1])
    # clients 0 and 1: -(1 * 1 + 2 * (-2)) / 3 = 1
    assert_close(play(replace(fed, selection=Only((0, 1))), [0.0], 1)[0].server.x, [1.0])


@dataclass(frozen=True)
class Dealt:
    """A skew that returns a given partition."""

    parts: tuple[tuple[int, ...], ...]

    def deal(self, labels, groups, num_clients, rng):
        return [np.asarray(part, dtype=np.int64) for part in self.parts]


@pytest.mark.parametrize("weighting", [*BOTH, "unbiased"])
def test_clients_without_data_change_nothing(weighting: str) -> None:
    fed = ragged(FedAvg(weighting=weighting), local=Local(epochs=3, batch_size="all"), sizes=[4, 6])
    labels = fed.y.numpy()
    full, gaps = (((0, 1, 2, 3), tuple(range(4, 10))), ((), (0, 1, 2, 3), (), tuple(range(4, 10)), ()))
    results = []
    for parts in (full, gaps):
        partition = deal(Dealt(parts), labels, None, len(parts), 0)
        assert list(partition.sizes) == [4, 6]
        results.append(trajectory(play(replace(fed, partition=partition), X0, 2)))
    assert_close(results[1], results[0])


@pytest.mark.parametrize(("local", "same"), [(FULL_BATCH, True), (Local(epochs=1, batch_size=4), False)])
def test_splitting_a_client_changes_fedavg_but_not_fedsgd(local: Local, same: bool) -> None:
    """Each half of the client takes half of the steps."""
    whole, halves = ragged(FedAvg(), local=local, sizes=[16, 8]), ragged(FedAvg(), local=local, sizes=[8, 8, 8])
    assert apart(play(whole, X0, 1)[0].server.x, play(halves, X0, 1)[0].server.x, 1e-12) is not same


@pytest.mark.parametrize(("sizes", "mean_steps"), [([10, 90], 82.0), ([50, 50], 50.0)])
def test_mean_number_of_local_steps_grows_with_the_spread_of_sizes(sizes: list[int], mean_steps: float) -> None:
    """sum p_k tau_k = (E / B) (n / K) (1 + CV^2); every planned step is really taken."""
    rows = [[1.0]] * 100
    fed = exact_clients(Linear(), rows, (0,) * 2, FedAvg(), lr=1.0, sizes=sizes)
    fed = replace(fed, planner=SeededPlanner(Local(epochs=1, batch_size=1), 0))
    outcome = play(fed, [0.0], 1)[0]
    assert list(outcome.steps) == sizes
    assert_close(outcome.server.x, [-mean_steps])


# parallel and local SGD


def union_step(fed, w, round_: int) -> torch.Tensor:
    """Take one SGD step on the union of all clients' first batches."""
    first = [real_batches(fed, round_, k)[0] for k in range(len(fed.partition))]
    x, y = (torch.cat(part) for part in zip(*first, strict=True))
    return w - fed.solver.lr * full_gradient(w, x, y)


@pytest.mark.parametrize(("sizes", "same"), [([17, 9, 24, 8], True), ([17, 9, 24, 3], False)])
def test_parallel_sgd_is_one_step_on_the_union_batch_if_batches_are_equal(sizes: list[int], same: bool) -> None:
    """The client of 3 rows has batches of 3 where the others have 8: the uniform mean then re-weights."""
    fed = ragged(FedAvg(weighting="uniform"), local=Local(steps=1, batch_size=8, batches="independent"), sizes=sizes)
    w, gap = X0, 0.0
    for t, outcome in enumerate(play(fed, X0, 4)):
        w = union_step(fed, outcome.work.view.x, t)
        gap = max(gap, float((outcome.server.x - w).abs().max()))
    assert (gap < 1e-13) is same


@pytest.mark.parametrize("steps", [1, 5])
def test_local_sgd_takes_independent_batches_between_uniform_means(steps: int) -> None:
    local = Local(steps=steps, batch_size=4, batches="independent")
    fed = ragged(FedAvg(weighting="uniform"), local=local)
    w = X0
    for t, outcome in enumerate(play(fed, X0, 3)):
        plans = [real_batches(fed, t, k) for k in range(len(RAGGED))]
        assert all(len(plan) == steps for plan in plans)
        w = torch.stack([train_plain(w, plan, torch_sgd(fed.solver))[0] for plan in plans]).mean(0)
        assert_close(outcome.server.x, w)


def test_independent_batches_are_drawn_with_replacement_anew_each_step_round_and_client() -> None:
    planner = SeededPlanner(Local(steps=200, batch_size=4, batches="independent"), 0)
    rows = np.arange(100, 105)
    plan = planner.train(0, 0, rows)
    assert plan.index.shape == (200, 4)
    assert plan.mask.all()
    counts = np.bincount(plan.index.ravel() - 100, minlength=5)
    assert counts.sum() == 800
    assert (abs(counts - 160) < 5 * np.sqrt(800 * 0.2 * 0.8)).all()
    assert any(len(set(batch)) < 4 for batch in plan.index.tolist())
    for other in (planner.train(1, 0, rows), planner.train(0, 1, rows)):
        assert (other.index != plan.index).any()
    assert (planner.train(0, 0, rows).index == plan.index).all()


def test_epochs_reshuffle_every_row_once_and_keep_the_last_batch() -> None:
    rows = np.arange(50, 67)
    plan = SeededPlanner(Local(epochs=3, batch_size=7), 0).train(0, 0, rows)
    assert plan.mask.sum(1).tolist() == [7, 7, 3] * 3
    epochs = [plan.index[i : i + 3][plan.mask[i : i + 3] == 1].tolist() for i in (0, 3, 6)]
    assert all(sorted(epoch) == rows.tolist() for epoch in epochs)
    assert len({tuple(order) for order in [*epochs, rows.tolist()]}) == 4
    cut = SeededPlanner(Local(steps=5, batch_size=7), 0).train(0, 0, rows)
    assert (cut.index == plan.index[:5]).all()
    assert (cut.mask == plan.mask[:5]).all()


def test_server_momentum_composes_with_fedavg() -> None:
    """v <- 0.5 v + Delta on a constant Delta = -0.2: steps -0.2, -0.3, -0.35."""
    fed = exact_clients(Linear(), [[1.0], [3.0]], (1, 1), FedAvg(), lr=0.1, server=Momentum(beta=0.5))
    assert_close(trajectory(play(fed, [0.0], 3))[:, 0], [-0.2, -0.5, -0.85])

"""FedBS: variances against their formula, who is chosen, and the weights, by hand and in their limits."""

from math import exp

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.algorithms import FedBS
from fedskew.core.records import Batch
from fedskew.core.rows import gradient_and_norms, lowest, moments, row_by_row, soft_weights, variance_of
from fedskew.core.seeding import stream
from fedskew.experiment.config import Experiment
from fedskew.slots import Uniform
from tests.reference import assert_close, f64, full_gradient, network, ragged
from tests.small import RAGGED, TASK, X0, Quadratic, classifier, exact_clients, play

# the variances


def client_batch(n: int, padded: int, stranger: float = 9.0) -> Batch:
    """Return a batch of n rows, and some more rows with mask 0."""
    rng = np.random.default_rng(n)
    x = torch.cat([torch.tensor(rng.standard_normal((n, 6))), torch.full((padded, 6), stranger).double()])
    y = torch.cat([torch.tensor(rng.integers(0, 3, n)), torch.zeros(padded, dtype=torch.long)])
    return Batch(x, y, f64([1.0] * n + [0.0] * padded))


@pytest.mark.parametrize(("n", "padded"), [(1, 0), (5, 2), (8, 0), (19, 6)])
def test_variances_equal_those_computed_row_by_row(n: int, padded: int) -> None:
    batch = client_batch(n, padded)
    rows = torch.stack([full_gradient(X0, batch.x[i : i + 1], batch.y[i : i + 1]) for i in range(n)])
    expected = (rows - rows.mean(0)).square().sum(1).mean()
    assert_close(variance_of(moments("gradient", TASK, X0, batch), f64(n)), expected)
    losses = F.cross_entropy(network(X0)(batch.x[:n])[1], batch.y[:n], reduction="none").detach()
    assert_close(variance_of(moments("loss", TASK, X0, batch), f64(n)), losses.var(correction=0))


@pytest.mark.parametrize("model", ["mlp:hidden=[5,4]", "softmax", "cnn:hidden=7", "lenet"])
def test_variances_need_no_gradient_of_each_row(model: str) -> None:
    """Norms from layers' inputs and slopes, of two clients at once; padding of another scale changes nothing."""
    image = "mlp" not in model and "softmax" not in model
    net = (
        Experiment(model=model)
        .model.build((3, 32, 32) if image else (6,), 3, torch.Generator().manual_seed(0))
        .double()
    )
    task = classifier(net, 3)
    w = (
        torch.stack([torch.randn(task.space.size, generator=torch.Generator().manual_seed(s)).double() for s in (1, 2)])
        / 4
    )
    batch = client_batch(6, 2)
    if image:
        x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(3)).double()
        batch = batch._replace(x=x * torch.where(batch.mask > 0, 1.0, 9.0)[:, None, None, None])
    assert gradient_and_norms(task, w[0], batch) is not None
    found = torch.func.vmap(lambda w: moments("gradient", task, w, batch))(w)
    for i in (0, 1):
        expected = row_by_row(task, w[i], batch)
        for key, value in expected.items():
            torch.testing.assert_close(found[key][i], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", ["mlp:norm=group", "lstm", "cnn:norm=group"])
def test_a_layer_of_another_kind_is_taken_row_by_row(model: str) -> None:
    net = Experiment(model=model).model.build((3, 32, 32) if "cnn" in model else (4, 6), 3, torch.Generator()).double()
    task = classifier(net, 3)
    batch = client_batch(6, 2)
    x = torch.randn(
        8, *((3, 32, 32) if "cnn" in model else (4, 6)), generator=torch.Generator().manual_seed(3)
    ).double()
    w = torch.cat([p.detach().flatten() for p in net.parameters()])
    assert gradient_and_norms(task, w, batch._replace(x=x)) is None
    assert float(moments("gradient", task, w, batch._replace(x=x))["square"]) > 0


def test_frozen_parameters_do_not_count() -> None:
    """The result equals one backward pass for each row, with the output layer only."""
    net = Experiment(model="mlp:hidden=[5]").model.build((6,), 3, torch.Generator().manual_seed(0)).double()
    for p in list(net.parameters())[:2]:
        p.requires_grad_(False)
    task, batch = classifier(net, 3), client_batch(6, 2)
    w = task.space.flatten(net)
    assert len(w) == 5 * 3 + 3
    assert gradient_and_norms(task, w, batch) is None
    rows = []
    for i in range(6):
        net.zero_grad()
        F.cross_entropy(net(batch.x[i : i + 1])[1], batch.y[i : i + 1]).backward()
        rows.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
    found = moments("gradient", task, w, batch)
    assert_close(found["sum"], torch.stack(rows).sum(0))
    assert_close(found["square"], torch.stack(rows).square().sum())


def test_moments_of_parts_add_up() -> None:
    whole = client_batch(19, 0)
    parts = [moments("gradient", TASK, X0, Batch(*(leaf[i] for leaf in whole))) for i in (slice(0, 11), slice(11, 19))]
    total = {key: parts[0][key] + parts[1][key] for key in parts[0]}
    for key, value in moments("gradient", TASK, X0, whole).items():
        assert_close(total[key], value)


def test_equal_rows_have_no_variance() -> None:
    batch = client_batch(1, 0)
    same = Batch(batch.x.expand(12, 6), batch.y.expand(12), torch.ones(12).double())
    for of in ("gradient", "loss"):
        found = variance_of(moments(of, TASK, X0, same), f64(12))
        assert float(found) >= 0
        assert_close(found, 0.0)


# choosing and weighing


def test_the_lowest_scores_are_chosen_and_ties_go_by_position() -> None:
    scores = f64([3.0, 1.0, 2.0, 1.0, 5.0])
    assert lowest(scores, 0.01).tolist() == [1]
    assert lowest(scores, 0.4).tolist() == [1, 3]
    assert lowest(scores, 0.41).tolist() == [1, 2, 3]
    assert lowest(scores, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert 0.07 * 100 > 7
    assert len(lowest(torch.zeros(100), 0.07)) == 7
    assert lowest(torch.zeros(100), 0.29).tolist() == list(range(29))
    assert lowest(f64([1.0, 1.0, 0.5, 1.0]), 0.5).tolist() == [0, 2]


V = f64([2.0, 0.5, 1.0, 4.0])
P = f64([1.0] * 4)


def test_soft_weights_in_plain_numbers() -> None:
    # the median is 1.5; differences from 1/2
    e = [exp(-1.5 / 3.0), 1.0, exp(-0.5 / 3.0), exp(-3.5 / 3.0)]
    assert_close(soft_weights(P, V, 2.0, "relative"), f64(e) / sum(e))
    e = [exp(-1.5 / 2.0), 1.0, exp(-0.5 / 2.0), exp(-3.5 / 2.0)]
    assert_close(soft_weights(P, V, 2.0, "absolute"), f64(e) / sum(e))


@pytest.mark.parametrize("scale", ["relative", "absolute"])
def test_soft_weights_in_their_limits(scale) -> None:
    assert_close(soft_weights(P, V, float("inf"), scale), [0.25] * 4)
    assert_close(soft_weights(P, V, 1e15, scale), [0.25] * 4)
    for cold in (0.0, 1e-9):
        assert_close(soft_weights(P, V, cold, scale), [0.0, 1.0, 0.0, 0.0])
        assert_close(soft_weights(P, f64([2.0, 1.0, 1.0, 4.0]), cold, scale), [0.0, 0.5, 0.5, 0.0])
    assert_close(soft_weights(P, f64([3.0] * 4), 1.0, scale), [0.25] * 4)
    assert_close(soft_weights(P, f64([0.0] * 4), 1.0, scale), [0.25] * 4)
    assert_close(soft_weights(f64([1.0, 2.0, 3.0, 4.0]), f64([3.0] * 4), 1.0, scale), [0.1, 0.2, 0.3, 0.4])
    assert_close(soft_weights(P, V + 1e6, 1.0, scale).sum(), 1.0)


def test_a_median_of_nothing_leaves_the_steadiest() -> None:
    v = f64([0.0, 0.0, 0.0, 1.0])
    assert_close(soft_weights(P, v, 1.0, "relative"), [1 / 3, 1 / 3, 1 / 3, 0.0])
    assert_close(soft_weights(P, v, float("inf"), "relative"), [0.25] * 4)


# golden rounds: rows h/2 (w - b)^2 at x = 1, one step of eta = 0.1
#
# client 0: h = 1, b = 0, 2       gradients 1, -1     mean 0      variance 1        losses 1/2, 1/2   variance 0
# client 1: h = 1, b = 1, 5       gradients 0, -4     mean -2     variance 4        losses 0, 8       variance 16
# client 2: h = 2, b = 2, 2, 3    gradients -2,-2,-4  mean -8/3   variance 8/9      losses 1, 1, 4    variance 2

ROWS = [[1.0, 0.0], [1.0, 2.0], [1.0, 1.0], [1.0, 5.0], [2.0, 2.0], [2.0, 2.0], [2.0, 3.0]]
MOVED = {0: 0.0, 1: 0.2, 2: 0.8 / 3}


def mixed(weights: dict[int, float]) -> float:
    return 1 + sum(w * MOVED[k] for k, w in weights.items()) / sum(weights.values())


# options: who trains, and with what weights up to a factor
GOLDEN = [
    # B = 2 of 3; the median of 1 and 8/9 is 17/18
    ({"cohort": 0.5}, {0: exp(-18 / 17), 2: exp(-16 / 17)}),
    ({"cohort": 0.3}, {2: 1.0}),
    ({"cohort": 1.0, "tau_scale": "absolute", "tau": 2.0}, {0: exp(-1 / 2), 1: exp(-4 / 2), 2: exp(-8 / 18)}),
    ({"cohort": 1.0}, {0: exp(-1), 1: exp(-4), 2: exp(-8 / 9)}),
    # a = 7/3 over n: scores 7/6, 14/3, 56/81
    ({"cohort": 1.0, "importance": "size", "tau_scale": "absolute"}, {0: exp(-1), 1: exp(-4), 2: exp(-8 / 9)}),
    (
        {"cohort": 1.0, "importance": "size", "weigh_by": "score", "tau_scale": "absolute"},
        {0: exp(-7 / 6), 1: exp(-14 / 3), 2: exp(-56 / 81)},
    ),
    ({"cohort": 0.5, "variance": "loss", "tau_scale": "absolute"}, {0: 1.0, 2: exp(-2)}),
    ({"cohort": 1.0, "weighting": "samples"}, {0: 2 * exp(-1), 1: 2 * exp(-4), 2: 3 * exp(-8 / 9)}),
]


@pytest.mark.parametrize(("options", "weights"), GOLDEN, ids=lambda v: ",".join(map(str, v)))
def test_golden_round(options, weights) -> None:
    fed = exact_clients(Quadratic(), ROWS, (1, 1, 1), FedBS(**options), lr=0.1, sizes=[2, 2, 3])
    outcome = play(fed, [1.0], 1)[0]
    assert outcome.work.clients.tolist() == list(weights)
    assert_close(outcome.server.x, [mixed(weights)])


def test_the_importance_decides_who_trains() -> None:
    """Twenty rows at b = 0, 2 have variance 1 like client 0's two: with their size they come first."""
    rows = [[1.0, 0.0], [1.0, 2.0]] * 11

    def chosen(**options) -> list[int]:
        fed = exact_clients(Quadratic(), rows, (1, 1), FedBS(cohort=0.5, **options), lr=0.1, sizes=[2, 20])
        return play(fed, [1.0], 1)[0].work.clients.tolist()

    assert chosen() == [0]
    assert chosen(importance="size") == [1]


def test_the_variance_belongs_to_the_sent_model() -> None:
    """h = 2 and 6 at b = 0: gradients 2 w and 6 w, variance 4 w^2, whatever the steps do in between."""
    fed = exact_clients(Quadratic(), [[2.0, 0.0], [6.0, 0.0]], (3,), FedBS(), lr=0.1, sizes=[2])
    x = 1.0
    for outcome in play(fed, [1.0], 3):
        assert_close(outcome.done.uploads.report["V"], [4 * x * x])
        x *= 0.6**3
        assert_close(outcome.server.x, [x])


def test_the_chosen_are_the_steadiest_of_the_proposed() -> None:
    fed = ragged(FedBS(cohort=0.6), selection=Uniform(clients=4))
    variances: dict[int, float] = {}
    cohorts = set()
    for k in range(len(RAGGED)):
        rows = fed.partition.rows(k)
        batch = Batch(fed.x[rows], fed.y[rows], torch.ones(len(rows)).double())
        variances[k] = float(variance_of(moments("gradient", fed.task, X0, batch), f64(len(rows))))
    for seed in range(4):
        object.__setattr__(fed, "seed", seed)
        proposed = fed.selection.select(fed.clients, stream(seed, "select", 0)).tolist()
        outcome = play(fed, X0, 1)[0]
        assert outcome.work.clients.tolist() == sorted(sorted(proposed, key=variances.__getitem__)[:3])
        cohorts.add(tuple(proposed))
    assert len(cohorts) > 1


def test_bytes_sent_down_and_up() -> None:
    """The model to everybody proposed, nothing more to those who train; a number back, then the model and a number."""
    outcome = play(ragged(FedBS(cohort=0.5), selection=Uniform(clients=4)), X0, 1)[0]
    assert outcome.bytes_down == 4 * 8 * len(X0)
    assert outcome.bytes_up == 4 * 8 + 2 * (8 * len(X0) + 8)


def test_variances_keep_their_digits_next_to_large_gradients() -> None:
    """The float32 gradients of the rows are 1000 +- 0.01. Their squares are summed in float64."""
    x = torch.tensor([[1.0, 1000.0], [1.0, 1000.015625]])

    class Flat(Quadratic):
        def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            value = (x * w).sum(1, keepdim=True)
            return value, value

    batch = Batch(x, torch.zeros(2, dtype=torch.long), torch.ones(2))
    found = variance_of(moments("gradient", Flat(), torch.zeros(2), batch), torch.tensor(2.0))
    assert_close(found, 0.0078125**2, 1e-9)

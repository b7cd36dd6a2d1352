"""Three methods called FedGA: greedy aggregation, generalisation adjustment, gradient alignment."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedskew.algorithms import FedGA, FedGAAlignment, FedGAGeneralisation
from fedskew.algorithms.fedga_generalisation import adjusted
from fedskew.core.algorithm import local_loss
from fedskew.core.errors import Diverged
from fedskew.core.records import Batch, Cohort
from fedskew.core.trees import pick
from fedskew.loop.evaluate import evaluate
from fedskew.loop.round import start
from fedskew.slots import Sgd, Uniform
from fedskew.tasks.classification import Classification
from tests.reference import apart, assert_close, f64, local_models, sized_pair, trajectory
from tests.small import RAGGED, TASK, X0, Quadratic, exact_clients, own_rows, play, ragged

# greedy aggregation: clients (w - b)^2 / 2 at rate 1/2 from x = 0, so that w_k = b_k / 2 after one step


def on_a_line(algorithm, models, target: float, sizes=None):
    """Clients whose local models are ``models``, and L_V(w) = (w - target)^2 / 2."""
    sizes = list(sizes or [1] * len(models))
    rows = [[1.0, 2 * w] for w, n in zip(models, sizes, strict=True) for _ in range(n)]
    fed = exact_clients(Quadratic(), rows, [1] * len(models), algorithm, lr=0.5, sizes=sizes)
    data = Batch(f64([[1.0, target]]), torch.zeros(1, dtype=torch.long), f64([1.0]))
    return replace(fed, server_data=data)


@pytest.mark.parametrize(
    ("algorithm", "models", "target", "sizes", "expected"),
    [
        # L_V: 1/2, 2, 9/2; with the second client (2 - 1) / 2 = 1/2: 1/8; then 9/4: 25/32; the full average is 9/4
        (FedGA(), (2.0, -1.0, 4.0), 1.0, (1, 1, 2), 0.5),
        # 1/8 is a quarter of 1/2: not low enough
        (FedGA(eps=0.8), (2.0, -1.0, 4.0), 1.0, (1, 1, 2), 2.0),
        (FedGA(eps=0.7), (2.0, -1.0, 4.0), 1.0, (1, 1, 2), 0.5),
        # with sizes (3, 1, 1) the pair is at 5/4, L_V = 1/32; all three at 9/5
        (FedGA(), (2.0, -1.0, 4.0), 1.0, (3, 1, 1), 1.25),
        (FedGA(weighting="uniform"), (2.0, -1.0, 4.0), 1.0, (3, 1, 1), 0.5),
        # from 1 each pair is worse (2 and -1.1), but all three are at 0.8 / 3
        (FedGA(), (1.0, 3.0, -3.2), 0.0, None, 0.8 / 3),
        # 0.8, then (0.8 - 1.5) / 2 = -0.35, then 0.3 / 3 = 0.1, and not 9.3 / 4
        (FedGA(), (1.0, -1.5, 0.8, 9.0), 0.0, None, 0.1),
    ],
)
def test_golden_greedy_rounds(algorithm, models, target, sizes, expected) -> None:
    assert_close(play(on_a_line(algorithm, models, target, sizes), [0.0], 1)[0].server.x, [expected])


def test_a_tie_goes_to_the_smaller_id_and_then_to_the_full_average() -> None:
    # 1 and -1 are as good; together they are at 0, where nothing can be won
    assert_close(play(on_a_line(FedGA(), (3.0, 1.0, -1.0), 0.0), [0.0], 1)[0].server.x, [0.0])
    # 1 first, then no pair is better: (1 - 3) / 2 = -1; the full average, -1, is as good as 1
    assert_close(play(on_a_line(FedGA(), (1.0, -3.0), 0.0), [0.0], 1)[0].server.x, [-1.0])


def value(fed, w: Tensor, score: str) -> float:
    """L_V, or minus the accuracy."""
    scores = evaluate(fed.task, w, fed.server_data.x, fed.server_data.y)
    return scores["loss"] if score == "loss" else -scores["accuracy"]


@pytest.mark.parametrize("score", ["loss", "accuracy"])
@pytest.mark.parametrize("rows", [6, 30])
def test_never_worse_on_the_servers_rows_than_any_client_or_their_average(score: str, rows: int) -> None:
    fed = replace(ragged(FedGA(score=score), selection=Uniform(clients=5)), server_data=own_rows(rows))
    sizes, beaten = f64(RAGGED), 0
    for outcome in play(fed, X0, 5):
        models, x = local_models(outcome), outcome.work.view.x
        p = sizes[outcome.work.clients]
        full = value(fed, x + (p / p.sum()) @ (models - x), score)
        best = min(full, *(value(fed, w, score) for w in models))
        assert value(fed, outcome.server.x, score) <= best + 1e-12
        beaten += value(fed, outcome.server.x, score) < full - 1e-3
    assert beaten, "otherwise this would hold for FedAvg too"


def cohort_of(outcome) -> Cohort:
    return Cohort(outcome.work.view.info, outcome.done.uploads)


def spoiled(cohort: Cohort, at: list[int]) -> Cohort:
    delta = cohort.uploads.delta.clone()
    delta[at, 0] = torch.tensor([math.nan, math.inf, -math.inf]).double()[: len(at)]
    return cohort._replace(uploads=cohort.uploads._replace(delta=delta))


@pytest.mark.parametrize("bad", [[0], [2], [1, 3, 6]])
def test_updates_that_are_not_finite_are_left_out(bad: list[int]) -> None:
    fed = ragged(FedGA())
    server, cohort = fed.view(start(fed, X0)), cohort_of(play(fed, X0, 1)[0])
    good = [k for k in range(7) if k not in bad]
    delta, _ = fed.algorithm.aggregate(server, spoiled(cohort, bad))
    expected, _ = fed.algorithm.aggregate(server, pick(cohort, good))
    assert_close(delta, expected)


def test_without_any_finite_update_the_model_stays() -> None:
    fed = ragged(FedGA(), sizes=[4, 5])
    cohort = spoiled(cohort_of(play(fed, X0, 1)[0]), [0, 1])
    assert_close(fed.algorithm.aggregate(fed.view(start(fed, X0)), cohort)[0], torch.zeros_like(X0))


def test_a_run_stops_at_such_an_update_before_that() -> None:
    with pytest.raises(Diverged, match="client"):
        play(on_a_line(FedGA(), (1.0, math.nan), 0.0), [0.0], 1)


def test_a_model_whose_loss_overflows_is_not_chosen() -> None:
    fed = on_a_line(FedGA(), (1.0, 0.5), 0.0)
    cohort = cohort_of(play(fed, [0.0], 1)[0])
    far = cohort._replace(uploads=cohort.uploads._replace(delta=f64([[1e200], [0.5]])))
    assert_close(fed.algorithm.aggregate(fed.view(start(fed, f64([0.0]))), far)[0], [0.5])


def test_at_most_half_of_m_squared_models_are_tried(monkeypatch) -> None:
    tried = []
    plain = FedGA.value
    monkeypatch.setattr(FedGA, "value", lambda self, server, w: tried.append(w) or plain(self, server, w))
    # 0.9, then each further one lowers the average: everybody is taken
    outcome = play(on_a_line(FedGA(eps=0.0), (0.9, 0.91, 0.92, 0.93), 5.0), [0.0], 1)[0]
    assert len(tried) <= 4 * 5 / 2 + 1
    assert_close(outcome.server.x, [0.93])
    tried.clear()
    play(on_a_line(FedGA(eps=0.0), (1.0, -1.5, 0.8, 0.0), -0.1), [0.0], 1)
    assert len(tried) <= 4 * 5 / 2 + 1


# generalisation adjustment: gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps, so that w_1 <- 0.81 w_1 and
# w_2 - 3 <- 0.36 (w_2 - 3); F_1 = w^2 / 2, F_2 = 2 (w - 3)^2; sizes 1 and 3; R = 4, d = 0.1


def test_golden_three_adjusted_rounds() -> None:
    # round 0: w = 0.81, 2.28;  a = (1/4, 3/4);  x = 0.2025 + 1.71 = 1.9125
    # G_1 = (1.9125^2 - 0.81^2) / 2 = 1.500778125,  G_2 = 2 (1.0875^2 - 0.72^2) = 1.3285125;  two gaps: +1 and -1
    # d_1 = 0.1:  a = (0.35, 0.65)
    # round 1: w = 1.549125, 2.6085;  x = 0.54219375 + 1.695525 = 2.23771875
    # G_1 = (2.23771875^2 - 1.549125^2) / 2 = 1.304, G_2 = 2 (0.76228125^2 - 0.3915^2) = 0.856: again +1 and -1
    # d_2 = 0.075:  a = (0.425, 0.575)
    # round 2: w = 1.8125521875, 2.72557875;  x = 0.7703346796875 + 1.56720778125
    fed = replace(sized_pair(FedGAGeneralisation(d=0.1)), rounds=4)
    outcomes = play(fed, [1.0], 3)
    assert_close(trajectory(outcomes)[:, 0], [1.9125, 2.23771875, 2.3375424609375])
    assert_close(torch.stack([o.server.state["a"] for o in outcomes]), [[0.25, 0.75], [0.35, 0.65], [0.425, 0.575]])
    assert_close(outcomes[0].done.uploads.report["seen"], [0.0, 0.0])
    assert_close(outcomes[1].done.uploads.report["gap"], [1.500778125, 1.3285125])


@pytest.mark.parametrize(
    ("step", "gap", "seen", "expected"),
    [
        # mean 3: (-2, -1, 3) / 3
        (0.3, (1.0, 2.0, 6.0), (1, 1, 1), (0.0, 0.2, 0.8)),
        # clipped at 0 and 1: (0, 0.1, 1) / 1.1
        (0.6, (1.0, 2.0, 6.0), (1, 1, 1), (0.0, 1 / 11, 10 / 11)),
        # mean 4 of the two with a gap: (0, -1, 1)
        (0.1, (99.0, 2.0, 6.0), (0, 1, 1), (0.2, 0.2, 0.6)),
        (0.1, (2.5, 2.5, 2.5), (1, 1, 1), (0.2, 0.3, 0.5)),
        (0.1, (1.0, 9.0, 2.0), (0, 1, 0), (0.2, 0.3, 0.5)),
        (0.1, (1.0, 9.0, 2.0), (0, 0, 0), (0.2, 0.3, 0.5)),
        (0.0, (1.0, 2.0, 6.0), (1, 1, 1), (0.2, 0.3, 0.5)),
    ],
)
def test_golden_adjustments(step: float, gap, seen, expected) -> None:
    assert_close(adjusted(f64([0.2, 0.3, 0.5]), f64(gap), f64(seen), step), expected)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("d", [0.2, 1.0])
def test_the_weights_stay_a_distribution_over_all_clients(weighting: str, d: float) -> None:
    fed = ragged(FedGAGeneralisation(d=d, weighting=weighting), selection=Uniform(clients=3))
    start_a = f64(RAGGED) / sum(RAGGED) if weighting == "samples" else f64([1 / 7] * 7)
    before, moved = start_a, False
    for outcome in play(replace(fed, rounds=8), X0, 8):
        a, members = outcome.server.state["a"], outcome.work.clients
        others = [k for k in range(7) if k not in members]
        assert_close(a.sum(), 1.0)
        assert (a >= 0).all()
        assert_close(a[others], before[others])
        assert_close(a[members].sum(), before[members].sum())
        if before[members].sum() > 0:
            x = outcome.work.view.x
            expected = x + (a[members] / a[members].sum()) @ outcome.done.uploads.delta
            assert_close(outcome.server.x, expected)
        moved, before = moved or apart(a, before, 1e-3), a
    assert moved


def test_gap_compares_the_received_model_with_the_clients_last_one() -> None:
    fed = replace(ragged(FedGAGeneralisation(d=0.1), selection=Uniform(clients=4)), rounds=6)
    last: dict[int, float] = {}
    met = 0
    for outcome in play(fed, X0, 6):
        report = outcome.done.uploads.report
        for i, k in enumerate(outcome.work.clients):
            rows = torch.as_tensor(fed.partition.rows(k))

            def loss(w: Tensor, rows: Tensor = rows) -> float:
                return evaluate(fed.task, w, fed.x[rows], fed.y[rows])["loss"]

            assert bool(report["seen"][i]) == (k in last)
            if k in last:
                assert_close(report["gap"][i], loss(outcome.work.view.x) - last[k])
                met += 1
            last[k] = loss(local_models(outcome)[i])
    assert met > 5


def test_a_cohort_without_weight_is_averaged_as_in_fedavg() -> None:
    fed = ragged(FedGAGeneralisation(d=0.1), sizes=[2, 6])
    cohort = cohort_of(play(fed, X0, 1)[0])
    server = fed.view(start(fed, X0))._replace(round=1, state={"a": f64([0.0, 0.0])})
    delta, state = fed.algorithm.aggregate(server, cohort)
    assert_close(delta, f64([0.25, 0.75]) @ cohort.uploads.delta)
    assert_close(state["a"], [0.0, 0.0])


def test_weight_moves_within_the_cohort_by_shares_of_its_sum() -> None:
    """The shares of 0.1 and 0.3 are 1/4 and 3/4; a step of d = 0.1 goes to the larger gap, and the sum stays 0.4."""
    fed = ragged(FedGAGeneralisation(d=0.1), sizes=[2, 6])
    uploads = play(fed, X0, 1)[0].done.uploads._replace(report={"gap": f64([0.0, 1.0]), "seen": f64([1.0, 1.0])})
    server = fed.view(start(fed, X0))._replace(round=1, state={"a": f64([0.1, 0.3])})
    delta, state = fed.algorithm.aggregate(server, Cohort(fed.info, uploads))
    assert_close(delta, f64([0.15, 0.85]) @ uploads.delta)
    assert_close(state["a"], [0.06, 0.34])


# gradient alignment


class Logits:
    """The parameters are the logits of the rows, three each; x is the row's index."""

    num_classes = 3

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        return w.view(-1, 3)[x[:, 0].long()]

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return Classification().loss(logits, y)


def aligned(logits: Tensor, y, mask=None) -> tuple[Tensor, Tensor]:
    """The loss on a batch, and its gradient at each row's logits."""
    w = logits.reshape(-1).requires_grad_()
    rows = torch.arange(len(y)).double()[:, None]
    batch = Batch(rows, torch.tensor(y), f64(mask or [1] * len(y)))
    loss = FedGAAlignment().objective(Logits(), None, w, batch)
    return loss.detach(), torch.autograd.grad(loss, w)[0].view(-1, 3)


def test_golden_alignment() -> None:
    # p = 1/3, labels 0 0 1: n = (2, 1, 0), r_0 = (0, 1/2, 1), r_1 = (-1, 0, 1)
    # t_0 = (1, 1/6, 1/3) sums to 3/2;  t_1 = (-1/3, 1, 1/3) sums to 1;  loss log 3 (3/2 + 3/2 + 1) / 3
    loss, g = aligned(torch.zeros(3, 3).double(), [0, 0, 1])
    assert_close(loss, 4 / 3 * math.log(3))
    assert_close(g, f64([[-1 / 2, 1 / 3, 1 / 6], [-1 / 2, 1 / 3, 1 / 6], [2 / 3, -2 / 3, 0]]) / 3)


def some_logits(rows: int) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_padded_rows_do_not_count() -> None:
    logits = some_logits(5)
    whole, g = aligned(logits[:3].clone(), [0, 0, 1])
    padded, g_padded = aligned(logits.clone(), [0, 0, 1, 2, 1], [1, 1, 1, 0, 0])
    assert_close(padded, whole)
    assert_close(g_padded[:3], g)
    assert_close(g_padded[3:], torch.zeros(2, 3).double())


def test_one_local_step_follows_the_aligned_gradient() -> None:
    """By hand from p s - t at the logits of the small network, through its own backward pass."""
    fed = ragged(FedGAAlignment(), sizes=[9], solver=Sgd(lr=0.3))
    fed = replace(fed, planner=replace(fed.planner, local=replace(fed.planner.local, epochs=1, batch_size="all")))
    delta = play(fed, X0, 1)[0].done.uploads.delta[0]
    w = X0.clone().requires_grad_()
    logits = TASK.logits(w, fed.x)
    p, count = logits.detach().softmax(-1), torch.bincount(fed.y, minlength=3).double()
    n_y = count[fed.y][:, None]
    t = torch.eye(3).double()[fed.y] + p * (n_y - count) / n_y
    g = torch.autograd.grad((logits * (p * t.sum(-1, keepdim=True) - t)).sum() / 9, w)[0]
    assert_close(delta, -0.3 * g)
    plain = torch.autograd.grad(local_loss(TASK, w, Batch(fed.x, fed.y, torch.ones(9).double())), w)[0]
    assert apart(g, plain, 1e-3)

"""q-FedAvg: the paper's update against its formula, the power's limits, and what it makes even."""

from dataclasses import replace

import pytest
import torch

from fedskew.algorithms import FedAvg, QFedAvg
from fedskew.core.errors import BadInput
from fedskew.core.records import Cohort, Info, Upload
from fedskew.execution.build import check_needs
from fedskew.loop.round import start
from fedskew.slots import Sgd
from tests.execution.test_experiment import small
from tests.reference import SameForAll, assert_close, f64, local_models, ragged, run, sized_pair
from tests.small import X0, Quadratic, exact_clients, play

QS = [0.1, 0.5, 1.0, 2.0, 5.0]


def paper_step(q: float, losses, moved, rate: float, p=None):
    """-sum Delta_k / sum h_k for scalar models that moved by ``moved``, in the paper's letters."""
    big_l, p = 1 / rate, p or [1.0] * len(losses)
    losses = [loss + 1e-10 for loss in losses]
    dw = [-big_l * d for d in moved]
    delta = [p_k * f**q * d for p_k, f, d in zip(p, losses, dw, strict=True)]
    h = [p_k * (q * f ** (q - 1) * d**2 + big_l * f**q) for p_k, f, d in zip(p, losses, dw, strict=True)]
    return -sum(delta) / sum(h)


# golden rounds: gradients w and 4 (w - 3), x = 1, eta = 0.1, two steps
#
# client 1: 1 -> 0.9 -> 0.81   moved -0.19   F = 1/2 * 1 = 0.5
# client 2: 1 -> 1.8 -> 2.28   moved +1.28   F = 4/2 * 4 = 8


@pytest.mark.parametrize("q", [0.0, *QS])
@pytest.mark.parametrize(("weighting", "p"), [("uniform", [0.5, 0.5]), ("samples", [0.25, 0.75])])
def test_golden_round(q: float, weighting: str, p) -> None:
    outcome = play(sized_pair(QFedAvg(q=q, weighting=weighting)), [1.0], 1)[0]
    assert_close(outcome.server.x[0], 1 + paper_step(q, [0.5, 8.0], [-0.19, 1.28], 0.1, p))


def test_golden_round_in_plain_numbers() -> None:
    """q = 1, without the guard: Delta = (0.5 * 1.9, 8 * -12.8), h = (3.61 + 5, 163.84 + 80)."""
    x = play(sized_pair(QFedAvg(q=1.0)), [1.0], 1)[0].server.x
    assert_close(x, [1 + (102.4 - 0.95) / (8.61 + 243.84)], 1e-9)


def test_the_losses_are_those_before_training_and_the_rate_is_the_rounds() -> None:
    """Round 1 with eta = 0.05: losses at the model that the round starts from."""
    fed = sized_pair(QFedAvg(q=2.0), solver=Sgd(lr=0.1, lr_decay=0.5))
    first, second = play(fed, [1.0], 2)
    x = float(first.server.x[0])
    one, two = x * 0.95**2 - x, (x - 3) * 0.8**2 + 3 - x
    assert_close(second.server.x[0], x + paper_step(2.0, [x * x / 2, 2 * (x - 3) ** 2], [one, two], 0.05))


def test_weight_decay_belongs_to_the_loss() -> None:
    """g = w + w / 2 and 4 (w - 3) + w / 2 at x = 1, one step; both losses are 1/4 larger."""
    fed = sized_pair(QFedAvg(q=1.0), steps=(1, 1), solver=Sgd(lr=0.1, weight_decay=0.5))
    assert_close(play(fed, [1.0], 1)[0].server.x[0], 1 + paper_step(1.0, [0.75, 8.25], [-0.15, 0.75], 0.1))


# limits


@pytest.mark.parametrize("q", QS)
def test_one_client(q: float) -> None:
    fed = exact_clients(Quadratic(), [[2.0, 0.0]], (3,), QFedAvg(q=q), lr=0.1)
    moved = 1.5 * (0.8**3 - 1)
    assert_close(play(fed, [1.5], 1)[0].server.x[0], 1.5 + paper_step(q, [2.25], [moved], 0.1))


def cohort_of(losses, delta) -> Cohort:
    """Return clients with these losses before training and these updates, at eta = 0.1."""
    delta, n = f64(delta), len(losses)
    info = Info(torch.arange(n), f64([1.0] * n), f64([[1.0]] * n), f64([1.0] * n))
    return Cohort(info, Upload(delta, {}, {"F": f64(losses), "LD2": delta.square().sum(1) / 0.1}))


def step_of(q: float, losses, delta) -> torch.Tensor:
    method = QFedAvg(q=q)
    fed = sized_pair(method)
    return method.aggregate(fed.view(start(fed, f64([0.0]))), cohort_of(losses, delta))[0]


DELTA = [[1.0, -0.5], [0.2, 0.7], [-0.3, 0.1]]


@pytest.mark.parametrize("q", QS)
def test_scaling_only_the_losses_keeps_the_direction(q: float) -> None:
    """The step is sum s delta / sum s (1 + q ||delta||^2 / (eta F)): only the second term knows the scale of F."""
    losses = f64([0.5, 2.0, 1.0])
    one, two = step_of(q, losses, DELTA), step_of(q, 3 * losses, DELTA)
    assert_close(one / one.norm(), two / two.norm(), 1e-9)
    s, squares = losses**q, f64(DELTA).square().sum(1)
    expected = (s * (1 + q * squares / (0.1 * losses))).sum() / (s * (1 + q * squares / (0.3 * losses))).sum()
    assert_close(two.norm() / one.norm(), expected, 1e-9)
    assert float(two.norm()) > float(one.norm())


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_a_client_without_loss_keeps_the_step_finite(q: float) -> None:
    step = step_of(q, [0.0, 2.0, 1.0], [[0.0, 0.0], *DELTA[1:]])
    assert step.isfinite().all()
    assert step.abs().max() > 1e-6
    assert_close(step_of(q, [0.0, 0.0, 0.0], torch.zeros(3, 2)), [0.0, 0.0])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_huge_power_follows_the_worst_client(scale: float) -> None:
    """F^1000 alone would be 0 or infinite; what is left is delta / (1 + q ||delta||^2 / (eta F)) of the worst."""
    losses = [0.5 * scale, 2.0 * scale, 1.0 * scale]
    expected = f64(DELTA[1]) / (1 + 1000 * 0.53 / (0.1 * (2.0 * scale + 1e-10)))
    assert_close(step_of(1000.0, losses, DELTA), expected)


def test_identical_clients() -> None:
    def final(q: float, sizes) -> torch.Tensor:
        one, many = ragged(QFedAvg(q=q), sizes=[13]), ragged(QFedAvg(q=q), sizes=sizes)
        copies = len(sizes)
        many = replace(many, x=one.x.repeat(copies, 1), y=one.y.repeat(copies), planner=SameForAll(many.planner))
        return play(many, X0, 1)[0]

    plain = play(ragged(FedAvg(), sizes=[13]), X0, 1)[0]
    assert_close(final(0.0, [13] * 3).server.x, local_models(plain)[0])
    assert_close(final(2.0, [13] * 3).server.x, final(2.0, [13]).server.x)
    ratio = (final(2.0, [13]).server.x - X0) / (plain.server.x - X0)
    assert 0 < float(ratio.mean()) < 0.9
    assert_close(ratio, ratio.mean().expand_as(ratio), 1e-8)


# what it is for


@pytest.mark.parametrize(
    ("q", "root"),
    # one exact gradient a round stops where F_1^q w + 4 F_2^q (w - 3) = 0: w^(2q+1) = 4^(q+1) (3 - w)^(2q+1)
    [(q, 4 ** ((q + 1) / (2 * q + 1))) for q in (0.0, 1.0, 3.0)],
)
def test_stops_at_the_optimum_of_its_own_objective(q: float, root: float) -> None:
    outcomes, _ = run(sized_pair(QFedAvg(q=q), steps=(1, 1), lr=0.1), [1.0], 400)
    assert_close(outcomes[-1].server.x, [3 * root / (1 + root)], 1e-6)


def test_a_larger_power_makes_the_losses_more_even() -> None:
    def gap(q: float) -> float:
        x = float(run(sized_pair(QFedAvg(q=q), steps=(1, 1), lr=0.1), [1.0], 150)[0][-1].server.x)
        return abs(x * x / 2 - 2 * (x - 3) ** 2)

    gaps = [gap(q) for q in (0.0, 0.5, 2.0, 5.0)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < gaps[0] / 4


@pytest.mark.parametrize("solver", ["sgd:momentum=0.9", "adamw"])
def test_solvers_whose_steps_are_no_gradients_are_refused(solver: str) -> None:
    """L = 1 / eta makes Dw a gradient under plain SGD alone; at q = 0 it cancels, and any solver is FedAvg's."""
    with pytest.raises(BadInput, match=r"qfedavg assumes .* use --solver sgd without momentum"):
        check_needs(small("qfedavg:q=1.0", solver=solver))
    check_needs(small("qfedavg:q=0", solver=solver))
    check_needs(small("qfedavg:q=1.0", solver="sgd:weight_decay=0.01"))

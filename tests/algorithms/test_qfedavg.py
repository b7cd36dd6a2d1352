"""q-FedAvg: the paper's update against its formula, and a power that would overflow."""

import pytest
import torch

from fedskew.algorithms import QFedAvg
from fedskew.core.errors import BadInput
from fedskew.core.records import Cohort, Info, Upload
from fedskew.execution.build import check_needs
from fedskew.loop.round import start
from fedskew.slots import Sgd
from tests.blobs import small
from tests.reference import assert_close, f64, sized_pair
from tests.small import play

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


def test_the_losses_are_those_before_training_and_the_rate_is_the_rounds() -> None:
    """Round 1 with eta = 0.05: losses at the model that the round starts from."""
    fed = sized_pair(QFedAvg(q=2.0), solver=Sgd(lr=0.1, lr_decay=0.5))
    first, second = play(fed, [1.0], 2)
    x = float(first.server.x[0])
    one, two = x * 0.95**2 - x, (x - 3) * 0.8**2 + 3 - x
    assert_close(second.server.x[0], x + paper_step(2.0, [x * x / 2, 2 * (x - 3) ** 2], [one, two], 0.05))


def test_weight_decay_belongs_to_the_loss() -> None:
    """g = w + w / 2 and 4 (w - 3) + w / 2 at x = 3, one step; both losses are 9/4 larger."""
    fed = sized_pair(QFedAvg(q=1.0), steps=(1, 1), solver=Sgd(lr=0.1, weight_decay=0.5))
    assert_close(play(fed, [3.0], 1)[0].server.x[0], 3 + paper_step(1.0, [6.75, 2.25], [-0.45, -0.15], 0.1))


# one step from given losses and updates


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


@pytest.mark.parametrize("solver", ["sgd:momentum=0.9", "adamw"])
def test_solvers_whose_steps_are_no_gradients_are_refused(solver: str) -> None:
    """L = 1 / eta makes Dw a gradient under plain SGD alone; at q = 0 it cancels, and any solver is FedAvg's."""
    with pytest.raises(BadInput, match=r"qfedavg assumes .* use --solver sgd without momentum"):
        check_needs(small("qfedavg:q=1.0", solver=solver))
    check_needs(small("qfedavg:q=0", solver=solver))
    check_needs(small("qfedavg:q=1.0", solver="sgd:weight_decay=0.01"))

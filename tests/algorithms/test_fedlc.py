"""FedLC: cross-entropy with a margin that grows for classes with few local rows."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from fedskew.algorithms import FedLc
from tests.bias import Bias, client_view, rows_of
from tests.reference import assert_close, f64, ragged, real_batches, torch_sgd, train_plain
from tests.small import RAGGED, X0, play

DENOMINATORS = ["include", "exclude"]


def loss(algorithm: FedLc, z: Tensor, y: int, counts: list[float]) -> Tensor:
    """Return the objective of a row of class y with logits z."""
    return algorithm.objective(Bias(len(z)), client_view(z, counts=counts), z, rows_of([y]))


def loss_and_slope(algorithm: FedLc, z: Tensor, y: int, counts: list[float]) -> tuple[Tensor, Tensor]:
    return loss(algorithm, z, y, counts), grad(lambda z: loss(algorithm, z, y, counts))(z)


def test_only_the_papers_denominator_has_no_lower_bound() -> None:
    z = f64([1e4, 0.0, 0.0])
    assert float(loss(FedLc(), z, 0, [5.0, 0.0, 0.0])) >= 0
    assert float(loss(FedLc(denominator="exclude"), z, 0, [5.0, 0.0, 0.0])) < -1e4
    assert FedLc().contract().hazard(0.1) == ""
    assert "include" in FedLc(denominator="exclude").contract().hazard(0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_logits_far_apart_stay_finite(dtype: torch.dtype, denominator: str) -> None:
    z = f64([0.0, 1e4, -1e4]).to(dtype)
    for y in range(3):
        value, slope = loss_and_slope(FedLc(denominator=denominator), z, y, [0.0, 3.0, 1.0])
        assert value.isfinite()
        assert slope.isfinite().all()


@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_whole_local_training_in_its_textbook_form(denominator: str) -> None:
    """The run equals an ordinary training loop. Local models are measured with uncalibrated logits."""
    fed = ragged(FedLc(tau=0.8, denominator=denominator))
    outcome = play(fed, X0, 1)[0]
    for k, size in enumerate(RAGGED):
        rows = fed.partition.rows(k)
        n = np.maximum(np.bincount(fed.y.numpy()[rows], minlength=3), 1e-8)
        batches = real_batches(fed, 0, k)
        labels = iter([y for _, y in batches])

        def calibrated(net, inputs: Tensor, n=n, labels=labels) -> Tensor:
            y, z = next(labels), net(inputs)[1]
            e = (z - 0.8 * torch.tensor(n) ** -0.25).exp()
            own = e.gather(1, y[:, None])[:, 0]
            left_out = F.one_hot(y, 3) if denominator == "exclude" else 0
            below = (e * (1 - left_out)).sum(1)
            return -(own / below).log().mean() - F.cross_entropy(z, y)

        plain, _ = train_plain(X0, batches, torch_sgd(fed.solver), extra=calibrated)
        assert_close(X0 + outcome.done.uploads.delta[k], plain, 1e-10)
        expected = F.cross_entropy(fed.task.logits(plain, fed.x[rows]), fed.y[rows])
        assert_close(outcome.done.scores["loss"][k] / size, expected, 1e-10)

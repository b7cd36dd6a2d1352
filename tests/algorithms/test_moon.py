"""MOON."""

import torch
from torch import Tensor
from torch.func import grad

from fedskew.algorithms import Moon
from fedskew.core.algorithm import local_loss
from fedskew.core.records import Batch, Info, View
from tests.reference import f64
from tests.small import TASK, X0


def contrastive(
    algorithm: Moon, w: Tensor, x: Tensor, previous: Tensor, rows: int = 6, task=TASK
) -> tuple[Tensor, Tensor]:
    """mu l_con and its gradient at w: the objective less the plain loss."""
    g = torch.Generator().manual_seed(0)
    batch = Batch(torch.randn(rows, 6, generator=g).double(), torch.arange(rows) % 3, torch.ones(rows).double())
    info = Info(*(f64(1.0) for _ in Info._fields))
    view = View(x, {}, {"previous": previous}, info, {}, f64(0.1), f64(1.0))

    def value(w: Tensor) -> Tensor:
        return algorithm.objective(task, view, w, batch) - local_loss(task, w, batch)

    return value(w), grad(value)(w)


def other(i: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(len(X0), generator=torch.Generator().manual_seed(i), dtype=torch.float64)


def test_a_low_temperature_does_not_overflow() -> None:
    value, gradient = contrastive(Moon(mu=1.0, temperature=1e-4), other(1), other(2), other(3))
    assert value.isfinite()
    assert gradient.isfinite().all()

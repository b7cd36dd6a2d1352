"""MOON."""

import torch
from torch.func import grad_and_value

from fedskew.algorithms import Moon
from tests.bias import Bias, client_view, rows_of
from tests.reference import f64


def test_a_low_temperature_does_not_overflow() -> None:
    x, previous, w = f64([3.0, -1.0, 0.5]), f64([-2.0, 1.0, 4.0]), f64([-1.0, 2.0, 0.3])
    view = client_view(x)._replace(state={"previous": previous})
    moon, batch = Moon(mu=1.0, temperature=1e-4), rows_of([0, 1, 2])
    gradient, value = grad_and_value(lambda w: moon.objective(Bias(), view, w, batch))(w)
    assert torch.isfinite(value)
    assert gradient.isfinite().all()

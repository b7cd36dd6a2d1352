"""Losses on a line or plane around a model, along random directions or through given models; sharpness.

H. Li, Xu, Taylor, Studer, Goldstein: Visualizing the Loss Landscape of Neural Nets, NeurIPS 2018, arXiv:1712.09913.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.core.errors import require
from fedskew.core.trees import ParameterSpace, unit

Floats = NDArray[np.float64]
MARGIN = 0.2
"""A window extends beyond its points by this share of their extent."""


def filter_normalised(w: Tensor, space: ParameterSpace, generator: torch.Generator) -> Tensor:
    """Draw a random direction (P,). Each filter gets the norm of the same filter in ``w``; vectors such as biases get 0.

    A filter is a slice of a tensor along its first dimension.
    """
    draw = torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w)
    parts = []
    for weights, drawn in zip(space.unflatten(w).values(), space.unflatten(draw).values(), strict=True):
        if weights.dim() < 2:
            parts.append(torch.zeros_like(weights).flatten())
            continue
        rows, lengths = drawn.flatten(1), weights.flatten(1).norm(dim=1, keepdim=True)
        parts.append((rows * (lengths / (rows.norm(dim=1, keepdim=True) + 1e-10))).flatten())
    return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class Window:
    """A grid on a line or plane: ``origin`` + a first + b second, for all values of ``a`` and ``b``. On a line, b is 0."""

    origin: Tensor  # (P,)
    first: Tensor
    second: Tensor | None
    a: Floats
    b: Floats

    def at(self, a: float, b: float) -> Tensor:
        """Return the model (P,) at these coordinates."""
        point = self.origin + a * self.first
        return point if self.second is None else point + b * self.second


def around(w: Tensor, first: Tensor, second: Tensor | None, reach: float, points: int) -> Window:
    """Return the window from -``reach`` to ``reach`` around a model. With an odd number of points its centre is the model."""
    ticks = np.linspace(-reach, reach, points)
    return Window(w, first, second, ticks, ticks if second is not None else np.zeros(1))


def through(models: Tensor, points: int) -> tuple[Window, Floats]:
    """Return the plane through three models (3, P), and their coordinates (3, 2) in it. If they lie on a line, return the line.

    The first model is the origin; the second lies on the first axis. The axes are orthonormal. Raises `BadInput` if all three
    models are equal.
    """
    origin, to_second, to_third = models[0], models[1] - models[0], models[2] - models[0]
    length, other = (float(vector_norm(step, dtype=torch.float64)) for step in (to_second, to_third))
    require(max(length, other) > 0, "landscape: the three models are equal; name clients whose models differ")
    first = unit(to_second if length else to_third)
    along = float(to_third.double() @ first.double())
    rest = to_third - along * first
    above = float(vector_norm(rest, dtype=torch.float64))
    flat = not length or above <= 1e-6 * other
    at = np.array([[0.0, 0.0], [length, 0.0], [along, 0.0 if flat else above]])
    return window_of(origin, first, None if flat else rest / above, at, points), at


def through_path(models: Tensor, points: int) -> tuple[Window, Floats]:
    """Return a plane through the last of the models (R, P), and the models' coordinates (R, 2) in it.

    Its axes are the two directions in which the models vary most: the first principal directions of the path (Li et al., section
    7). If the models lie on a line, the line is returned.
    """
    steps = (models - models[-1]).double()
    require(bool(steps.any()), "landscape: the global model has not moved, so it has no path")
    _, sizes, directions = torch.linalg.svd(steps, full_matrices=False)
    flat = len(sizes) < 2 or float(sizes[1]) <= 1e-6 * float(sizes[0])
    first, second = directions[0], directions[0] * 0 if flat else directions[1]
    at = torch.stack([steps @ first, steps @ second], 1).cpu().numpy()
    return window_of(models[-1], first.to(models), None if flat else second.to(models), at, points), at


def window_of(origin: Tensor, first: Tensor, second: Tensor | None, at: Floats, points: int) -> Window:
    """Return the window around the coordinates ``at`` (R, 2), with a margin."""
    low, high = at.min(0), at.max(0)
    margin = MARGIN * float((high - low).max())
    a, b = (np.linspace(low[axis] - margin, high[axis] + margin, points) for axis in (0, 1))
    return Window(origin, first, second, a, np.zeros(1) if second is None else b)


def losses_on(
    window: Window, losses: Callable[[Tensor], Tensor], on_point: Callable[[], None] = lambda: None
) -> Floats:
    """Evaluate ``losses``, which maps (P,) to (F,), on the window; return (F, len(b), len(a)).

    ``on_point()`` is called after each point.
    """
    rows = []
    for b in window.b:
        row = []
        for a in window.a:
            row.append(losses(window.at(float(a), float(b))).double().cpu().numpy())
            on_point()
        rows.append(row)
    return np.moveaxis(np.array(rows), -1, 0)


def overlap(first: Floats, second: Floats) -> float:
    """Return the correlation (-1..1) of two losses on the same window."""
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


@dataclass(frozen=True)
class Sharpness:
    """How fast a loss rises around a model.

    ``rise`` is the increase of the loss at distance ``radius`` along the gradient (the inner step of SAM). ``eigenvalue`` is the
    Hessian's largest in absolute value, by power iteration.
    """

    rise: float
    radius: float
    eigenvalue: float


def sharpness(
    loss: Callable[[Tensor], Tensor], w: Tensor, radius: float, generator: torch.Generator, iterations: int = 30
) -> Sharpness:
    """Compute the sharpness at ``w`` (P,) of a differentiable ``loss``, which maps (P,) to ()."""
    gradient = torch.func.grad(loss)
    rise = float(loss(w + radius * unit(gradient(w))) - loss(w))
    v = unit(torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w))
    eigenvalue = 0.0
    for _ in range(iterations):
        product = torch.func.jvp(gradient, (w,), (v,))[1]
        eigenvalue = float(v.double() @ product.double())
        v = unit(product)
    return Sharpness(rise, radius, eigenvalue)

"""Slices of a loss around a model, along random directions or through three models; sharpness.

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
from fedskew.core.vectors import ParameterSpace, unit

Floats = NDArray[np.float64]
MARGIN = 0.2
"""Share of a plane's width by which its window exceeds the points in it."""


def filter_normalised(w: Tensor, space: ParameterSpace, generator: torch.Generator) -> Tensor:
    """Draw a direction (P,) in which each filter has the norm of that filter of ``w``; vectors such as biases are 0.

    A filter is a slice of a tensor along its first dimension.
    """
    draw = torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w)
    parts = []
    for own, drawn in zip(space.unflatten(w).values(), space.unflatten(draw).values(), strict=True):
        if own.dim() < 2:
            parts.append(torch.zeros_like(own).flatten())
            continue
        rows, lengths = drawn.flatten(1), own.flatten(1).norm(dim=1, keepdim=True)
        parts.append((rows * (lengths / (rows.norm(dim=1, keepdim=True) + 1e-10))).flatten())
    return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class Window:
    """A grid on a line or plane: ``origin`` + a first + b second for the values of ``a`` and ``b``; b is 0 on a line."""

    origin: Tensor  # (P,)
    first: Tensor
    second: Tensor | None
    a: Floats
    b: Floats

    def at(self, a: float, b: float) -> Tensor:
        """Return the model (P,) at the coordinates."""
        point = self.origin + a * self.first
        return point if self.second is None else point + b * self.second


def around(w: Tensor, first: Tensor, second: Tensor | None, reach: float, points: int) -> Window:
    """Return the window from -``reach`` to ``reach`` around a model. With an odd number of points its centre is the model."""
    ticks = np.linspace(-reach, reach, points)
    return Window(w, first, second, ticks, ticks if second is not None else np.zeros(1))


def through(models: Tensor, points: int) -> tuple[Window, Floats]:
    """Return the plane through three models (3, P) and their coordinates (3, 2) in it; a line if they lie on one.

    The first model is the origin, the second lies on the first axis; the axes are orthonormal. Raises `BadInput` if all three
    are equal.
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
    low, high = at.min(0), at.max(0)
    margin = MARGIN * float((high - low).max())
    a = np.linspace(low[0] - margin, high[0] + margin, points)
    b = np.zeros(1) if flat else np.linspace(low[1] - margin, high[1] + margin, points)
    return Window(origin, first, None if flat else rest / above, a, b), at


def through_path(models: Tensor, points: int) -> tuple[Window, Floats]:
    """Return the plane through the last of the models (R, P) along the two directions in which they vary most, and where they lie.

    These are the first principal directions of the path (Li et al., section 7); a line if the models lie on one.
    """
    steps = (models - models[-1]).double()
    require(bool(steps.any()), "landscape: the global model has not moved, so it has no path")
    _, sizes, directions = torch.linalg.svd(steps, full_matrices=False)
    flat = len(sizes) < 2 or float(sizes[1]) <= 1e-6 * float(sizes[0])
    first, second = directions[0], directions[0] * 0 if flat else directions[1]
    at = torch.stack([steps @ first, steps @ second], 1).cpu().numpy()
    low, high = at.min(0), at.max(0)
    margin = MARGIN * float((high - low).max())
    a = np.linspace(low[0] - margin, high[0] + margin, points)
    b = np.zeros(1) if flat else np.linspace(low[1] - margin, high[1] + margin, points)
    return Window(models[-1], first.to(models), None if flat else second.to(models), a, b), at


def losses_on(
    window: Window, losses: Callable[[Tensor], Tensor], on_point: Callable[[], None] = lambda: None
) -> Floats:
    """Evaluate ``losses`` (P,) -> (F,) on the window, (F, points of b, points of a); ``on_point()`` is called after each point."""
    rows = []
    for b in window.b:
        row = []
        for a in window.a:
            row.append(losses(window.at(float(a), float(b))).double().cpu().numpy())
            on_point()
        rows.append(row)
    return np.moveaxis(np.array(rows), -1, 0)


def overlap(first: Floats, second: Floats) -> float:
    """Return the correlation of two losses over the same window, in -1..1."""
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


@dataclass(frozen=True)
class Sharpness:
    """How fast a loss rises around a model."""

    rise: float  # of the loss at distance ``radius`` along the gradient, the inner step of SAM
    radius: float
    eigenvalue: float  # the largest of the Hessian in absolute value, by power iteration


def sharpness(
    loss: Callable[[Tensor], Tensor], w: Tensor, radius: float, generator: torch.Generator, iterations: int = 30
) -> Sharpness:
    """Compute the sharpness of a differentiable ``loss`` (P,) -> () at ``w`` (P,)."""
    gradient = torch.func.grad(loss)
    rise = float(loss(w + radius * unit(gradient(w))) - loss(w))
    v = unit(torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w))
    eigenvalue = 0.0
    for _ in range(iterations):
        product = torch.func.jvp(gradient, (w,), (v,))[1]
        eigenvalue = float(v.double() @ product.double())
        v = unit(product)
    return Sharpness(rise, radius, eigenvalue)

"""Exercise 14.4.3 of the textbook section 'Non-IID Data' (14.4) on its own data: the bound on drift against the drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedskew.experiment.documents.extra import Extra
from fedskew.experiment.documents.listing import CLIENTS, dealt_data
from fedskew.report.style import SERIES, WIDTH, styled
from fedskew.skew.partition import Ints

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = 0.1
Gradients = Callable[[Tensor], Tensor]


class Bound(NamedTuple):
    """After 1, 2, ... steps; lengths are Euclidean."""

    apart: Tensor  # (E,) mean distance of a client to the same number of steps on the whole objective
    farthest: Tensor  # (E,) the largest
    drift: Tensor  # (E,) mean distance of the clients to their mean
    smooth: Tensor  # (E,) bound on `farthest`: zeta / L ((1 + rate L)^E - 1)
    convex: Tensor  # (E,) its bound for convex objectives and a rate of at most 2 / L: E rate zeta
    zeta: Tensor  # () the largest distance of a client's gradient to the whole one, along all clients' paths


def bound(local: Gradients, whole: Gradients, w: Tensor, clients: int, rate: float, steps: int, smooth: float) -> Bound:
    """Full-batch steps from ``w`` (P,), measured and bounded ('Non-IID Data', exercise 14.4.3).

    ``local`` maps the models (K, P) of K clients to the gradient of each client's objective at its own, ``whole`` any models
    (M, P) to the gradient of the whole objective at each. ``smooth`` is L: the whole gradient is L-Lipschitz.

    With a_e a client's distance after e steps, a_(e+1) <= (1 + rate L) a_e + rate zeta; where the objective is convex and the rate
    at most 2 / L, a gradient step brings no two models apart, and a_(e+1) <= a_e + rate zeta.
    """
    own, reference = w.expand(clients, -1), w[None]
    zeta = w.new_zeros(())
    apart, farthest, drift = [], [], []
    for _ in range(steps):
        gradients = local(own)
        zeta = torch.maximum(zeta, (gradients - whole(own)).norm(dim=1).max())
        own, reference = own - rate * gradients, reference - rate * whole(reference)
        distances = (own - reference).norm(dim=1)
        apart.append(distances.mean())
        farthest.append(distances.max())
        drift.append((own - own.mean(0)).norm(dim=1).mean())
    count = torch.arange(1, steps + 1, dtype=w.dtype, device=w.device)
    return Bound(
        apart=torch.stack(apart),
        farthest=torch.stack(farthest),
        drift=torch.stack(drift),
        smooth=zeta / smooth * torch.expm1(count * torch.log1p(w.new_tensor(rate * smooth))),
        convex=count * rate * zeta,
        zeta=zeta,
    )


def drift_bound(rate: float = RATE, steps: int = 50) -> dict[str, Bound]:
    """Full-batch steps of softmax regression from zero, 30 clients, in the listing's two partitions.

    Softmax regression is convex and L-smooth with half the largest eigenvalue of X'X / n (the Hessian of the log-sum-exp is at most
    one half): with a rate up to 2 / L both bounds apply. The order of random numbers is the listing's.
    """
    data, dealt = dealt_data(np.random.default_rng(0))
    x = torch.as_tensor(data.x, dtype=torch.float64)
    y = torch.nn.functional.one_hot(torch.as_tensor(data.y), data.num_classes).double()
    smooth = float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1]) / 2
    w = x.new_zeros(x.shape[1] * y.shape[1])

    def whole(models: Tensor) -> Tensor:
        return gradient(models, x.expand(len(models), -1, -1), y.expand(len(models), -1, -1))

    def bounded(rows: Ints) -> Bound:
        own_x, own_y = x[rows], y[rows]
        return bound(lambda models: gradient(models, own_x, own_y), whole, w, CLIENTS, rate, steps, smooth)

    # 12,000 rows are 30 times 400
    return {name: bounded(np.stack(rows)) for name, rows in dealt.items()}


def gradient(models: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of the mean cross-entropy of models (K, features * classes) on x (K, n, features) and one-hot y (K, n, classes)."""
    w = models.view(len(models), x.shape[2], y.shape[2])
    error = (x @ w).softmax(-1) - y
    return (x.mT @ error / x.shape[1]).flatten(1)


LINES = {"bound, smooth": "smooth", "bound, convex": "convex", "farthest client": "farthest", "drift": "drift"}


def draw_bound(found: Mapping[str, Bound], rate: float) -> Figure:
    """One panel a partition, over local steps on a logarithmic axis; the bound for smooth objectives grows without limit."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(2 * WIDTH / 72, 3.6), layout="constrained")
        panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axes, (name, part) in zip(panels, found.items(), strict=True):
            steps = range(1, len(part.drift) + 1)
            for index, (label, field) in enumerate(LINES.items()):
                dashes = "--" if label.startswith("bound") else "-"
                axes.plot(steps, getattr(part, field), label=label, color=SERIES[index], linestyle=dashes)
            axes.set(title=name, xlabel="local steps on all rows", yscale="log")
            axes.grid(axis="y")
        # the bound for smooth objectives leaves the picture
        least = min(float(part.drift[0]) for part in found.values())
        panels[0].set_ylim(least / 1.5, 3 * max(float(part.convex[-1]) for part in found.values()))
        panels[0].set_ylabel(f"distance, rate {rate:g}")
        panels[-1].legend(loc="lower right")
    return figure


def repeat_exercise(on_progress: Callable[[float], None]) -> Extra:
    """The bound on drift against the measured drift."""
    found = drift_bound()
    on_progress(1.0)
    return Extra(
        title=f"Exercise 14.4.3: the bound on drift, full-batch steps at rate {RATE:g}",
        columns=("partition", "steps", "farthest client", "bound, convex", "bound, smooth"),
        rows=[
            (name, str(len(p.drift)), *(f"{float(values[-1]):.3g}" for values in (p.farthest, p.convex, p.smooth)))
            for name, p in found.items()
        ],
        note="distances to the same steps on the whole objective",
        values={name: {k: v.tolist() for k, v in part._asdict().items()} for name, part in found.items()},
        draw=partial(draw_bound, found, RATE),
    )

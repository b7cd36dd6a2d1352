"""Exercise 14.4.3 of the textbook section 'Non-IID Data' (14.4): drift and its upper bound, on the exercise's data."""

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
    """Distances and their bounds after 1, 2, ..., E steps. Distances are Euclidean."""

    apart: Tensor  # (E,) mean over clients of the distance to the model after as many steps on the whole objective
    farthest: Tensor  # (E,) the largest of these distances
    drift: Tensor  # (E,) mean distance of the clients to their mean
    smooth: Tensor  # (E,) bound on `farthest`: zeta / L ((1 + rate L)^E - 1)
    convex: Tensor  # (E,) bound on `farthest` for convex objectives and a rate of at most 2 / L: E rate zeta
    zeta: Tensor  # () largest distance of a client's gradient to the whole gradient at the same model, over all steps


def bound(local: Gradients, whole: Gradients, w: Tensor, clients: int, rate: float, steps: int, smooth: float) -> Bound:
    """Take full-batch steps from ``w`` (P,); return the distances and their bounds ('Non-IID Data', exercise 14.4.3).

    ``local`` maps the models (K, P) of K clients to the gradients (K, P) of their objectives. ``whole`` maps models (M, P) to
    the gradients (M, P) of the whole objective, which are L-Lipschitz; ``smooth`` is L.

    Let a_e be a client's distance after e steps. Then a_(e+1) <= (1 + rate L) a_e + rate zeta. If the objective is convex and
    the rate is at most 2 / L, a gradient step never increases the distance of two models, so a_(e+1) <= a_e + rate zeta.
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
    """Compute the bounds for softmax regression from zero, with 30 clients in each of the listing's two partitions.

    Softmax regression is convex. It is L-smooth with L half the largest eigenvalue of X'X / n, because the Hessian of the
    log-sum-exp is at most one half. With a rate up to 2 / L both bounds apply. Random numbers are drawn in the listing's order.
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
    """Return the gradient (K, features * classes) of the mean cross-entropy of K models.

    Model k is measured on its own rows x[k] (n, features) and one-hot targets y[k] (n, classes).
    """
    w = models.view(len(models), x.shape[2], y.shape[2])
    error = (x @ w).softmax(-1) - y
    return (x.mT @ error / x.shape[1]).flatten(1)


LINES = {"bound, smooth": "smooth", "bound, convex": "convex", "farthest client": "farthest", "drift": "drift"}


def draw_bound(found: Mapping[str, Bound], rate: float) -> Figure:
    """Draw one panel for each partition: distances and bounds over local steps, on a logarithmic axis."""
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
        # the bound for smooth objectives grows beyond the axis
        least = min(float(part.drift[0]) for part in found.values())
        panels[0].set_ylim(least / 1.5, 3 * max(float(part.convex[-1]) for part in found.values()))
        panels[0].set_ylabel(f"distance, rate {rate:g}")
        panels[-1].legend(loc="lower right")
    return figure


def repeat_exercise(on_progress: Callable[[float], None]) -> Extra:
    """Compute the exercise: distances and their bounds after the last step."""
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

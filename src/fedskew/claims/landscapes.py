"""Losses of linear models with two parameters, and the paths of updates over them (From IID to Non-IID, Figures 1 and 11).

Such a loss, the mean of half the squared errors, is exactly quadratic: a few numbers describe the whole surface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.measure.statistics import Floats
from fedskew.report.style import INK, MUTED, SERIES, blank, finish
from fedskew.report.words import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Parts = Mapping[str, Mapping[str, Any]]
"""By the name of each part: its surfaces, paths, and the numbers of its row in the table, as plain values."""

ROWS, UPDATES, RATE = 64, 80, 0.1
BATCHES = {"gradient descent": ROWS, "mini-batch SGD": 8, "SGD": 1}
"""Rows of an update in Figure 1."""

ROUNDS, LOCAL_STEPS, LOCAL_RATE = 10, 20, 0.5


@dataclass(frozen=True)
class Surface:
    """The loss 1/2 (w - lowest)' hessian (w - lowest) + loss of two parameters w, in plain values."""

    hessian: list[list[float]]
    lowest: list[float]
    loss: float

    def at(self, w: Floats) -> Floats:
        """Return the losses (...) at the parameters (..., 2)."""
        away = w - np.array(self.lowest)
        return np.asarray(self.loss + (away @ np.array(self.hessian) * away).sum(-1) / 2)

    def slope(self, w: Floats) -> Floats:
        """Return the gradient (2,) at the parameters (2,)."""
        return np.array(self.hessian) @ (w - np.array(self.lowest))


def surface(x: Floats, y: Floats) -> Surface:
    """Return the loss of a linear model on the rows x (n, 2) with targets y (n,)."""
    hessian = x.T @ x / len(x)
    lowest = np.linalg.solve(hessian, x.T @ y / len(x))
    return Surface(hessian.tolist(), lowest.tolist(), float(np.square(x @ lowest - y).mean() / 2))


def descent(w: Floats, gradients: Sequence[Callable[[Floats], Floats]], rate: float) -> list[Floats]:
    """Take a step along each gradient in turn; return the parameters (2,) before the first step and after each."""
    path = [w]
    for gradient in gradients:
        path.append(path[-1] - rate * gradient(path[-1]))
    return path


def batch_sizes() -> Parts:
    """Take the same number of updates with all 64 rows, with 8 rows and with 1 row each; return a part for each method."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, 2)) * (1.0, 0.5)
    y = x @ (1.0, 1.0) + rng.standard_normal(ROWS)
    whole, parts = surface(x, y), {}
    for name, size in BATCHES.items():
        epochs = -(-UPDATES * size // ROWS)
        order = np.concatenate([rng.permutation(ROWS) for _ in range(epochs)])
        gradients = [
            lambda w, x=x[rows], y=y[rows]: x.T @ (x @ w - y) / len(x)
            for rows in order[: UPDATES * size].reshape(UPDATES, size)
        ]
        path = descent(np.array([-0.6, 2.2]), gradients, RATE)
        length = sum(float(np.linalg.norm(b - a)) for a, b in pairwise(path))
        parts[name] = {
            "clients": {},
            "whole": asdict(whole),
            "path": np.array(path).tolist(),
            "row": [size, length, float(whole.at(path[-1])) - whole.loss],
        }
    return parts


def two_clients() -> Parts:
    """Play FedAvg of two clients that fit a line to a parabola; return a part for each partition.

    IID clients have rows of the whole parabola, non-IID clients of one half each. A step uses all rows of a client.
    """
    rng = np.random.default_rng(0)
    inputs = np.sort(rng.uniform(-1, 1, 2 * ROWS))
    x, y = np.stack([np.ones(2 * ROWS), inputs], axis=1), inputs**2 + 0.1 * rng.standard_normal(2 * ROWS)
    whole, parts = surface(x, y), {}
    for name, order in {"IID": rng.permutation(2 * ROWS), "non-IID": np.arange(2 * ROWS)}.items():
        clients = [surface(x[rows], y[rows]) for rows in np.split(order, 2)]
        server, local = [np.array([0.9, 0.9])], []
        for _ in range(ROUNDS):
            local.append([descent(server[-1], [client.slope] * LOCAL_STEPS, LOCAL_RATE) for client in clients])
            server.append(np.mean([path[-1] for path in local[-1]], axis=0))
        apart, away = np.subtract(clients[0].lowest, clients[1].lowest), server[-1] - whole.lowest
        distances = [float(np.linalg.norm(between)) for between in (apart, away)]
        parts[name] = {
            "clients": {f"client {k + 1}": asdict(client) for k, client in enumerate(clients)},
            "local": np.array(local).tolist(),
            "whole": asdict(whole),
            "path": np.array(server).tolist(),
            "row": [*distances, float(whole.at(server[-1])) - whole.loss],
        }
    return parts


def rows_of(parts: Parts) -> list[tuple[str, ...]]:
    return [
        (name, *(str(number) if isinstance(number, int) else figures(number) for number in part["row"]))
        for name, part in parts.items()
    ]


def draw_part(parts: Parts, name: str) -> Figure:
    """Draw the contours and paths of a part. All parts have the same axes."""
    part = parts[name]
    drawn = np.array([w for p in parts.values() for w in [*p["path"], *(s["lowest"] for s in p["clients"].values())]])
    a, b = np.linspace(drawn.min(0) - 0.3, drawn.max(0) + 0.3, 80).T
    with blank(300) as (figure, axes):
        for index, (client, values) in enumerate((part["clients"] or {"": part["whole"]}).items()):
            loss, colour = Surface(**values), SERIES[index] if client else MUTED
            sheet = loss.at(np.stack(np.meshgrid(a, b), axis=-1))
            # equal steps between the levels would leave the middle empty
            levels = loss.loss + (sheet.max() - loss.loss) * np.linspace(0.05, 1, 9) ** 2
            axes.contour(a, b, sheet, levels=levels, colors=colour, linewidths=0.7, alpha=0.6)
            if client:
                axes.plot(*loss.lowest, "x", color=colour, markersize=8, markeredgewidth=2)
                axes.plot([], [], color=colour, label=client)
                for paths in part["local"]:
                    axes.plot(*np.transpose(paths[index]), color=colour, linewidth=1)
        path_name, colour = ("server", INK) if part["clients"] else (name, SERIES[0])
        axes.plot(*np.transpose(part["path"]), ".-", color=colour, linewidth=1.2, label=path_name)
        axes.plot(*part["whole"]["lowest"], "*", color=INK, markersize=11, label="lowest loss")
        axes.set_xlabel("first parameter")
        finish(figure, axes, "second parameter")
    return figure

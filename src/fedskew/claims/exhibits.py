"""Tables and figures of documents that need no training runs: class counts, the pulls of three clients, four skews to name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from fedskew.core.text import count
from fedskew.experiment.config import Experiment
from fedskew.report import draw
from fedskew.report.style import INK, SERIES, blank, finish
from fedskew.skew.label import LabelDirichlet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = dict[str, Any]
Progress = Callable[[float], None]

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
PRINTED = np.array(
    [(412, 89, 156, 143), (67, 523, 112, 98), (203, 134, 387, 76), (156, 87, 201, 356), (162, 167, 144, 327)]
)
"""The rows of five clients by class, as Table V of failure-modes prints them for alpha = 0.1."""

DRAWS = 1000


def of_table(rows: NDArray[np.int64]) -> list[float]:
    """Return three numbers of a table (clients, classes).

    These are the mean squared distance of a client's class shares from equal shares, the mean number of classes with more than a
    twentieth of the client's rows, and the rows of the smallest client.
    """
    shares = rows / rows.sum(1, keepdims=True)
    distance = ((shares - 1 / rows.shape[1]) ** 2).sum(1).mean()
    return [float(distance), float((shares > 0.05).sum(1).mean()), float(rows.sum(1).min())]


def class_counts() -> Numbers:
    """Deal four classes of 1,000 rows to five clients, `DRAWS` times for each of two alphas, by the document's Algorithm 3."""
    labels, drawn = np.repeat(np.arange(len(CLASSES)), 1000), {}
    for alpha in (0.1, 0.01):
        rng, skew = np.random.default_rng(0), LabelDirichlet(alpha=alpha, remainder="drop")
        deals = (skew.deal(labels, None, len(PRINTED), rng) for _ in range(DRAWS))
        drawn[alpha] = [np.stack([np.bincount(labels[rows], minlength=4) for rows in deal]) for deal in deals]
    of_draws = {alpha: np.array([of_table(rows) for rows in tables]) for alpha, tables in drawn.items()}
    return {
        "as printed": {"counts": PRINTED.tolist(), "ours": of_table(PRINTED)},
        "one draw of Algorithm 3": {
            "counts": drawn[0.1][0].tolist(),
            "ours": of_table(drawn[0.1][0]),
            "mean": of_draws[0.1].mean(0).tolist(),
            "mildest": of_draws[0.1][of_draws[0.1][:, 0].argmin()].tolist(),
            "extreme": of_draws[0.01].mean(0).tolist(),
        },
    }


def rows_of_counts(numbers: Mapping[str, Any]) -> list[tuple[str, ...]]:
    texts = {"distance from equal shares": ".3f", "classes above 5 % of a client": ".1f", "smallest client": ",.0f"}
    columns = [of for part in numbers.values() for name, of in part.items() if name != "counts"]
    rows = zip(texts.items(), zip(*columns, strict=True), strict=True)
    return [(name, *(f"{value:{digits}}" for value in values)) for (name, digits), values in rows]


def draw_counts(numbers: Mapping[str, Any], name: str) -> Figure:
    """Draw a table of counts. AG News numbers its classes in their order."""
    counts = np.array(numbers[name]["counts"])
    cells = [(k, f"{k + 1}", f"{c + 1} {CLASSES[c]}", counts[k, c]) for k, c in np.ndindex(counts.shape)]
    return draw.draw_partition(pd.DataFrame(cells, columns=["client", "client_name", "label", "rows"]))


HISTOGRAMS = np.array([(0.9, 0.05, 0.05), (0.2, 0.7, 0.1), (0.1, 0.3, 0.6)])
"""Shares of three classes at clients A, B and C, which have equally many rows."""

PULL_RATE, SHOWN_STEPS = 0.5, (1, 5, 20)
PLANE = np.sqrt(2 / 3) * np.array([[0, 1], [-np.sqrt(3) / 2, -0.5], [np.sqrt(3) / 2, -0.5]])
"""Isometric coordinates (3, 2) in the plane of three scores whose sum is 0."""


def optimum(histogram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the scores (..., 3) with sum 0 that have the smallest cross-entropy on these class shares: their logarithms."""
    logs = np.log(histogram)
    return logs - logs.mean(-1, keepdims=True)


def pulls() -> Numbers:
    """Let three clients take gradient steps from equal scores. Their models are scores without inputs, so all is exact.

    The gradient of client k at scores w is softmax(w) - p_k, with the client's class shares p_k. Returns places in the plane.
    """
    paths = [np.zeros((3, 3))]
    for _ in range(SHOWN_STEPS[-1]):
        paths.append(paths[-1] - PULL_RATE * (softmax(paths[-1], axis=1) - HISTOGRAMS))
    averages = np.mean(paths, axis=1)
    away = np.linalg.norm(np.array(paths) - averages[:, None], axis=2).mean(1)
    whole = optimum(HISTOGRAMS.mean(0))
    part = {
        "paths": (np.array(paths) @ PLANE).tolist(),
        "optima": (optimum(HISTOGRAMS) @ PLANE).tolist(),
        "whole": (whole @ PLANE).tolist(),
        "drift": away.tolist(),
        "to_own": np.linalg.norm(averages[:, None] - optimum(HISTOGRAMS), axis=2).min(1).tolist(),
    }
    return {"three clients pull the model towards their own optima": part}


def rows_of_pulls(numbers: Mapping[str, Any]) -> list[tuple[str, ...]]:
    (part,) = numbers.values()
    return [(count(e, "local step"), f"{part['drift'][e]:.3f}", f"{part['to_own'][e]:.3f}") for e in SHOWN_STEPS]


def draw_pulls(numbers: Mapping[str, Any], name: str) -> Figure:
    """Draw the clients' paths with marks after some steps, their optima, and the average."""
    part, marks = numbers[name], list(SHOWN_STEPS)
    paths = np.array(part["paths"])
    with blank(250) as (figure, axes):
        for k, client in enumerate("ABC"):
            text = f"client {client}, {HISTOGRAMS[k, k]:.0%} class {k}".replace("%", " %")
            axes.plot(*paths[:, k].T, color=SERIES[k], marker="o", markersize=4, markevery=marks, label=text)
            axes.plot(*part["optima"][k], color=SERIES[k], marker="*", markersize=11, linestyle="")
        axes.plot(
            *paths.mean(1).T, color=INK, marker="o", markersize=8, fillstyle="none", markevery=marks, label="average"
        )
        axes.plot(*part["whole"], color=INK, marker="*", markersize=11, linestyle="", label="optimum of all rows")
        axes.set_aspect("equal")
        axes.set_xlabel("scores of class 2 against class 1")
        finish(figure, axes, "scores of class 0")
    return figure


SCENARIOS = (
    ("(a) cameras, each with its native species", "label-classes:k=3", "fewer local epochs, then FedProx or SCAFFOLD"),
    (
        "(b) hospitals with different scanners",
        "feature-affine:strength=0.3",
        "FedProx or SCAFFOLD; FedBN is not in the table",
    ),
    (
        "(c) keyboards with a few power users",
        "quantity-lognormal:sigma=1.5",
        "fewer local epochs, then server momentum",
    ),
    ("(d) a word with two meanings", "concept-swap:clusters=2", "none of the table; a model for each community"),
)
"""The scenarios of exercise 14.4.1. Each has its text, a skew that makes such clients, and the method to try first."""


def skews_to_name(on_progress: Progress = lambda _: None) -> Numbers:
    """Plant each scenario among ten clients with the digits; return the strength of each face, as `fedskew diagnose` does."""
    from fedskew.diagnosis.diagnose import faces_of  # imports pandas and SciPy's statistics: as long as all else here
    from fedskew.diagnosis.subject import from_experiment

    numbers = {}
    for done, (scenario, skew, _) in enumerate(SCENARIOS, 1):
        planted = Experiment(dataset="digits", skew=skew, clients={"number": 10, "partition_seed": 0})
        with threadpool_limits(1):
            diagnosis = faces_of(from_experiment(planted, skew))
        numbers[scenario] = {**diagnosis.strengths, "dominant": diagnosis.dominant}
        on_progress(done / len(SCENARIOS))
    return numbers


def rows_of_skews(numbers: Mapping[str, Mapping[str, Any]]) -> Sequence[tuple[str, ...]]:
    return [
        (scenario, of["dominant"], *(f"{of[face]:.2f}" for face in ("label", "feature", "quantity", "concept")), first)
        for (scenario, of), (_, _, first) in zip(numbers.items(), SCENARIOS, strict=True)
    ]

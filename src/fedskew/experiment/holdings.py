"""What a diagnosis measures of each kind of target, and what each client holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fedskew.data.dataset import Dataset
from fedskew.data.targets import Rows
from fedskew.measure.heterogeneity.symbols import counts_of
from fedskew.skew.values import quantile_bins

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SHOWN = 6
"""Number of classes, labels or symbols that the table of clients shows: the most frequent ones."""

FIFTHS = 5

CLASSES = "classes"

WORDS = {"number": "targets are numbers", "survival": "targets are survival times"}

MEANINGS: dict[str, dict[str, str]] = {
    "number": {
        "label": "distance of a client's targets, by tenths, from the pooled ones",
        "feature": "distance of a client's inputs from the pooled ones of the same targets",
        "concept": "distance of a client's residuals, under one model for all, from the pooled ones of the same kind of input",
    },
    "labels": {
        "label": "distance of a client's sets of labels from the pooled ones",
        "concept": "distance of a client's sets of labels for the same kind of input from the pooled ones",
    },
    "survival": {
        "label": "distance of a client's events and times from the pooled ones",
        "feature": "distance of a client's inputs from the pooled ones of the same events and times",
        "concept": "distance of a client's residuals, under one model for all, from the pooled ones of the same kind of input",
    },
    "symbols": {
        "label": "distance of a client's frequencies of symbols from the pooled ones",
        "concept": "distance of the symbols that follow a symbol from the pooled ones",
    },
}
"""What a face means where targets are not classes, if it differs."""


class Holdings(TypedDict):
    """A table of clients: columns, whether they are shares of the rows, and the values of each client."""

    columns: list[str]
    shares: list[bool]
    rows: list[list[float]]


@dataclass(frozen=True, eq=False)
class Targets:
    """The strata (n,) of the targets and their names, and numbers (n,) that stand for the targets, if there are any."""

    strata: Ints
    names: tuple[str, ...]
    response: Floats | None = None


def targets_of(kind: str, y: Rows, dataset: Dataset) -> Targets:
    """The strata of the targets (n, ...) of a data set's training rows."""
    if kind == CLASSES:
        return Targets(y, dataset.classes)
    if kind == "survival":
        return Targets(*events_and_times(y), log_rank(y))
    strata, names = dataset.strata
    return Targets(strata, names, y.astype(np.float64) if kind == "number" else None)


def events_and_times(y: Floats) -> tuple[Ints, tuple[str, ...]]:
    """The fifth of the times in which each row lies, apart for rows with and without an event, and the names of these groups."""
    fifth = quantile_bins(y[:, 0], FIFTHS)
    found, held = np.unique(fifth + FIFTHS * y[:, 1].astype(np.int64), return_inverse=True)
    ends = [f"{y[fifth == at, 0].max():.4g}" for at in range(fifth.max() + 1)]
    names = (
        f"{'event' if code >= FIFTHS else 'no event'}, time up to {ends[code % FIFTHS]}" for code in found.tolist()
    )
    return held.astype(np.int64), tuple(names)


def log_rank(y: Floats) -> Floats:
    """Each row's event minus the cumulative hazard of all rows at its time (Nelson and Aalen). The scores sum to 0."""
    place = np.unique(y[:, 0], return_inverse=True)[1]
    ending = np.bincount(place)
    at_risk = len(y) - np.cumsum(ending) + ending
    hazard = np.cumsum(np.bincount(place, weights=y[:, 1]) / at_risk)
    return np.asarray(y[:, 1] - hazard[place])


def said(kind: str, names: Sequence[str]) -> str:
    """What the targets are, in words."""
    return WORDS.get(kind, f"{len(names)} {kind}")


def holdings(kind: str, y: Rows, client: Ints, counts: Ints, names: Sequence[str]) -> Holdings:
    """The table of clients. ``counts`` (clients, classes or strata) are of all rows, ``y`` (n, ...) of those that are measured."""
    clients = len(counts)
    if kind in ("number", "survival"):
        values = y if kind == "number" else y[:, 0]
        mine = [values[client == k] for k in range(clients)]
        middle = [np.quantile(v, (0.1, 0.5, 0.9)).tolist() for v in mine]
        if kind == "number":
            rows = [[float(v.mean()), *q] for v, q in zip(mine, middle, strict=True)]
            return {"columns": ["mean", "10 %", "median", "90 %"], "shares": [False] * 4, "rows": rows}
        rate = [float(y[client == k, 1].mean()) for k in range(clients)]
        rows = [[r, q[1]] for r, q in zip(rate, middle, strict=True)]
        return {"columns": ["event", "median time"], "shares": [True, False], "rows": rows}
    held, whole = counts, counts.sum(1)
    if kind == "labels":
        held = np.stack([y[client == k].sum(0) for k in range(clients)])
        whole = np.bincount(client, minlength=clients)
    if kind == "symbols":
        held = counts_of(y, client, clients, counts.shape[1])
        whole = held.sum(1)
    order = np.sort(np.argsort(-held.sum(0), kind="stable")[:SHOWN])
    shares = held[:, order] / np.maximum(whole, 1)[:, None]
    return {"columns": [names[at] for at in order], "shares": [True] * len(order), "rows": shares.tolist()}

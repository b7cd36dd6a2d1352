"""Targets in a diagnosis: how each kind is divided into strata, and a table of what each client holds."""

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
"""Maximum number of classes, labels or symbols in the table of clients. The most frequent are shown."""

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
"""By kind of target: the meaning of each face, if it differs from the meaning for classes."""


class Holdings(TypedDict):
    """A table of clients. ``shares`` says which columns are shares of rows (0..1); ``rows`` has one list for each client."""

    columns: list[str]
    shares: list[bool]
    rows: list[list[float]]


@dataclass(frozen=True, eq=False)
class TargetTable:
    """What a diagnosis shows of all clients' targets: their kind, the names of classes or strata, and what each client holds.

    ``names`` are the names of classes, labels or symbols. ``sizes`` (clients,) are the clients' numbers of rows.
    """

    kind: str
    classes: tuple[str, ...]
    names: tuple[str, ...]
    sizes: Ints
    holdings: Holdings


@dataclass(frozen=True, eq=False)
class Strata:
    """The stratum (n,) of each row's target, the strata's names, and a number (n,) for each target, if the kind has one."""

    strata: Ints
    names: tuple[str, ...]
    response: Floats | None = None


def strata_of(kind: str, y: Rows, dataset: Dataset) -> Strata:
    """Divide the targets ``y`` (n, ...) of a data set's training rows into strata. ``kind`` is the kind of target."""
    if kind == CLASSES:
        return Strata(y, dataset.classes)
    if kind == "survival":
        return Strata(*events_and_times(y), log_rank(y))
    if kind == "number":
        return Strata(np.zeros(len(y), dtype=np.int64), ("",), y.astype(np.float64))
    return Strata(*dataset.strata)


def events_and_times(y: Floats) -> tuple[Ints, tuple[str, ...]]:
    """Divide survival targets (n, 2) into groups by the fifth of the times and by event; return groups (n,) and names."""
    fifth = quantile_bins(y[:, 0], FIFTHS)
    found, held = np.unique(fifth + FIFTHS * y[:, 1].astype(np.int64), return_inverse=True)
    ends = [f"{y[fifth == at, 0].max():.4g}" for at in range(fifth.max() + 1)]
    names = (
        f"{'event' if code >= FIFTHS else 'no event'}, time up to {ends[code % FIFTHS]}" for code in found.tolist()
    )
    return held.astype(np.int64), tuple(names)


def log_rank(y: Floats) -> Floats:
    """Return log-rank scores (n,): each row's event minus the cumulative hazard of all rows at its time (Nelson, Aalen).

    The scores sum to 0.
    """
    place = np.unique(y[:, 0], return_inverse=True)[1]
    ending = np.bincount(place)
    at_risk = len(y) - np.cumsum(ending) + ending
    hazard = np.cumsum(np.bincount(place, weights=y[:, 1]) / at_risk)
    return np.asarray(y[:, 1] - hazard[place])


def said(kind: str, names: Sequence[str]) -> str:
    """Describe the targets: ``targets are numbers``, ``10 classes``."""
    return WORDS.get(kind, f"{len(names)} {kind}")


def holdings(kind: str, y: Rows, client: Ints, counts: Ints, names: Sequence[str]) -> Holdings:
    """Make the table of clients.

    ``counts`` (clients, classes or strata) covers all rows. ``y`` (n, ...) and ``client`` (n,) cover the measured rows only.
    """
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

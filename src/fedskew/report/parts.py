"""Measures of layers, classes and labels: how well the updates agree in each layer, test accuracy or F1 of each class or label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedskew.core.errors import require
from fedskew.measure.registry import Measure, primary, stored
from fedskew.report import series
from fedskew.report.budget import Budget
from fedskew.report.style import SERIES, blank, finish, marker, share_axis, shorten, styled
from fedskew.report.tables import OBSERVATION, read
from fedskew.report.tips import Line, Tip, Tips
from fedskew.report.words import Row, rows_of, with_interval
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Parts = Literal["layers", "classes", "labels", "adaptation"]
MEASURES: dict[Parts, tuple[str, str]] = {
    "layers": ("layer", "cosine"),
    "classes": ("class", "accuracy"),
    "labels": ("class", "f1"),
    "adaptation": ("adaptation", ""),
}
"""By figure: the split, and the name; empty for the primary metric."""

AXES: dict[Parts, str] = {
    "layers": "layer",
    "classes": "class",
    "labels": "class or label",
    "adaptation": "rows of a new client to adapt on",
}
MOST = 30
"""Maximum number of parts that are named on the axis."""


def measure_of(what: Parts) -> Measure:
    """The measure of the parts."""
    split, name = MEASURES[what]
    return stored()[split, name or primary().name]


def by_part(
    store: RunStore, records: Sequence[RunRecord], what: Parts, budget: Budget | None = None, spread: str = "ci95"
) -> pd.DataFrame:
    """The measure of each layer, mean over the rounds, or of each class after the last measured round; finished runs only.

    Columns method, part (its name), place (its number), mean, half (of `words.SPREADS`, over seeds; NaN for one seed).
    """
    measure = measure_of(what)
    known = {r.id: r for r in records if r.status == "finished"}
    frame = series.by_part(store, list(known.values()))
    frame = frame[(frame["split"] == measure.split) & (frame["name"] == measure.name)]
    if budget and len(frame):
        last = read(store, list(known.values()), budget).groupby("run")["round"].max()
        frame = frame[frame["round"] <= frame["run"].map(last)]
    if measure.split == "class":
        frame = frame[frame["round"] == frame.groupby("run")["round"].transform("max")]
    runs = frame.groupby(["run", "part"], sort=False)["value"].mean().reset_index()
    for column in OBSERVATION:
        runs[column] = runs["run"].map(
            {i: r.name if column == "method" else getattr(r, column) for i, r in known.items()}
        )
    seeds = runs.groupby([*OBSERVATION, "part"], sort=False)["value"].mean()
    table = series.over_seeds(seeds.groupby(["method", "part"], sort=False), spread).reset_index()
    places = {part: k for k, part in enumerate(dict.fromkeys(table["part"]))}
    return table.assign(place=table["part"].map(places))[["method", "part", "place", "mean", "half"]]


def draw_parts(table: pd.DataFrame, what: Parts, order: Sequence[str], label: str = "") -> Figure:
    """Draw a marker with its interval for each method and part; ``table`` comes from `by_part`. A ``label`` adds a legend.

    Raises `BadInput` if nothing was measured.
    """
    option = "clients.unseen=0.2" if what == "adaptation" else f"evaluation.{series.PARTS[MEASURES[what][0]]}=true"
    require(len(table) > 0, f"none of these runs has measured its {what}; set {option}")
    measure, parts = measure_of(what), table.drop_duplicates("place").sort_values("place")
    with styled():
        figure, axes = blank(250)
        for method, rows in in_order(table, order):
            index = order.index(method)
            x = [row["place"] + aside(index, len(order)) for row in rows]
            ends = np.array([limits(measure, row) for row in rows])
            colour = SERIES[index % len(SERIES)]
            axes.vlines(x, ends[:, 0], ends[:, 1], color=colour, linewidth=2, alpha=0.45)
            line = "-" if what == "adaptation" else ""
            axes.plot(x, [row["mean"] for row in rows], marker(index) + line, color=colour, label=method)
        if measure.unit == "%":
            share_axis(axes)
            axes.set_ylim(-0.02, 1.02)
        if len(parts) <= MOST:
            names = [shorten(str(part), 16) for part in parts["part"]]
            crowded = sum(map(len, names)) > 45
            axes.set_xticks(parts["place"].tolist(), names, rotation=90 if crowded else 0, fontsize=9)
        axes.set_xlim(-0.6, parts["place"].max() + 0.6)
        axes.set_xlabel(AXES[what])
        finish(figure, axes, label)
    return figure


def in_order(table: pd.DataFrame, order: Sequence[str]) -> list[tuple[str, list[Row]]]:
    """The rows of each method that has any."""
    rows = rows_of(table)
    found = [(method, [row for row in rows if row["method"] == method]) for method in order]
    return [(method, own) for method, own in found if own]


def aside(index: int, number: int) -> float:
    """The step aside of a method's marker, so that the methods stand beside each other."""
    return 0.5 * (index - (number - 1) / 2) / max(number, 3)


def limits(measure: Measure, row: Row) -> tuple[float, float]:
    """The interval of a part, cut off where it is impossible."""
    half = row["half"] if np.isfinite(row["half"]) else 0.0
    return max(row["mean"] - half, measure.low), min(row["mean"] + half, measure.high)


def of_parts(table: pd.DataFrame, what: Parts, order: Sequence[str]) -> Tips:
    """The values of all methods for each part."""
    measure = measure_of(what)
    found: dict[tuple[int, str], list[Line]] = {}
    for row in rows_of(table):
        line = Line(order.index(row["method"]), row["mean"], with_interval(measure, row["mean"], row["half"]))
        found.setdefault((row["place"], row["part"]), []).append(line)
    tips = [Tip(place, lines[0].y, part, lines) for (place, part), lines in sorted(found.items())]
    return Tips("x", tips, order)

"""Tables and figures of measures with one value for each layer, class, label, or number of rows to adapt on."""

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
"""By figure: split and name of its measure. An empty name stands for the primary metric."""

AXES: dict[Parts, str] = {
    "layers": "layer",
    "classes": "class",
    "labels": "class or label",
    "adaptation": "rows of a new client to adapt on",
}
MOST = 30
"""Maximum number of parts that are named on the axis."""


def measure_of(what: Parts) -> Measure:
    """Return the measure that the figure ``what`` shows."""
    split, name = MEASURES[what]
    return stored()[split, name or primary().name]


def by_part(
    store: RunStore, records: Sequence[RunRecord], what: Parts, budget: Budget | None = None, spread: str = "ci95"
) -> pd.DataFrame:
    """Return the measure of each part for the finished runs: means over seeds.

    Layers are averaged over the rounds; classes and labels are read after the last measured round. Columns are method, part
    (its name), place (its number), mean, and half (the half-width of ``spread``; NaN for one seed).
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
    """Draw a marker with its interval for each method and part. ``table`` comes from `by_part`.

    ``order`` gives each method its colour. With a ``label`` the figure has a legend. Raises `BadInput` for an empty table.
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
    """Return (method, rows) for each method of ``order`` that has rows."""
    rows = rows_of(table)
    found = [(method, [row for row in rows if row["method"] == method]) for method in order]
    return [(method, own) for method, own in found if own]


def aside(index: int, number: int) -> float:
    """Return the horizontal offset of a method's marker, so that the markers of one part stand side by side."""
    return 0.5 * (index - (number - 1) / 2) / max(number, 3)


def limits(measure: Measure, row: Row) -> tuple[float, float]:
    """Return the ends of a part's interval, cut at the measure's lowest and highest possible value."""
    half = row["half"] if np.isfinite(row["half"]) else 0.0
    return max(row["mean"] - half, measure.low), min(row["mean"] + half, measure.high)


def of_parts(table: pd.DataFrame, what: Parts, order: Sequence[str]) -> Tips:
    """The tips of `draw_parts`: the values of all methods for each part."""
    measure = measure_of(what)
    found: dict[tuple[int, str], list[Line]] = {}
    for row in rows_of(table):
        line = Line(order.index(row["method"]), row["mean"], with_interval(measure, row["mean"], row["half"]))
        found.setdefault((row["place"], row["part"]), []).append(line)
    tips = [Tip(place, lines[0].y, part, lines) for (place, part), lines in sorted(found.items())]
    return Tips("x", tips, order)

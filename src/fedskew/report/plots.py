"""Figures of stored runs: curves over rounds, values by client and part, the partition, and loss landscapes."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.files import require_regular, write_whole
from fedskew.measure.registry import Measure, by_primary_metric, primary, shown, stored
from fedskew.report import series, tables
from fedskew.report import style as tips
from fedskew.report.comparisons import draw_differences, draw_ranks
from fedskew.report.console import png
from fedskew.report.experiments import kinds_of_rows, titled
from fedskew.report.series import OBSERVATION, Budget, read
from fedskew.report.style import (
    INK,
    MUTED,
    SERIES,
    WIDTH,
    Line,
    Tip,
    Tips,
    blank,
    dashes,
    finish,
    marker,
    share_axis,
    shorten,
    styled,
)
from fedskew.report.words import Row, listed, rows_of, with_interval
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


Floats = NDArray[np.float64]
LEVELS = 14
AXES = {
    "line": "filter-normalised random direction",
    "surface": "two filter-normalised random directions",
    "plane": "distance in the plane of the three models",
    "path": "distance in the plane in which the global model moved most",
}
"""The axes' label, by kind of landscape."""


def draw_slices(
    a: Floats,
    b: Floats,
    sheets: Mapping[str, Floats],
    points: Mapping[str, tuple[float, float]],
    axes: str,
    path: Sequence[tuple[float, float]] = (),
) -> Figure:
    """Draw losses at the points (a, b): contours in one panel for each sheet, or all sheets as curves if ``b`` has one point.

    ``sheets`` holds losses (len(b), len(a)) by name. ``points`` are the places of models. ``path``, the places of the global
    model after each round, is drawn as a line; without it, lines join the models to the first. ``axes`` labels the axes.
    """
    from matplotlib.figure import Figure

    with styled():
        if len(b) == 1:
            figure = Figure(figsize=(WIDTH / 72, 3.4), layout="constrained")
            panel = figure.subplots()
            for (name, sheet), colour in zip(sheets.items(), SERIES, strict=False):
                panel.plot(a, sheet[0], color=colour, label=name)
            for name, (at, _) in points.items():
                panel.axvline(at, color=INK, linewidth=0.8, linestyle=":")
                panel.annotate(name, (at, 1), xycoords=("data", "axes fraction"), rotation=90, va="top", fontsize=8)
            panel.set(xlabel=axes, ylabel="loss")
            panel.legend()
            return figure
        figure = Figure(figsize=(len(sheets) * WIDTH / 72, 4.2), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(sheets), sharex=True, sharey=True))
        for panel, (name, sheet) in zip(panels, sheets.items(), strict=True):
            # levels are quantiles of the losses: equal steps would show steep parts only
            levels = np.unique(np.quantile(sheet, np.linspace(0, 1, LEVELS)))
            lines = panel.contour(a, b, sheet, levels=levels, colors=MUTED, linewidths=0.8)
            panel.clabel(lines, fontsize=7, fmt="%.2g")
            start = next(iter(points.values()))
            if path:
                panel.plot(*zip(*path, strict=True), color=SERIES[0], marker=".", linewidth=1.2)
            for (model, place), colour in zip(points.items(), SERIES, strict=False):
                if not path:
                    panel.plot([start[0], place[0]], [start[1], place[1]], color=colour, linewidth=1)
                panel.plot(*place, "o", color=colour)
                panel.annotate(model, place, xytext=(4, 4), textcoords="offset points", fontsize=8)
            panel.set(title=f"loss of {name}", xlabel=axes)
    return figure


def keep(folder: Path, kind: str, numbers: Mapping[str, object]) -> None:
    """Write the numbers of a landscape to its run's folder; the report reads them there."""
    write_whole(folder / f"landscape-{kind}.json", json.dumps(numbers), "landscape")


def kept(folder: Path) -> list[dict[str, Any]]:
    """Read the numbers of all landscapes in a run's folder; damaged files are left out."""
    found = []
    for path in sorted(folder.glob("landscape-*.json")):
        try:
            require_regular(path)
            numbers = json.loads(path.read_text(encoding="utf-8"))
            shapes = {np.shape(sheet) for sheet in numbers["losses"].values()}
            if numbers["kind"] in AXES and shapes == {(len(numbers["b"]), len(numbers["a"]))}:
                found.append(numbers)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def draw_kept(numbers: Mapping[str, Any], sheet: str) -> Figure:
    """Draw one sheet of the numbers that `kept` returns."""
    a, b = (np.asarray(numbers[key], dtype=float) for key in ("a", "b"))
    losses = {sheet: np.asarray(numbers["losses"][sheet], dtype=float)}
    return draw_slices(a, b, losses, numbers["models"], AXES[numbers["kind"]], numbers.get("path", ()))


WITH_COUNTS = (30, 12)
"""Maximum number of clients, and of labels, for which the figure of the partition prints counts in its cells."""

FEW, FEW_MARKERS = 20, 8
"""A line with up to `FEW` points has a marker at each; a longer line has `FEW_MARKERS` markers."""


def curves() -> dict[str, Measure]:
    """Return the measures with a figure over the rounds, by the figure's name."""
    return {measure.figure: measure for measure in shown("curve")}


def pictures() -> list[str]:
    """Return the names of all figures."""
    return [*curves(), "differences", *MEASURES, "clients", "partition", "ranks"]


@by_primary_metric
def plot(
    store: RunStore,
    records: Sequence[RunRecord],
    what: str = "",
    budget: Budget | None = None,
    spread: str = "ci95",
) -> Figure:
    """Draw the figure ``what``, one of `pictures`, with a legend; by default the curve of the primary measure.

    ``partition`` shows the first run only. With a budget, each run counts up to its last round within the budget. Raises
    `BadInput` for an unknown figure, without records, and if the runs lack the measurements or the partition.
    """
    what = what or primary().figure
    require(what in pictures(), f"there is no figure {what!r}; {suggestion(what, pictures())}")
    require(bool(records), "there are no runs to draw")
    stored, records = records, titled(records)
    order = series.methods(records)
    if measure := curves().get(what):
        table = series.curves(store, records, measure, budget, spread)
        if not len(table):
            frame = series.read(store, records, budget)
            measured = [key for key, other in curves().items() if len(series.rows_with(frame, other))]
            raise BadInput(f"none of these runs has measured {measure.label}; they have {listed(measured)}")
        where = f", {kinds_of_rows(records)} rows" if measure.of_clients else ""
        return draw_curves(table, measure, order, measure.label + where)
    if what == "differences":
        return draw_differences(tables.summary(store, records, budget), spread)
    for part in MEASURES:
        if what == part:
            table = by_part(store, records, part, budget, spread)
            return draw_parts(table, part, order, measure_of(part).label)
    if what == "clients":
        return draw_clients(series.per_client(store, records, budget), order, f"{primary().title} on the client's data")
    if what == "ranks":
        return draw_ranks(store, stored, budget)
    rows = store.partition(records[0].id)
    require(len(rows) > 0, f"run {records[0].id} has no stored partition")
    return draw_partition(rows, known_clients(records[0]))


def known_clients(record: RunRecord) -> int:
    """Return the number of clients with rows; 0 if the run has not stored it."""
    partition = record.facts.get("partition")
    count = partition.get("clients", 0) if isinstance(partition, dict) else 0
    return count if isinstance(count, int) else 0


def draw_curves(table: pd.DataFrame, measure: Measure, order: Sequence[str], label: str = "") -> Figure:
    """Draw the mean over rounds, the interval over seeds as a band, and a cross where a run stopped early.

    ``table`` comes from `series.curves`; ``order`` gives each method its colour. With a ``label``, the vertical axis has this
    label, and the figure has a legend. The report leaves ``label`` empty and shows both beside the figure.
    """
    from matplotlib.ticker import MaxNLocator

    table = table[np.isfinite(table["mean"])]
    with styled():
        figure, axes = blank(250)
        share = measure.unit == "%"
        logarithmic = not share and spans_a_decade(table["mean"])
        bottom, top = limits(table, share, logarithmic)
        faint = min(0.15, 0.6 / len(order))
        for index, method in enumerate(order):
            rows = table[table["method"] == method]
            style = line_style(index, len(rows))
            axes.plot(rows["round"], rows["mean"], label=method, **style)
            if (rows["runs"] > 1).any():
                low = rows["low"].clip(lower=max(bottom, measure.low))
                high = rows["high"].clip(upper=min(top, measure.high))
                axes.fill_between(rows["round"], low, high, color=style["color"], alpha=faint, linewidth=0)
            stops = rows[rows["stopped"] > 0]
            axes.plot(stops["round"], stops["mean"], "x", color=style["color"], markersize=9, markeredgewidth=2.2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        if table["round"].nunique() == 1:
            axes.set_xlim(table["round"].iloc[0] - 1, table["round"].iloc[0] + 1)
        axes.set_xlabel("round")
        if logarithmic:
            logarithmic_axis(axes, top / bottom)
        if share:
            share_axis(axes)
        axes.set_ylim(bottom, top)
        finish(figure, axes, label)
    return figure


def draw_clients(table: pd.DataFrame, order: Sequence[str], label: str = "") -> Figure:
    """Draw the primary measure by client, from worst to best, with one line for each method.

    ``table`` comes from `series.per_client`; ``order`` and ``label`` are as in `draw_curves`.
    """
    from matplotlib.ticker import MaxNLocator

    with styled():
        figure, axes = blank(250)
        for index, method in enumerate(order):
            rows = table[table["method"] == method]
            axes.plot(rows["rank"], rows[primary().name], label=method, **line_style(index, len(rows)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
        if primary().unit == "%":
            share_axis(axes)
            axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("clients, from worst to best")
        finish(figure, axes, label)
    return figure


def draw_partition(rows: pd.DataFrame, clients: int = 0) -> Figure:
    """Draw clients (down) by labels (across); a darker cell has more rows. Each client's total is on the right.

    ``rows`` comes from `RunStore.partition`. ``clients`` is the number of all clients, if ``rows`` has only some of them.
    """
    counts = tips.rows_by_label(rows)
    more = max(clients, len(counts)) - min(len(counts), tips.SHOWN_CLIENTS)
    shown = counts.iloc[: tips.SHOWN_CLIENTS]
    values = shown.to_numpy(dtype=int)
    num_clients, num_labels = values.shape
    with_counts = num_clients <= WITH_COUNTS[0] and num_labels <= WITH_COUNTS[1]
    row_height = 19 if with_counts else 12 if num_clients > 30 else 15
    with styled():
        figure, axes = blank(85 + row_height * max(num_clients, 2))
        draw_cells(axes, values)
        small = 9 if row_height > 12 else 8
        if with_counts:
            for k, c in zip(*values.nonzero(), strict=True):
                axes.text(c, k, f"{values[k, c]}", ha="center", va="center", fontsize=small)
        right = num_labels - 0.5 + 0.02 * num_labels
        for k, total in enumerate(values.sum(1)):
            axes.text(right, k, f"{total}", ha="left", va="center", fontsize=small, color=MUTED, clip_on=False)
        axes.text(right, -0.6, "rows", ha="left", va="bottom", fontsize=small, color=MUTED)
        axes.set_xlim(-0.5, num_labels - 0.5)
        axes.set_ylim(num_clients - 0.5, -0.5)
        axes.set_yticks(range(num_clients), [shorten(str(name), 16) for _, name in shown.index], fontsize=small)
        label_classes(axes, [str(label) for label in shown.columns])
        axes.set_ylabel("client")
        axes.set_xlabel(f"and {more} more clients" if more else "")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.margins(0)
    return figure


def draw_cells(axes: Axes, values: NDArray[np.integer]) -> None:
    """Draw the numbers of rows (clients, labels) in eight shades. One path for each shade keeps the file small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    shades = 8
    level = np.ceil(shades * np.sqrt(values / max(values.max(initial=0), 1))).astype(int)
    corners = np.array([(-0.47, -0.44), (0.47, -0.44), (0.47, 0.44), (-0.47, 0.44), (-0.47, -0.44)])
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    for shade in range(1, shades + 1):
        at = np.argwhere(level == shade)[:, ::-1]
        if len(at):
            path = Path((at[:, None, :] + corners).reshape(-1, 2), codes * len(at))
            axes.add_patch(PathPatch(path, facecolor=SERIES[0], alpha=0.06 + 0.52 * shade / shades, linewidth=0))


def label_classes(axes: Axes, labels: Sequence[str]) -> None:
    """Write the labels above the columns; for more than 30 labels, only the first and the last."""
    axes.xaxis.tick_top()
    if len(labels) > 30:
        axes.set_xticks([])
        axes.set_title(f"{len(labels)} labels, from {shorten(labels[0], 14)} to {shorten(labels[-1], 14)}", fontsize=9)
        return
    names = [shorten(label, 14) for label in labels]
    crowded = max(map(len, names)) * 6 > 290 / len(names)
    axes.set_xticks(range(len(names)), names, rotation=90 if crowded else 0, fontsize=9)


def line_style(index: int, points: int) -> dict[str, Any]:
    """Return colour, dashes and markers of the method at ``index``, for a line with this number of ``points``."""
    return {
        "color": SERIES[index % len(SERIES)],
        "linestyle": (0, dashes(index)) if dashes(index) else "-",
        "marker": marker(index),
        "markevery": 1 if points <= FEW else max(1, points // FEW_MARKERS),
    }


def spans_a_decade(values: pd.Series[float]) -> bool:
    return len(values) > 0 and bool(values.min() > 0) and bool(values.max() > 10 * values.min())


def limits(table: pd.DataFrame, share: bool, logarithmic: bool) -> tuple[float, float]:
    """Return bottom and top of the vertical axis.

    The range contains all means. Intervals are cut at half the range of the means, so that the curves stay readable.
    """
    if table.empty:
        return 0.0, 1.0
    low, high = float(table["mean"].min()), float(table["mean"].max())
    if logarithmic:
        return low / 1.5, high * 1.5
    room = (high - low) / 2 or max(abs(high), 0.5) / 10
    bottom = max(float(np.fmin(low, table["low"].min())), low - room)
    top = min(float(np.fmax(high, table["high"].max())), high + room)
    margin = 0.05 * (top - bottom) or room
    ceiling = 1.01 if share else math.inf
    floor = -math.inf if low < 0 else -0.01 * min(top, ceiling)
    return max(bottom - margin, floor), min(top + margin, ceiling)


def logarithmic_axis(axes: Axes, ratio: float) -> None:
    """Make the vertical axis logarithmic, with plain numbers at the ticks. ``ratio`` is top over bottom."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < 300 else (1,), numticks=8))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


Parts = Literal["layers", "classes", "labels", "adaptation"]
MEASURES: dict[Parts, tuple[str, str]] = {
    "layers": ("layer", "cosine"),
    "classes": ("class", "accuracy"),
    "labels": ("class", "f1"),
    "adaptation": ("adaptation", ""),
}
"""By figure: split and name of its measure. An empty name stands for the primary metric."""

AXES_OF_PARTS: dict[Parts, str] = {
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
            ends = np.array([part_limits(measure, row) for row in rows])
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
        axes.set_xlabel(AXES_OF_PARTS[what])
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


def part_limits(measure: Measure, row: Row) -> tuple[float, float]:
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


def image_of_curves(store: RunStore, runs: Sequence[int]) -> str:
    """Draw the curves of unfinished runs up to now, as an HTML image; empty if nothing is measured yet."""
    try:
        picture = png(plot(store, [store.run(run) for run in runs]))
    except BadInput:  # nothing is measured yet
        return ""
    return f'<img alt="curves so far" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'

"""Figures of stored runs, for Python and for the page: curves over rounds, accuracy by client, the partition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.measure.registry import Measure, by_primary_metric, primary, shown
from fedskew.report import parts, series, tables, tips
from fedskew.report.budget import Budget
from fedskew.report.differences import draw_differences
from fedskew.report.experiments import kinds_of_rows
from fedskew.report.names import titled
from fedskew.report.ranks import draw_ranks
from fedskew.report.style import MUTED, SERIES, blank, dashes, finish, marker, share_axis, shorten, styled
from fedskew.report.words import listed
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

WITH_COUNTS = (30, 12)
"""Most clients and classes for which the partition's counts are printed in the cells."""

FEW, FEW_MARKERS = 20, 8
"""Most points for which each gets a marker, and the markers of a line with more."""


def curves() -> dict[str, Measure]:
    """The measures that have a figure over the rounds, by its name."""
    return {measure.figure: measure for measure in shown("curve")}


def pictures() -> list[str]:
    """The names of all figures."""
    return [*curves(), "differences", *parts.MEASURES, "clients", "partition", "ranks"]


@by_primary_metric
def plot(
    store: RunStore,
    records: Sequence[RunRecord],
    what: str = "",
    budget: Budget | None = None,
    spread: str = "ci95",
) -> Figure:
    """One of `pictures`, by default the primary measure, with a legend; ``partition`` shows the first run's.

    Under a budget, every run ends where it is spent. Raises `BadInput` for any other name, without records, for what was not
    measured, and for a run that has no stored partition.
    """
    what = what or primary().figure
    require(what in pictures(), f"there is no figure {what!r}; {suggestion(what, pictures())}")
    require(bool(records), "there are no runs to draw")
    stored, records = records, titled(records)
    order = tables.methods(records)
    if measure := curves().get(what):
        table = series.curves(store, records, measure, budget, spread)
        if not len(table):
            frame = tables.read(store, records, budget)
            measured = [key for key, other in curves().items() if len(tables.rows_of(frame, other))]
            raise BadInput(f"none of these runs has measured {measure.label}; they have {listed(measured)}")
        where = f", {kinds_of_rows(records)} rows" if measure.of_clients else ""
        return draw_curves(table, measure, order, measure.label + where)
    if what == "differences":
        return draw_differences(tables.summary(store, records, budget), spread)
    for part in parts.MEASURES:
        if what == part:
            table = parts.by_part(store, records, part, budget, spread)
            return parts.draw_parts(table, part, order, parts.measure_of(part).label)
    if what == "clients":
        return draw_clients(series.per_client(store, records, budget), order, f"{primary().title} on the client's data")
    if what == "ranks":
        return draw_ranks(store, stored, budget)
    rows = store.partition(records[0].id)
    require(len(rows) > 0, f"run {records[0].id} has no stored partition")
    return draw_partition(rows, known_clients(records[0]))


def known_clients(record: RunRecord) -> int:
    """The number of clients with rows; 0 if the run has not stored it."""
    partition = record.facts.get("partition")
    count = partition.get("clients", 0) if isinstance(partition, dict) else 0
    return count if isinstance(count, int) else 0


def draw_curves(table: pd.DataFrame, measure: Measure, order: Sequence[str], label: str = "") -> Figure:
    """Mean over rounds with the interval over seeds as a band; a cross where a run stopped early.

    ``table`` comes from `series.curves`; ``order`` gives each method its colour. With ``label`` the
    vertical axis has this label, and the figure has a legend. A page shows both itself.
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
    """The primary measure by client from worst to best, one line a method.

    As `draw_curves`, with the table of `series.per_client`.
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
    """Draw the rows of each client (down) and label (across); darker is more. Each client's total stands on the right.

    ``rows`` comes from `RunStore.partition`. ``clients`` is the number of all clients if ``rows`` holds only some.
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
    """Draw the cells in eight shades. One path a shade keeps the file small."""
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
    """Class names above the columns as far as there is room."""
    axes.xaxis.tick_top()
    if len(labels) > 30:
        axes.set_xticks([])
        axes.set_title(f"{len(labels)} labels, from {shorten(labels[0], 14)} to {shorten(labels[-1], 14)}", fontsize=9)
        return
    names = [shorten(label, 14) for label in labels]
    crowded = max(map(len, names)) * 6 > 290 / len(names)
    axes.set_xticks(range(len(names)), names, rotation=90 if crowded else 0, fontsize=9)


def line_style(index: int, points: int) -> dict[str, Any]:
    """The colour, dashes and markers of the method at ``index``."""
    return {
        "color": SERIES[index % len(SERIES)],
        "linestyle": (0, dashes(index)) if dashes(index) else "-",
        "marker": marker(index),
        "markevery": 1 if points <= FEW else max(1, points // FEW_MARKERS),
    }


def spans_a_decade(values: pd.Series[float]) -> bool:
    return len(values) > 0 and bool(values.min() > 0) and bool(values.max() > 10 * values.min())


def limits(table: pd.DataFrame, share: bool, logarithmic: bool) -> tuple[float, float]:
    """The vertical range: all means, and the intervals as far as they do not squash the means."""
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
    """A logarithmic axis with plain numbers at the ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < 300 else (1,), numticks=8))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

"""Figures drawn from tables of numbers, with matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.text import count
from fedskew.measure.registry import Measure
from fedskew.measure.statistics import Ranks
from fedskew.report import style
from fedskew.report.words import SPREADS, Row, gap, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
LEVELS = 14


WITH_COUNTS = (30, 12)
"""Maximum number of clients, and of labels, for which the figure of the partition prints counts in its cells."""

FEW, FEW_MARKERS = 20, 8
"""A line with up to `FEW` points has a marker at each; a longer line has `FEW_MARKERS` markers."""


SHOWN_CLIENTS, MOST_CELLS = 60, 1000
"""Maximum number of clients, and of cells with tips, in the figure of a partition."""


NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
BIN = re.compile(rf"(.*?)(up to |above )?({NUMBER})(?: to {NUMBER})?")
"""A label that ends in a number, or in a range such as "up to 3", "3 to 7" or "above 7"."""


def draw_curves(
    table: pd.DataFrame,
    measure: Measure,
    order: Sequence[str],
    label: str = "",
    circled: bool = False,
    axis: str = "round",
) -> Figure:
    """Draw the mean over rounds, the interval over seeds as a band, and a cross where a run stopped early.

    If ``circled``, a circle is at the lowest point of each line. The horizontal ``axis`` is a column of the table.

    ``table`` comes from `series.curves`; ``order`` gives each method its colour. With a ``label``, the vertical axis has this
    label, and the figure has a legend. The report leaves ``label`` empty and shows both beside the figure.
    """
    from matplotlib.ticker import MaxNLocator

    table = table[np.isfinite(table["mean"])]
    with style.blank(250) as (figure, axes):
        share = measure.unit == "%"
        least, most = table["mean"].min(), table["mean"].max()  # NaN if there are none
        logarithmic = not share and math.isinf(measure.high) and 0 < 10 * least < most
        bottom, top = limits(table, share, logarithmic)
        faint = min(0.15, 0.6 / len(order))
        for index, method in enumerate(order):
            rows = table[table["method"] == method]
            line = line_style(index, len(rows))
            axes.plot(rows[axis], rows["mean"], label=method, **line)
            if circled:
                lowest = rows.nsmallest(1, "mean")
                axes.plot(lowest[axis], lowest["mean"], "o", color=line["color"], markersize=11, fillstyle="none")
            if (rows["runs"] > 1).any():
                low = rows["low"].clip(lower=max(bottom, measure.low))
                high = rows["high"].clip(upper=min(top, measure.high))
                axes.fill_between(rows[axis], low, high, color=line["color"], alpha=faint, linewidth=0)
            stops = rows[rows["stopped"] > 0]
            axes.plot(stops[axis], stops["mean"], "x", color=line["color"], markersize=9, markeredgewidth=2.2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=axis == "round", nbins=7, steps=[1, 2, 5, 10]))
        if table[axis].nunique() == 1:
            axes.set_xlim(table[axis].iloc[0] - 1, table[axis].iloc[0] + 1)
        axes.set_xlabel(axis)
        if logarithmic:
            logarithmic_axis(axes, top / bottom)
        axes.set_ylim(bottom, top)
        style.finish(figure, axes, label, measure.unit)
    return figure


def draw_clients(table: pd.DataFrame, measure: Measure, order: Sequence[str], label: str = "") -> Figure:
    """Draw the primary measure by client, from worst to best, with one line for each method.

    ``table`` comes from `series.per_client`; ``order`` and ``label`` are as in `draw_curves`.
    """
    from matplotlib.ticker import MaxNLocator

    with style.blank(250) as (figure, axes):
        for index, method in enumerate(order):
            rows = table[table["method"] == method]
            axes.plot(rows["rank"], rows[measure.name], label=method, **line_style(index, len(rows)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
        if measure.unit == "%":
            axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("clients, from worst to best")
        style.finish(figure, axes, label, measure.unit)
    return figure


def of_partition(rows: pd.DataFrame, number: int) -> style.Picture:
    """The figure of each client's rows by label. ``rows`` are as from `RunStore.partition`; ``number`` counts all clients."""
    return style.Picture(
        key="partition",
        heading="",
        draw=lambda _: draw_partition(rows, number),
        tips=partial(tips_of_partition, rows),
        about="rows of each client by label",
    )


def tips_of_partition(rows: pd.DataFrame) -> style.Tips:
    """The number of rows of each client and label; none if there are too many cells."""
    counts = rows_by_label(rows).iloc[:SHOWN_CLIENTS]
    values = counts.to_numpy(dtype=int)
    tips = [
        style.Tip(c, k, f"client {counts.index[k][1]}, {counts.columns[c]}: {count(int(values[k, c]), 'row')}")
        for k, c in np.argwhere(values).tolist()
    ]
    return style.Tips("xy", tips if len(tips) <= MOST_CELLS else [])


def draw_partition(rows: pd.DataFrame, clients: int = 0) -> Figure:
    """Draw clients (down) by labels (across); a darker cell has more rows. Each client's total is on the right.

    ``rows`` comes from `RunStore.partition`. ``clients`` is the number of all clients, if ``rows`` has only some of them.
    """
    counts = rows_by_label(rows)
    more = max(clients, len(counts)) - min(len(counts), SHOWN_CLIENTS)
    counted = counts.iloc[:SHOWN_CLIENTS]
    values = counted.to_numpy(dtype=int)
    num_clients, num_labels = values.shape
    with_counts = num_clients <= WITH_COUNTS[0] and num_labels <= WITH_COUNTS[1]
    row_height = 19 if with_counts else 12 if num_clients > 30 else 15
    with style.blank(85 + row_height * max(num_clients, 2)) as (figure, axes):
        draw_cells(axes, values)
        small = 9 if row_height > 12 else 8
        if with_counts:
            for k, c in zip(*values.nonzero(), strict=True):
                axes.text(c, k, f"{values[k, c]}", ha="center", va="center", fontsize=small)
        right = num_labels - 0.5 + 0.02 * num_labels
        for k, total in enumerate(values.sum(1)):
            axes.text(right, k, f"{total}", ha="left", va="center", fontsize=small, color=style.MUTED, clip_on=False)
        axes.text(right, -0.6, "rows", ha="left", va="bottom", fontsize=small, color=style.MUTED)
        frame_cells(axes, [style.shorten(str(name), 16) for _, name in counted.index], num_labels, small)
        label_classes(axes, [str(label) for label in counted.columns])
        axes.set_ylabel("client")
        axes.set_xlabel(f"and {more} more clients" if more else "")
    return figure


def frame_cells(axes: Axes, rows: Sequence[str], columns: int, fontsize: int) -> None:
    """Set up the axes of cells without lines: the names of the ``rows`` on the left, the names of the columns above."""
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), rows, fontsize=fontsize)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_cells(axes: Axes, values: NDArray[np.integer]) -> None:
    """Draw the numbers of rows (clients, labels) in eight shades. One path for each shade keeps the file small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    shades = 8
    level = np.ceil(shades * np.sqrt(values / max(values.max(initial=0), 1))).astype(int)
    corners = np.array([(-0.47, -0.44), (0.47, -0.44), (0.47, 0.44), (-0.47, 0.44), (-0.47, -0.44)])
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    for shade in range(1, shades + 1):
        if len(at := np.argwhere(level == shade)[:, ::-1]):
            path = Path((at[:, None, :] + corners).reshape(-1, 2), codes * len(at))
            axes.add_patch(PathPatch(path, facecolor=style.SERIES[0], alpha=0.06 + 0.52 * shade / shades, linewidth=0))


def label_classes(axes: Axes, labels: Sequence[str]) -> None:
    """Write the labels above the columns; for more than 30 labels, only the first and the last."""
    if len(labels) > 30:
        axes.set_xticks([])
        axes.set_title(
            f"{len(labels)} labels, from {style.shorten(labels[0], 14)} to {style.shorten(labels[-1], 14)}", fontsize=9
        )
        return
    names = [style.shorten(label, 18) for label in labels]
    crowded = max(map(len, names)) * 6 > 290 / len(names)
    axes.set_xticks(range(len(names)), names, rotation=90 if crowded else 0, fontsize=9)


def line_style(index: int, points: int) -> dict[str, Any]:
    """Return colour, dashes and markers of the method at ``index``, for a line with this number of ``points``."""
    return {
        "color": style.SERIES[index % len(style.SERIES)],
        "linestyle": (0, style.dashes(index)) if style.dashes(index) else "-",
        "marker": style.marker(index),
        "markevery": 1 if points <= FEW else max(1, points // FEW_MARKERS),
    }


def limits(table: pd.DataFrame, share: bool, logarithmic: bool) -> tuple[float, float]:
    """Return bottom and top of the vertical axis.

    The range contains all means after the first round. Intervals are cut at half the range of the means, so that the curves stay
    readable.
    """
    if table.empty:
        return 0.0, 1.0
    table = table[table["round"] > 0] if (table["round"] > 0).any() else table
    low, high = float(table["mean"].min()), float(table["mean"].max())
    if logarithmic:
        return low / 1.5, high * 1.5
    room = max((high - low) / 2, abs(high) / 10) or 0.05
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


def rows_by_label(rows: pd.DataFrame) -> pd.DataFrame:
    """Turn the table of `RunStore.partition` into numbers of rows (clients, labels)."""
    client = ["client", "client_name"]
    counts = rows.pivot_table(index=client, columns="label", values="rows", aggfunc="sum", fill_value=0)
    return counts[sorted(counts.columns, key=natural)]


def natural(label: object) -> tuple[str, float, bool, str]:
    """Sort key for labels. Equal words are sorted by the number or range at their end, all else by the alphabet."""
    text = str(label)
    match = BIN.fullmatch(text)
    return (match[1], float(match[3]), match[2] != "up to ", text) if match else (text, 0.0, False, text)


MOST_NAMES = 30
"""Maximum number of parts that are named on the axis."""


def draw_parts(table: pd.DataFrame, measure: Measure, order: Sequence[str], axis: str, label: str = "") -> Figure:
    """Draw a marker with its interval for each method and part. Numbers of rows, in order, are joined by lines.

    ``table`` comes from `plots.by_part`; ``order`` gives each method its colour; ``axis`` says what the parts are. With a ``label``
    the figure has a legend.
    """
    parts = table.drop_duplicates("place").sort_values("place")
    with style.blank(250) as (figure, axes):
        for index, method in enumerate(order):
            if not (rows := rows_of(table[table["method"] == method])):
                continue
            x = [row["place"] + aside(index, len(order)) for row in rows]
            ends = np.array([clipped(row["mean"], row["half"], measure.low, measure.high) for row in rows])
            colour = style.SERIES[index % len(style.SERIES)]
            axes.vlines(x, ends[:, 0], ends[:, 1], color=colour, linewidth=2, alpha=0.45)
            line = "-" if measure.split == "adaptation" else ""
            axes.plot(x, [row["mean"] for row in rows], style.marker(index) + line, color=colour, label=method)
        if measure.unit == "%":
            axes.set_ylim(-0.02, 1.02)
        if len(parts) <= MOST_NAMES:
            names = [style.shorten(str(part), 16) for part in parts["part"]]
            crowded = sum(map(len, names)) > 45
            axes.set_xticks(parts["place"].tolist(), names, rotation=90 if crowded else 0, fontsize=9)
        axes.set_xlim(-0.6, parts["place"].max() + 0.6)
        axes.set_xlabel(axis)
        style.finish(figure, axes, label, measure.unit)
    return figure


def draw_bars(table: pd.DataFrame, measure: Measure, order: Sequence[str], label: str = "") -> Figure:
    """Draw groups of bars with intervals, and a short line at the document's number.

    ``table`` has the columns bar, group, place (of the group), mean, half and document. ``order`` gives each bar its colour.
    """
    groups = table.drop_duplicates("place").sort_values("place")
    width = 0.8 / len(order)
    names = [style.shorten(str(group), 20) for group in groups["group"]]
    turned = sum(map(len, names)) > 45
    # turned names need room below the bars
    with style.blank(310 if turned else 250) as (figure, axes):
        for index, bar in enumerate(order):
            rows = table[table["bar"] == bar]
            x, colour = rows["place"] + width * (index - (len(order) - 1) / 2), style.SERIES[index % len(style.SERIES)]
            axes.bar(x, rows["mean"], 0.9 * width, color=colour, alpha=0.75, label=bar)
            low, high = (rows["mean"] + sign * rows["half"] for sign in (-1, 1))
            axes.vlines(x, low.clip(lower=measure.low), high.clip(upper=measure.high), color=style.INK, linewidth=1.2)
            axes.hlines(
                rows["document"], x - width / 2, x + width / 2, color=style.INK, linewidth=2, linestyle=(0, (1.5, 1))
            )
        axes.set_xticks(groups["place"].tolist(), names, rotation=90 if turned else 0, fontsize=9)
        style.finish(figure, axes, label, measure.unit)
    return figure


def aside(index: int, number: int) -> float:
    """Return the horizontal offset of a method's marker, so that the markers of one part stand side by side."""
    return 0.5 * (index - (number - 1) / 2) / max(number, 3)


def clipped(mean: float, half: float, low: float, high: float) -> tuple[float, float]:
    """Return the ends of an interval, cut at the lowest and highest possible value. Without an interval both are the mean."""
    half = half if math.isfinite(half) else 0.0
    return max(mean - half, low), min(mean + half, high)


SPACE = 40
"""Height of one method in the figure, in points."""


def compared(table: pd.DataFrame) -> list[tuple[int, Row]]:
    """Return (position, row) of each method in the summary ``table`` that has a difference from the first method."""
    return [(i, row) for i, row in enumerate(rows_of(table)) if i and math.isfinite(row["difference"])]


def ends(measure: Measure, row: Row, spread: str) -> tuple[float, float]:
    """Return the ends of the difference's interval, cut at -1 and 1 for shares."""
    limit = 1.0 if measure.unit == "%" else math.inf
    return clipped(row["difference"], row[f"difference_{SPREADS[spread].column}"], -limit, limit)


def verdict(measure: Measure, row: Row) -> str:
    """Format verdict and difference: ``higher, +2.23 points``."""
    return f"{row['verdict']}, {gap(measure, row['difference'])}{' points' if measure.unit == '%' else ''}"


def draw_differences(table: pd.DataFrame, measure: Measure, spread: str = "ci95") -> Figure:
    """Draw each method's difference from the first method of the summary ``table``."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    methods, first = compared(table), str(table["method"].iloc[0])
    factor = 100 if measure.unit == "%" else 1
    with style.blank(58 + SPACE * len(methods)) as (figure, axes):
        stated = float(table["margin"].iloc[0])
        # lines only beside the intervals, so that none crosses a name
        rows = np.arange(len(methods))
        axes.vlines(0 * rows, rows, rows + 0.4, color=style.MUTED, linewidth=1)
        for end in (-stated, stated) if math.isfinite(stated) else ():
            axes.vlines(end + 0 * rows, rows, rows + 0.4, color=style.MUTED, linewidth=1, linestyle=(0, (4, 4)))
        for at, (index, row) in enumerate(methods):
            colour = style.SERIES[index % len(style.SERIES)]
            interval = [factor * end for end in ends(measure, row, spread)]
            axes.plot(interval, [at + 0.2] * 2, color=colour, linewidth=3, alpha=0.55)
            axes.plot([factor * row["difference"]], [at + 0.2], style.marker(index), color=colour, markersize=8)
            decided = row["verdict"] in (measure.ahead, measure.behind, "equivalent")
            wide, height = axes.get_yaxis_transform(), at - 0.2
            name, words = style.shorten(str(row["method"]), 30), verdict(measure, row)
            axes.text(0, height, name, color=style.INK, ha="left", va="center", transform=wide)
            axes.text(
                1, height, words, color=style.INK if decided else style.MUTED, ha="right", va="center", transform=wide
            )
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, -0.05 * high), max(high, -0.05 * low))
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+g}".replace("-", "−") if x else "0"))
        unit = ", points" if measure.unit == "%" else ""
        axes.set_xlabel(f"{measure.label} minus {style.shorten(first, 24)}{unit}")
        axes.tick_params(length=0)
    return figure


def draw_ranks(names: Sequence[str], ranks: Ranks, label: str) -> Figure:
    """Draw Demšar's critical-difference diagram: mean ranks on an axis with this ``label``.

    A thick bar joins methods whose mean ranks differ by less than the critical difference.
    """
    from matplotlib.figure import Figure

    order = sorted(range(len(names)), key=lambda k: float(ranks.mean[k]))
    cliques = ranks.cliques() if math.isfinite(ranks.critical_difference) else []
    top = 0.6 + 0.25 * len(cliques)
    with style.styled():
        figure = Figure(figsize=(style.WIDTH / 72, 0.6 + 0.28 * (len(names) + top)), layout="constrained")
        axes = figure.subplots()
        axes.set(xlim=(0.8, len(names) + 0.2), ylim=(len(names) + 0.5, -top), yticks=[])
        axes.xaxis.tick_top()
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.spines["top"].set_visible(True)
        axes.set_xlabel(label)
        for line, k in enumerate(order):
            rank = float(ranks.mean[k])
            axes.plot([rank, rank, len(names) + 0.2], [-top, line + 0.5, line + 0.5], color=style.MUTED, linewidth=0.8)
            axes.text(
                len(names) + 0.2, line + 0.45, f"{names[k]}  {rank:.2f}", ha="right", va="bottom", color=style.INK
            )
        for line, group in enumerate(cliques):
            ends = [float(ranks.mean[k]) for k in group]
            height = 0.3 - top + 0.25 * line
            axes.plot([min(ends) - 0.03, max(ends) + 0.03], [height, height], color=style.SERIES[1], linewidth=4)
    return figure


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

    with style.styled():
        if len(b) == 1:
            figure = Figure(figsize=(style.WIDTH / 72, 3.4), layout="constrained")
            panel = figure.subplots()
            for (name, sheet), colour in zip(sheets.items(), style.SERIES, strict=False):
                panel.plot(a, sheet[0], color=colour, label=name)
            for name, (at, _) in points.items():
                panel.axvline(at, color=style.INK, linewidth=0.8, linestyle=":")
                panel.annotate(name, (at, 1), xycoords=("data", "axes fraction"), rotation=90, va="top", fontsize=8)
            panel.set(xlabel=axes, ylabel="loss")
            panel.legend()
            return figure
        figure = Figure(figsize=(len(sheets) * style.WIDTH / 72, 4.2), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(sheets), sharex=True, sharey=True))
        for panel, (name, sheet) in zip(panels, sheets.items(), strict=True):
            # levels are quantiles of the losses: equal steps would show steep parts only
            levels = np.unique(np.quantile(sheet, np.linspace(0, 1, LEVELS)))
            lines = panel.contour(a, b, sheet, levels=levels, colors=style.MUTED, linewidths=0.8)
            panel.clabel(lines, fontsize=7, fmt="%.2g")
            start = next(iter(points.values()))
            if path:
                panel.plot(*zip(*path, strict=True), color=style.SERIES[0], marker=".", linewidth=1.2)
            for (model, place), colour in zip(points.items(), style.SERIES, strict=False):
                if not path:
                    panel.plot([start[0], place[0]], [start[1], place[1]], color=colour, linewidth=1)
                panel.plot(*place, "o", color=colour)
                panel.annotate(model, place, xytext=(4, 4), textcoords="offset points", fontsize=8)
            panel.set(title=f"loss of {name}", xlabel=axes)
    return figure

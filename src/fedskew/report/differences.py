"""The figure of paired differences from the first method: a dot with an interval, and the verdict, for each method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.errors import require
from fedskew.measure.registry import primary
from fedskew.report.style import INK, MUTED, SERIES, blank, marker, shorten, styled
from fedskew.report.tips import Tip, Tips
from fedskew.report.words import MISSING, SPREADS, Row, gap, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SPACE = 40
"""Height of one method in the figure, in points."""


def compared(table: pd.DataFrame) -> list[tuple[int, Row]]:
    """Return (position, row) of each method in the summary ``table`` that has a difference from the first method."""
    return [(i, row) for i, row in enumerate(rows_of(table)) if i and math.isfinite(row["difference"])]


def ends(row: Row, spread: str = "ci95") -> tuple[float, float]:
    """Return the ends of the difference's interval, cut at -1 and 1 for shares. Without an interval both are the difference."""
    around = row[f"difference_{SPREADS[spread].column}"]
    half = around if math.isfinite(around) else 0.0
    limit = 1.0 if primary().unit == "%" else math.inf
    return max(row["difference"] - half, -limit), min(row["difference"] + half, limit)


def verdict(row: Row) -> str:
    """Format verdict and difference: ``higher, +2.23 points``."""
    unit = " points" if primary().unit == "%" else ""
    return f"{row['verdict']}, {gap(primary(), row['difference'])}{unit}"


def draw_differences(table: pd.DataFrame, spread: str = "ci95") -> Figure:
    """Draw each method's difference from the first method of the summary ``table``. Raises `BadInput` if there is none."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    found, first = compared(table), str(table["method"].iloc[0])
    require(bool(found), "differences: no method has a seed in common with the first one")
    factor = 100 if primary().unit == "%" else 1
    with styled():
        figure, axes = blank(58 + SPACE * len(found))
        stated = float(table["margin"].iloc[0])
        # lines only beside the intervals, so that none crosses a name
        rows = np.arange(len(found))
        axes.vlines(0 * rows, rows, rows + 0.4, color=MUTED, linewidth=1)
        for end in (-stated, stated) if math.isfinite(stated) else ():
            axes.vlines(end + 0 * rows, rows, rows + 0.4, color=MUTED, linewidth=1, linestyle=(0, (4, 4)))
        for at, (index, row) in enumerate(found):
            colour = SERIES[index % len(SERIES)]
            axes.plot(
                [factor * end for end in ends(row, spread)], [at + 0.2] * 2, color=colour, linewidth=3, alpha=0.55
            )
            axes.plot([factor * row["difference"]], [at + 0.2], marker(index), color=colour, markersize=8)
            decided = row["verdict"] in (primary().ahead, primary().behind, "equivalent")
            wide, height = axes.get_yaxis_transform(), at - 0.2
            name, words = shorten(str(row["method"]), 30), verdict(row)
            axes.text(0, height, name, color=INK, ha="left", va="center", transform=wide)
            axes.text(1, height, words, color=INK if decided else MUTED, ha="right", va="center", transform=wide)
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, -0.05 * high), max(high, -0.05 * low))
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+g}".replace("-", "−") if x else "0"))
        unit = ", points" if primary().unit == "%" else ""
        axes.set_xlabel(f"{primary().label} minus {shorten(first, 24)}{unit}")
        axes.tick_params(length=0)
    return figure


def of_differences(table: pd.DataFrame, spread: str = "ci95") -> Tips:
    """The tips of `draw_differences`: difference, interval, p and number of pairs of each method."""
    factor, found = (100 if primary().unit == "%" else 1), []
    for at, (_, row) in enumerate(compared(table)):
        low, high = (gap(primary(), end) for end in ends(row, spread))
        around = row[f"difference_{SPREADS[spread].column}"]
        sure = f", {SPREADS[spread].unbroken} {low} to {high}" if math.isfinite(around) else ""
        p = f"p {row['p']:.2g}" if math.isfinite(row["p"]) else f"p {MISSING}"
        text = f"{row['method']}: {verdict(row)}{sure}; {p}, {row['pairs']} paired seeds"
        found.append(Tip(factor * row["difference"], at + 0.2, text))
    return Tips("y", found)

"""Figures that compare methods: paired differences from the first, and ranks over several data sets."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.errors import require
from fedskew.measure.registry import by_primary_metric, primary
from fedskew.measure.statistics import Ranks, rank_methods
from fedskew.report.experiments import titled, without_seeds
from fedskew.report.series import Budget, methods, per_seed, read
from fedskew.report.style import INK, MUTED, SERIES, WIDTH, Tip, Tips, blank, marker, shorten, styled
from fedskew.report.words import MISSING, SPREADS, Row, gap, rows_of
from fedskew.store.runs import RunRecord, RunStore

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


def block(record: RunRecord) -> str:
    """Return a text that is equal for runs on the same data set and skew. Methods are ranked among these runs."""
    table = without_seeds(record)
    return json.dumps({key: table.get(key) for key in ("dataset", "skew")}, sort_keys=True)


def scores(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> pd.DataFrame:
    """Return the primary measure (data sets, methods), mean over seeds. A method must have finished on every data set."""
    import pandas as pd

    blocks = {name: [r for r in records if block(r) == name] for name in dict.fromkeys(map(block, records))}
    named = {name: titled(own) for name, own in blocks.items()}
    every = [record for own in named.values() for record in own]
    frame = read(store, every, budget)
    rows: dict[str, object] = {}
    for name, own in named.items():
        seeds = per_seed(frame[frame["run"].isin([record.id for record in own])])[primary().key]
        rows[name] = seeds.groupby("method").mean().to_dict()
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table[[method for method in methods(every) if method in table]].dropna(axis=1)


@by_primary_metric
def ranking(
    store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None
) -> tuple[list[str], int, Ranks] | None:
    """Return the methods, the number of data sets, and the ranks; None for fewer than two data sets or common methods."""
    if len(set(map(block, records))) < 2:
        return None
    table = scores(store, records, budget)
    if len(table.columns) < 2:
        return None
    sign = -1 if primary().better == "lower" else 1
    return list(table.columns), len(table), rank_methods(sign * table.to_numpy(dtype=float))


def draw_ranks(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> Figure:
    """Draw Demšar's critical-difference diagram: mean ranks on an axis.

    A thick bar joins methods whose mean ranks differ by less than the critical difference. Raises `BadInput` if there are no
    ranks.
    """
    from matplotlib.figure import Figure

    found = ranking(store, records, budget)
    require(found is not None, "ranks: need runs of at least two methods in common on at least two data sets")
    assert found is not None
    names, blocks, ranks = found
    order = sorted(range(len(names)), key=lambda k: float(ranks.mean[k]))
    cliques = ranks.cliques() if math.isfinite(ranks.critical_difference) else []
    top = 0.6 + 0.25 * len(cliques)
    with styled():
        figure = Figure(figsize=(WIDTH / 72, 0.6 + 0.28 * (len(names) + top)), layout="constrained")
        axes = figure.subplots()
        axes.set(xlim=(0.8, len(names) + 0.2), ylim=(len(names) + 0.5, -top), yticks=[])
        axes.xaxis.tick_top()
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.spines["top"].set_visible(True)
        axes.set_xlabel(caption(blocks, ranks))
        for line, k in enumerate(order):
            rank = float(ranks.mean[k])
            axes.plot([rank, rank, len(names) + 0.2], [-top, line + 0.5, line + 0.5], color=MUTED, linewidth=0.8)
            axes.text(len(names) + 0.2, line + 0.45, f"{names[k]}  {rank:.2f}", ha="right", va="bottom", color=INK)
        for line, group in enumerate(cliques):
            ends = [float(ranks.mean[k]) for k in group]
            height = 0.3 - top + 0.25 * line
            axes.plot([min(ends) - 0.03, max(ends) + 0.03], [height, height], color=SERIES[1], linewidth=4)
    return figure


def caption(blocks: int, ranks: Ranks) -> str:
    """Format the number of data sets, p, and the critical difference in one line."""
    text = f"mean rank over {blocks} data sets, 1 is best"
    if math.isfinite(ranks.critical_difference):
        text += f"; Friedman p = {ranks.p:.2g}, critical difference {ranks.critical_difference:.2f}"
    return text

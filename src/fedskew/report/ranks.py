"""Ranks of methods over several data sets: mean ranks, Friedman's test, and the critical-difference diagram."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedskew.core.errors import require
from fedskew.measure.registry import by_primary_metric, primary
from fedskew.measure.statistics import Ranks, rank_methods
from fedskew.report.budget import Budget
from fedskew.report.experiments import without_seeds
from fedskew.report.names import titled
from fedskew.report.style import INK, MUTED, SERIES, WIDTH, styled
from fedskew.report.tables import methods, per_seed, read
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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

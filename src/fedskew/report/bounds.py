"""The picture of exercise 14.4.3: bounds on client drift, and the drift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedskew.measure.bound import Bound
from fedskew.report.plots import SERIES, WIDTH, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES = {"bound, smooth": "smooth", "bound, convex": "convex", "farthest client": "farthest", "drift": "drift"}


def draw_bound(found: Mapping[str, Bound], rate: float) -> Figure:
    """One panel a partition, over local steps on a logarithmic axis; the bound for smooth objectives grows without limit."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(2 * WIDTH / 72, 3.6), layout="constrained")
        panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axes, (name, part) in zip(panels, found.items(), strict=True):
            steps = range(1, len(part.drift) + 1)
            for index, (label, field) in enumerate(LINES.items()):
                dashes = "--" if label.startswith("bound") else "-"
                axes.plot(steps, getattr(part, field), label=label, color=SERIES[index], linestyle=dashes)
            axes.set(title=name, xlabel="local steps on all rows", yscale="log")
            axes.grid(axis="y")
        parts = found.values()
        # far beyond the convex bound the other says nothing
        panels[0].set_ylim(min(float(p.drift[0]) for p in parts) / 1.5, 3 * max(float(p.convex[-1]) for p in parts))
        panels[0].set_ylabel(f"distance, rate {rate:g}")
        panels[-1].legend(loc="lower right")
    return figure

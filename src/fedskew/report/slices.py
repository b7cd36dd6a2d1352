"""Pictures of loss slices: curves along a line, contours over a plane with the models in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedskew.report.style import INK, SERIES, WIDTH, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
LEVELS = 14


def draw_slices(
    a: Floats, b: Floats, sheets: Mapping[str, Floats], points: Mapping[str, tuple[float, float]], axes: str
) -> Figure:
    """One panel a sheet (points of b, points of a); on a line, one panel with a curve each.

    ``points`` are models, joined to the first of them; ``axes`` says what the axes are.
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
            # levels by rank, so that a steep wall does not hide the valley
            levels = np.unique(np.quantile(sheet, np.linspace(0, 1, LEVELS)))
            lines = panel.contour(a, b, sheet, levels=levels, cmap="viridis", linewidths=1)
            panel.clabel(lines, fontsize=7, fmt="%.2g")
            start = next(iter(points.values()))
            for (model, place), colour in zip(points.items(), SERIES, strict=False):
                panel.plot([start[0], place[0]], [start[1], place[1]], color=colour, linewidth=1)
                panel.plot(*place, "o", color=colour)
                panel.annotate(model, place, xytext=(4, 4), textcoords="offset points", fontsize=8)
            panel.set(title=f"loss of {name}", xlabel=axes)
    return figure

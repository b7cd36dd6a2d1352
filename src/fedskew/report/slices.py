"""Figures of loss landscapes: curves along a line, and contours in a plane with the models in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.files import require_regular, write_whole
from fedskew.report.style import INK, MUTED, SERIES, WIDTH, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

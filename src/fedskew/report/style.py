"""The look of all figures: colours, sizes and matplotlib's settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = ("#00539c", "#d55e00", "#00896a", "#c0489a", "#6b5900", "#3a97e0", "#4a4f57")
"""Colours that differ for the three common kinds of colour blindness."""

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
"""Line styles in line widths; with seven colours the pair repeats after 28 methods."""

INK, MUTED, GRID = "#1c1f23", "#5b636e", "#dde1e6"
WIDTH = 380
"""Width of a figure in points; text is set to be read at this many pixels."""

LINE = 1.8
"""Width of a line in points."""

STYLE: dict[str, object] = {
    "font.size": 11,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "text.color": INK,
    "text.parse_math": False,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "lines.linewidth": LINE,
    "lines.markersize": 4,
    "lines.scale_dashes": True,
    "legend.frameon": False,
}


@contextmanager
def styled(more: dict[str, object] | None = None) -> Iterator[None]:
    """Apply the style of all figures, and ``more`` settings, within the context."""
    import matplotlib

    settings: Any = STYLE | (more or {})
    with matplotlib.rc_context(settings):
        yield


def blank(height: float) -> tuple[Figure, Axes]:
    """An empty figure of `WIDTH` by ``height`` points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
    return figure, figure.add_subplot()

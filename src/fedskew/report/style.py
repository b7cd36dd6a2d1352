"""The look of all figures: colours, sizes and matplotlib's settings."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SERIES = ("#00539c", "#d55e00", "#00896a", "#cb60ab", "#6b5900", "#3a97e0", "#1c1f24", "#581e5b")
"""Eight colours that people with the three common kinds of colour blindness can tell apart. ``page.css`` has the dark mode's."""

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
"""Line styles: lengths of dashes and gaps in line widths; empty for a solid line."""

MARKERS = {
    "o": "M0 -3A3 3 0 1 1 0 3A3 3 0 1 1 0 -3Z",
    "s": "M-3 -3H3V3H-3Z",
    "^": "M0 -3.5L3.5 3H-3.5Z",
    "D": "M0 -4L4 0L0 4L-4 0Z",
    "v": "M0 3.5L3.5 -3H-3.5Z",
    "P": "M-1.3 -3.5H1.3V-1.3H3.5V1.3H1.3V3.5H-1.3V1.3H-3.5V-1.3H-1.3Z",
    "X": "M-3.5 -2L-2 -3.5L0 -1.5L2 -3.5L3.5 -2L1.5 0L3.5 2L2 3.5L0 1.5L-2 3.5L-3.5 2L-1.5 0Z",
    "p": "M0 -3.5L3.5 -0.8L2.2 3H-2.2L-3.5 -0.8Z",
}
"""matplotlib's markers, each as an SVG path around (0, 0) for the legend of the report."""

INK, MUTED, GRID = "#1c1f23", "#5b636e", "#dde1e6"
WIDTH = 380
"""Width of a figure in points. Its text has the right size when the figure is this many pixels wide."""

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


def dashes(index: int) -> tuple[float, ...]:
    """Return the line style of the method at ``index``. Methods with the same colour get different styles."""
    return DASHES[(index + index // len(SERIES)) % len(DASHES)]


def marker(index: int) -> str:
    """Return the marker of the method at ``index``."""
    return list(MARKERS)[index % len(MARKERS)]


@contextmanager
def styled(more: dict[str, object] | None = None) -> Iterator[None]:
    """Apply the style of all figures, and ``more`` settings, within the context."""
    import matplotlib

    settings: Any = STYLE | (more or {})
    with matplotlib.rc_context(settings):
        yield


def blank(height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of `WIDTH` by ``height`` points, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
    return figure, figure.add_subplot()


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def share_axis(axes: Axes) -> None:
    """Show shares as percent on the vertical axis."""
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def finish(figure: Figure, axes: Axes, label: str) -> None:
    """Add grid and ticks. With a ``label``, also label the vertical axis, and add a legend if there are several lines."""
    axes.grid(axis="y")
    axes.tick_params(length=3, colors=MUTED, labelsize=STYLE["font.size"])
    axes.set_ylabel(label)
    handles, labels = axes.get_legend_handles_labels()
    if label and len(labels) > 1:
        columns = max(1, min(3, 54 // (max(map(len, labels)) + 6)))
        figure.set_figheight(figure.get_figheight() + math.ceil(len(labels) / columns) * 17 / 72)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.6)


VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid"} | {
    colour: f"--series-{i + 1}" for i, colour in enumerate(SERIES)
}
"""The figures' colours, and the CSS variable that replaces each."""

COLOUR = re.compile("|".join(VARIABLES))
UNWANTED = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", re.S)
TAG = re.compile(r"<[^>]*>")


def inline(figure: Figure, prefix: str, title: str) -> str:
    """Return the figure as an ``<svg>`` element. Its ids begin with ``prefix``, so that ids on one page are unique."""
    buffer = io.StringIO()
    with styled({"svg.fonttype": "none", "svg.hashsalt": prefix}), warnings.catch_warnings():
        # text stays text: the browser's fonts have glyphs that matplotlib's font lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", transparent=True)
    _, opening, body = re.split(r"(<svg[^>]*>)", buffer.getvalue(), maxsplit=1)
    body = UNWANTED.sub("", body.rpartition("</svg>")[0])
    body = TAG.sub(lambda tag: restyle(tag[0], prefix), body)
    body = re.sub(r">\s+<", "><", body).strip()
    view = " ".join(re.findall(r'viewBox="[^"]*"', opening))
    about = f'role="img" aria-label="{escape(title)}"'
    return f'<svg {view} {about} xmlns:xlink="http://www.w3.org/1999/xlink">{body}</svg>'


def restyle(tag: str, prefix: str) -> str:
    """Rewrite one tag: prefix its ids, replace colours by CSS variables, round coordinates to a hundredth of a point."""
    tag = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", tag)
    tag = re.sub(r'style="[^"]*"', lambda style: COLOUR.sub(lambda c: f"var({VARIABLES[c[0]]})", style[0]), tag)
    return re.sub(r'\b(?:d|x|y|transform)="[^"]*"', lambda attribute: rounded(attribute[0]), tag)


def rounded(attribute: str) -> str:
    shorter = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", attribute)
    return re.sub(r"\s+", " ", shorter)

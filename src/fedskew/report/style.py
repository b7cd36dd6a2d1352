"""The look of pages and figures: templates, colours, SVG, and the values under the pointer."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedskew.core.groups import grouped
from fedskew.core.text import capital, count, percent
from fedskew.report.words import Row, breakable, figures, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def rendered(
    template: str, filters: Mapping[str, Callable[..., object]] = MappingProxyType({}), /, **values: object
) -> str:
    """Render a template of this folder with ``values``. A template can include other files, and the hash of a text.

    All templates have the filters `count`, `percent`, `capital`, `breakable` and `figures`.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup

    loader = PackageLoader("fedskew", "report")
    environment = Environment(
        loader=loader, autoescape=select_autoescape(), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    common = (count, percent, capital, breakable, figures)
    environment.filters |= {**{each.__name__: each for each in common}, **filters}
    environment.globals |= {
        "zip": zip,
        "source": lambda name: Markup(loader.get_source(environment, name)[0]),
        "digest": lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
    }
    return environment.get_template(template).render(values)


SERIES = ("#00539c", "#d55e00", "#00896a", "#cb60ab", "#6b5900", "#3a97e0", "#1c1f24", "#581e5b")
"""Eight colours that people with the three common kinds of colour blindness can tell apart. ``page.css`` has the dark mode's."""

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
"""Line styles: lengths of dashes and gaps in line widths; empty for a solid line."""

INK, MUTED, GRID = "#1c1f23", "#5b636e", "#dde1e6"
WIDTH = 380
"""Width of a figure in points. Its text has the right size when the figure is this many pixels wide."""

LINE = 1.8
"""Width of a line in points."""

LOOK: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("style.toml").read_text(encoding="utf-8"))
MARKERS, STYLE = LOOK["markers"], LOOK["matplotlib"]
"""The markers of methods as SVG paths, by matplotlib's names, and matplotlib's settings."""


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


@contextmanager
def blank(height: float) -> Iterator[tuple[Figure, Axes]]:
    """Yield an empty figure of `WIDTH` by ``height`` points and its axes, within the style of all figures."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        yield figure, figure.add_subplot()


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def finish(figure: Figure, axes: Axes, label: str, unit: str = "") -> None:
    """Add grid and ticks. With a ``label``, also label the vertical axis, and add a legend if there are several lines.

    With the ``unit`` %, the vertical axis shows shares as percent.
    """
    from matplotlib.ticker import FuncFormatter

    if unit == "%":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
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


MOST_TIPS = 250
"""Maximum number of tips along one axis of a figure."""


@dataclass(frozen=True)
class TipLine:
    """One line of a tip: the method's position, the vertical coordinate of its point, and its value as text."""

    method: int
    y: float
    text: str


@dataclass(frozen=True)
class Tip:
    """The values at one point of a figure. ``x`` and ``y`` are in the axes' units."""

    x: float
    y: float
    head: str
    lines: Sequence[TipLine] = ()


@dataclass(frozen=True)
class Tips:
    """The tips of a figure, in the order of the arrow keys. The pointer shows the nearest one in the coordinates ``by``."""

    by: Literal["x", "y", "xy"]
    tips: Sequence[Tip]
    methods: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with its words: the same for the page, files and Python. It is drawn when it is needed."""

    key: str
    heading: str
    draw: Callable[[str], Figure]
    """Draws it. With a label, it stands at the vertical axis, and the figure has a legend."""
    tips: Callable[[], Tips] = lambda: Tips("x", ())
    caption: str = ""
    about: str = ""  # for screen readers, if it differs from the heading
    label: str = ""  # of the vertical axis in a file or a notebook
    table: pd.DataFrame | None = None  # its numbers, if they are a file of their own

    def on_page(self, legend: bool = False) -> dict[str, object]:
        """Draw it for the page's template, with its own ``legend`` if the page has none."""
        from markupsafe import Markup

        drawn, tips, about = self.draw(self.label if legend else ""), self.tips(), self.about or self.heading
        svg = Markup(inline(drawn, f"figure-{self.key}", about))
        values = Markup(attribute(drawn, tips)) if tips.tips else ""
        return {"heading": self.heading, "label": about, "svg": svg, "caption": self.caption, "tips": values}


def tips_along(
    table: pd.DataFrame,
    key: str,
    order: Sequence[str],
    value: str,
    head: Callable[[Row], str],
    text: Callable[[Row], str],
) -> Tips:
    """Return the tips at the places on the horizontal axis, in the column ``key``: a line for each method of the ``order``.

    ``value`` is the column of the points' heights. ``head`` says what a place is, and ``text`` the value of a row.
    """
    at, position = grouped((row[key], row) for row in rows_of(table)), {method: i for i, method in enumerate(order)}
    tips = []
    for place in evenly(sorted(at), MOST_TIPS):
        lines = [TipLine(position[row["method"]], row[value], text(row)) for row in at[place]]
        tips.append(Tip(place, lines[0].y, head(at[place][0]), lines))
    return Tips("x", tips, order)


def evenly(places: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the places, evenly spaced, with the first and the last."""
    indices = np.linspace(0, len(places) - 1, min(len(places), most)).round().astype(int)
    return [places[i] for i in np.unique(indices)]


def attribute(figure: Figure, tips: Tips) -> str:
    """Return the tips as JSON for an HTML attribute in single quotes.

    Coordinates are thousandths of the figure's width and height, from its upper left corner.
    """
    width, height = figure.bbox.size
    place = figure.axes[0].transData

    def at(x: float, y: float) -> tuple[int, int]:
        right, up = place.transform((x, y))
        return round(1000 * right / width), round(1000 - 1000 * up / height)

    points = [
        [*at(tip.x, tip.y), tip.head, [[line.method, at(tip.x, line.y)[1], line.text] for line in tip.lines]]
        for tip in tips.tips
    ]
    text = json.dumps(
        {"by": tips.by, "methods": list(tips.methods), "tips": points}, ensure_ascii=False, separators=(",", ":")
    )
    return text.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")

"""The look of pages and figures: templates, colours, SVG, and the values under the pointer."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedskew.core.text import count
from fedskew.measure.registry import Measure, primary
from fedskew.report.words import Row, rows_of, value, with_interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def rendered(
    template: str,
    filters: Mapping[str, Callable[..., object]],
    script_file: str = "chart.js",
    /,
    live: bool = False,
    **values: object,
) -> str:
    """Render a page from its template, with the style sheet, the script and the script's hash. A ``live`` page reloads itself."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("fedskew", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    css, script = ((files("fedskew.report") / name).read_text(encoding="utf-8") for name in ("page.css", script_file))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        css=Markup(css), script=Markup(script), digest=digest, live=live, **values
    )


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


SHOWN_CLIENTS = 60
"""Maximum number of clients in the figure of a partition."""

MOST = 250
MOST_CELLS = 1000
"""Maximum number of tips along one axis of a figure, and in a figure of cells."""


NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
BIN = re.compile(rf"(.*?)(up to |above )?({NUMBER})(?: to {NUMBER})?")
"""A label that ends in a number, or in a range such as "up to 3", "3 to 7" or "above 7"."""


@dataclass(frozen=True)
class Line:
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
    lines: Sequence[Line] = ()


@dataclass(frozen=True)
class Tips:
    """The tips of a figure, in the order of the arrow keys. The pointer shows the nearest one in the coordinates ``by``."""

    by: Literal["x", "y", "xy"]
    tips: Sequence[Tip]
    methods: Sequence[str] = ()


def of_curves(table: pd.DataFrame, measure: Measure, order: Sequence[str]) -> Tips:
    """The tips of `plots.draw_curves`: the values of all methods in each round. ``table`` comes from `series.curves`."""
    number, found = {method: i for i, method in enumerate(order)}, []
    table = table[np.isfinite(table["mean"])]
    for round_, rows in in_places(rows_of(table), "round").items():
        rows.sort(key=lambda row: -float(row["mean"]))
        lines = [
            Line(number[row["method"]], row["mean"], with_interval(measure, row["mean"], row["high"] - row["mean"]))
            for row in rows
        ]
        found.append(Tip(round_, lines[0].y, f"round {round_}", lines))
    return Tips("x", found, order)


def of_clients(table: pd.DataFrame, order: Sequence[str]) -> Tips:
    """The tips of `plots.draw_clients`: the client's value at each rank. ``table`` comes from `series.per_client`."""
    number, measure, found = {method: i for i, method in enumerate(order)}, primary(), []
    for rank, rows in in_places(rows_of(table), "rank").items():
        lines = [
            Line(
                number[row["method"]],
                row[measure.name],
                ", ".join(filter(None, [value(measure, row[measure.name]), row["client_name"]])),
            )
            for row in rows
        ]
        found.append(Tip(rank, lines[0].y, f"client {rank} from the worst", lines))
    return Tips("x", found, order)


def in_places(rows: Sequence[Row], key: str) -> dict[int, list[Row]]:
    """Group rows by ``key`` (round or rank). At most `MOST` groups stay, evenly spaced, with the first and the last."""
    places = sorted({int(row[key]) for row in rows})
    if not places:
        return {}
    found: dict[int, list[Row]] = {place: [] for place in evenly(places, MOST)}
    for row in rows:
        if row[key] in found:
            found[int(row[key])].append(row)
    return found


def evenly(places: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the places, evenly spaced, with the first and the last."""
    indices = np.linspace(0, len(places) - 1, min(len(places), most)).round().astype(int)
    return [places[i] for i in np.unique(indices)]


def rows_by_label(rows: pd.DataFrame) -> pd.DataFrame:
    """Turn the table of `RunStore.partition` into numbers of rows (clients, labels)."""
    counts = rows.pivot_table(
        index=["client", "client_name"], columns="label", values="rows", aggfunc="sum", fill_value=0
    )
    return counts[sorted(counts.columns, key=natural)]


def of_partition(rows: pd.DataFrame) -> Tips:
    """The tips of `plots.draw_partition`: the number of rows of each client and label."""
    counts = rows_by_label(rows).iloc[:SHOWN_CLIENTS]
    values = counts.to_numpy(dtype=int)
    found = [
        Tip(c, k, f"client {counts.index[k][1]}, {counts.columns[c]}: {count(int(values[k, c]), 'row')}")
        for k, c in np.argwhere(values).tolist()
    ]
    return Tips("xy", found if len(found) <= MOST_CELLS else [])


def natural(label: object) -> tuple[str, float, bool, str]:
    """Sort key for labels. Equal words are sorted by the number or range at their end, all else by the alphabet."""
    text = str(label)
    found = BIN.fullmatch(text)
    return (found[1], float(found[3]), found[2] != "up to ", text) if found else (text, 0.0, False, text)


def attribute(figure: Figure, tips: Tips) -> str:
    """Return the tips as JSON for an HTML attribute in single quotes.

    Coordinates are thousandths of the figure's width and height, from its upper left corner.
    """
    width, height = figure.bbox.size
    place = figure.axes[0].transData

    def at(x: float, y: float) -> tuple[int, int]:
        right, up = place.transform((x, y))
        return round(1000 * right / width), round(1000 - 1000 * up / height)

    found = [
        [*at(tip.x, tip.y), tip.head, [[line.method, at(tip.x, line.y)[1], line.text] for line in tip.lines]]
        for tip in tips.tips
    ]
    text = json.dumps(
        {"by": tips.by, "methods": list(tips.methods), "tips": found}, ensure_ascii=False, separators=(",", ":")
    )
    return text.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")

"""A matplotlib figure as inline SVG. Its colours are CSS variables, so that the page's style sheet sets them."""

from __future__ import annotations

import io
import re
import warnings
from html import escape
from typing import TYPE_CHECKING

from fedskew.report.style import GRID, INK, MUTED, SERIES, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

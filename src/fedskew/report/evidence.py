"""The page of the evidence: one HTML file that needs no network, whose table sorts and filters."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedskew.report.template import rendered

FILTERS = (
    ("data", "data"),
    ("dominant", "strongest face"),
    ("method", "method"),
    ("measured_on", "measured on"),
    ("verdict", "verdict"),
)


def page(cells: Sequence[Mapping[str, Any]], about: str) -> str:
    """The page as HTML text; a cell has the keys of `fedskew.advice.table.Cell`."""
    choices = [
        (name, title, sorted({str(cell["title" if name == "method" else name]) for cell in cells}))
        for name, title in FILTERS
    ]
    return rendered(
        "evidence.html", {}, "evidence.js", cells=cells, about=about, filters=choices, faces=list(cells[0]["strengths"])
    )

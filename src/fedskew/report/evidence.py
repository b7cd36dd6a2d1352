"""The HTML page of the evidence: one file that needs no network. Readers can sort and filter its table."""

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
    """Return the page as HTML text. Each of ``cells`` has the keys of `fedskew.advice.evidence.Cell`."""
    choices = [
        (name, title, sorted({str(cell["title" if name == "method" else name]) for cell in cells}))
        for name, title in FILTERS
    ]
    return rendered(
        "evidence.html", {}, "evidence.js", cells=cells, about=about, filters=choices, faces=list(cells[0]["strengths"])
    )

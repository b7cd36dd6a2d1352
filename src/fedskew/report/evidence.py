"""The page of the evidence: one HTML file that needs no network, whose table sorts and filters."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from fedskew.report.html import shared_parts

FILTERS = (
    ("data", "data"),
    ("dominant", "strongest face"),
    ("method", "method"),
    ("measured_on", "measured on"),
    ("verdict", "verdict"),
)


def page(cells: Sequence[Mapping[str, Any]], about: str) -> str:
    """The page as HTML text; a cell has the keys of `fedskew.advice.table.Cell`."""
    from jinja2 import Environment, StrictUndefined

    template = (files("fedskew.report") / "evidence.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    choices = [
        (name, title, sorted({str(cell["title" if name == "method" else name]) for cell in cells}))
        for name, title in FILTERS
    ]
    return environment.from_string(template).render(
        **shared_parts("evidence.js"), cells=cells, about=about, filters=choices, faces=list(cells[0]["strengths"])
    )

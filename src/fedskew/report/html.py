"""The report: one HTML file that needs no network and no script, and follows the reader's light or dark mode."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import FedskewError, require
from fedskew.report import experiments, plots, tables, words
from fedskew.report.svg import inline
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd

PARTITION_NUMBERS = (
    ("clients", "clients with rows"),
    ("empty", "clients left without rows"),
    ("rows", "rows dealt to train on"),
    ("held_out", "rows held out to measure clients"),
    ("unassigned", "rows that no client got"),
    ("smallest", "smallest client, rows"),
    ("median", "median client, rows"),
    ("largest", "largest client, rows"),
    ("label_distance", "label distance, 0 (alike) to 1"),
    ("label_distance_by_chance", "label distance by chance alone"),
)


def write_report(store: RunStore, records: Sequence[RunRecord], path: str | Path) -> Path:
    """Write the report on ``records`` to ``path``; a report that was there before is replaced in one step.

    Raises `BadInput` without records, and `FedskewError` if the file cannot be written.
    """
    require(bool(records), "report: there are no runs to report on")
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    text = page(store, records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise FedskewError(f"report {path}: cannot be written: {error.strerror}") from None
    return path


def page(store: RunStore, records: Sequence[RunRecord]) -> str:
    """The report as HTML text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    here = files("fedskew.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        share=words.share, points=words.points, figures=words.figures, ranges=words.ranges, count=words.count
    )
    frame = tables.read(store, records)
    summary = tables.summarise(frame, records)
    methods = tables.methods(records)
    return environment.from_string((here / "page.html").read_text(encoding="utf-8")).render(
        css=Markup((here / "page.css").read_text(encoding="utf-8")),
        title=title(store, records),
        records=records,
        answer=words.answer(summary),
        asked=experiments.asked(records),
        mixed=experiments.mixed(records),
        summary=summary.to_dict("records"),
        unfinished=tables.unfinished(records).to_dict("records"),
        legend=legend(methods),
        figures=curve_figures(frame, records) + client_figure(store, records),
        partition=partition(store, records),
        held_out={experiments.held_out(record) for record in records},
        provenance=experiments.provenance(records),
        recipes=experiments.recipes(records),
    )

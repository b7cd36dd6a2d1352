"""The report: one HTML file that needs no network and no script, and follows the reader's light or dark mode."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import FedskewError
from fedskew.report import experiments, plots, tables, words
from fedskew.report.budget import Budget
from fedskew.report.ranks import draw_ranks, ranking
from fedskew.report.svg import inline
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup

PARTITION_NUMBERS = (
    ("skews", "how clients differ"),
    ("clients", "clients with rows"),
    ("empty", "clients left without rows"),
    ("rows", "rows dealt to train on"),
    ("held_out", "rows held out to measure clients"),
    ("server_rows", "rows of the server's own"),
    ("shared_rows", "rows of the public share"),
    ("shared_rows_each", "of which each client gets"),
    ("shared_bytes", "bytes that sends, once"),
    ("unassigned", "rows that no client got"),
    ("smallest", "smallest client, rows"),
    ("median", "median client, rows"),
    ("largest", "largest client, rows"),
    ("size_variation", "variation of sizes, standard deviation over mean"),
    ("label_distance", "label distance, 0 (alike) to 1"),
    ("label_distance_by_chance", "label distance by chance alone"),
    ("label_shift", "label distance from what was asked"),
    ("changed_labels", "share of labels changed at the start"),
    ("changed_labels_at_the_end", "share of labels changed at the end"),
    ("test_set", "test set"),
)


def write_report(store: RunStore, records: Sequence[RunRecord], path: str | Path, budget: Budget | None = None) -> Path:
    """Write the report on ``records`` to ``path``; a report that was there before is replaced in one step.

    What a link leads to is written, and so is a device or a pipe. Raises `BadInput` without records, and `FedskewError` if
    the file cannot be written.
    """
    path, text = Path(path), page(store, records, budget)
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
            return path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise FedskewError(f"report {path}: cannot be written: {error.strerror}") from None
    except RuntimeError:
        raise FedskewError(f"report {path}: cannot be written: its links lead in a circle") from None
    return path


def page(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None, live: str = "") -> str:
    """The report as HTML text; under a budget, every run is read where it is spent.

    With a version in ``live`` the page carries it, and the script ``live.js`` from beside it, which draws it anew.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    stored, records = records, experiments.distinct(records)
    here = files("fedskew.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    filters = (words.share, words.points, words.figures, words.ranges, words.count, words.breakable)
    environment.filters.update({filter_.__name__: filter_ for filter_ in (*filters, *INTERVALS)})
    frame = tables.read(store, records, budget)
    summary = tables.summarise(frame, records)
    methods, profiles = tables.methods(records), tables.profiles(records)
    return environment.from_string((here / "page.html").read_text(encoding="utf-8")).render(
        css=Markup((here / "page.css").read_text(encoding="utf-8")),
        title=title(store, records),
        live=live,
        records=records,
        answer=words.answer(summary),
        asked=experiments.asked(records),
        warnings=experiments.warnings(records),
        summary=summary.to_dict("records"),
        budget=budget,
        read_after=words.read_after(summary, budget),
        seeds_only=words.SEEDS_ONLY,
        client_rows=experiments.kinds_of_rows(records),
        personal=bool(summary["personal"].notna().any()),
        private=bool(summary["epsilon"].notna().any()),
        unfinished=tables.unfinished(records).to_dict("records"),
        legend=legend(methods),
        figures=rank_figure(store, stored, budget)
        + curve_figures(frame, records)
        + client_figure(store, records, budget),
        partition=partition(store, records),
        profiles=profiles,
        measuring=tables.measuring(records),
        parts=list(dict.fromkeys(part for own in profiles.values() for part in own)),
        measured_rows=experiments.measured_rows(records),
        provenance=experiments.provenance(records),
        recipes=experiments.recipes(records),
    )


def interval(mean: float, half: float, **options: Any) -> Markup:
    """`words.interval` of shares, with what follows the mean in grey."""
    from markupsafe import Markup

    first, _, rest = words.interval(mean, half, **options).partition(" ")
    return Markup('{} <span class="half">{}</span>' if rest else "{}").format(first, rest)


def difference_interval(mean: float, half: float) -> Markup:
    return interval(mean, half, show=words.points, low=-1.0)


def distance_interval(mean: float, half: float) -> Markup:
    return interval(mean, half, show=partial(words.figures, like=mean), high=math.inf)


INTERVALS = (interval, difference_interval, distance_interval)


def title(store: RunStore, records: Sequence[RunRecord]) -> str:
    """That of the comparison, if all runs belong to one; else the methods."""
    comparisons = {record.comparison for record in records}
    if len(comparisons) == 1 and None not in comparisons:
        found = store.query("SELECT title FROM comparisons WHERE id=?", list(comparisons))
        if found and found[0][0]:
            return str(found[0][0])
    methods = tables.methods(records)
    return words.listed(methods) if len(methods) <= 4 else f"{methods[0]} and {len(methods) - 1} other methods"


def legend(methods: Sequence[str]) -> list[dict[str, str]]:
    """Name, colour and dashes of each method; empty for a single one."""
    if len(methods) < 2:
        return []
    return [
        {
            "method": method,
            "colour": f"var(--series-{index % len(plots.SERIES) + 1})",
            "dashes": " ".join(
                f"{plots.STYLE['lines.linewidth'] * d:g}" for d in plots.DASHES[index % len(plots.DASHES)]
            ),
        }
        for index, method in enumerate(methods)
    ]


def curve_figures(frame: pd.DataFrame, records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """The curves for which there are measurements: key, heading and SVG."""
    from markupsafe import Markup

    methods = tables.methods(records)
    made = []
    for key, curve in plots.CURVES.items():
        table = tables.curves_of(frame, records, curve.split, curve.name)
        if len(table):
            figure = plots.draw_curves(table, curve, methods, alone=False)
            svg = Markup(inline(figure, f"figure-{key}", f"{curve.label} over rounds"))
            made.append({"key": key, "heading": curve.label, "svg": svg})
    return made


def rank_figure(store: RunStore, records: Sequence[RunRecord], budget: Budget | None) -> list[dict[str, Any]]:
    """The methods' ranks, where the runs are on several data sets."""
    from markupsafe import Markup

    if ranking(store, records, budget) is None:
        return []
    heading = "ranks over the data sets"
    figure = draw_ranks(store, records, budget)
    return [{"key": "ranks", "heading": heading, "svg": Markup(inline(figure, "figure-ranks", heading))}]


def client_figure(store: RunStore, records: Sequence[RunRecord], budget: Budget | None) -> list[dict[str, Any]]:
    """Accuracy by client, if it was measured: key, heading and SVG."""
    from markupsafe import Markup

    table = tables.per_client(store, records, budget)
    if table.empty:
        return []
    figure = plots.draw_clients(table, tables.methods(records), alone=False)
    heading = "accuracy by client"
    return [{"key": "clients", "heading": heading, "svg": Markup(inline(figure, "figure-clients", heading))}]


def partition(store: RunStore, records: Sequence[RunRecord]) -> dict[str, Any]:
    """The partition of the first run that noted one: run, SVG or nothing, numbers, whether other runs have others."""
    from markupsafe import Markup

    record = next((r for r in records if isinstance(r.facts.get("partition"), dict)), records[0])
    facts = record.facts.get("partition")
    known = facts if isinstance(facts, dict) else {}
    rows = store.partition(record.id)
    svg = ""
    if len(rows):
        figure = plots.draw_partition(rows, plots.known_clients(record))
        svg = Markup(inline(figure, "figure-partition", "rows of each client by label"))
    return {
        "run": record,
        "svg": svg,
        "numbers": [(text, readable(known[key])) for key, text in PARTITION_NUMBERS if key in known],
        "others": any(
            r.facts.get("partition", known) != known or r.partition_seed != record.partition_seed for r in records
        ),
    }


def readable(value: Any) -> str:
    """A number as people read it, anything else as text."""
    if value is None:
        return words.MISSING
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else words.figures(value)
    return str(value)

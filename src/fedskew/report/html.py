"""The report and the evidence as HTML pages: one file each that needs no network and follows the reader's light or dark mode.

The only script shows a figure's values under the pointer. The page's policy names this script by its hash, so no other can run.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.core.files import write_whole
from fedskew.report import experiments, words
from fedskew.report.answer import answer, how_sure, measuring, notices, profiles, remarks
from fedskew.report.experiments import comparison_title
from fedskew.report.plots import dealt, landscapes, pictures
from fedskew.report.series import Results, readable_by_site
from fedskew.report.style import LINE, MARKERS, SERIES, Picture, dashes, marker, rendered
from fedskew.report.tables import covered

if TYPE_CHECKING:
    from markupsafe import Markup

PARTITION_NUMBERS = tomllib.loads(Path(__file__).with_name("partition.toml").read_text(encoding="utf-8"))
"""The numbers of a partition for readers, by their names in the facts of a run."""

MOST_POINTS = 5_000
"""Maximum number of points on the lines of a figure. A page of 50 methods and 1,000 rounds stays below 5 MB."""


def write_report(results: Results, path: str | Path, live: str = "") -> Path:
    """Write the report to ``path``; an earlier report is replaced in one step.

    If ``path`` is a link, its target is replaced. A device or pipe receives the text. Raises `FedskewError` if the file cannot be
    written.
    """
    return write_whole(path, page(results, live), "report")


def page(results: Results, live: str = "") -> str:
    """Return the report as HTML text. A page with a ``live`` text, such as the time left, reloads itself every few seconds."""
    results = results.titled
    records, summary, measure, spread = results.records, results.summary, results.measure, results.layout.spread
    figures, sheets = pictures(results, MOST_POINTS), landscapes(results)
    differences, of_rows = figures.pop("differences", None), figures.pop("partition", None)
    over_rounds = [figures.pop("ranks", None), *figures.values(), *sheets]
    columns = list(dict.fromkeys([measure, *results.columns("page")]))
    filters = (words.share, words.ranges, in_grey)
    return rendered(
        "page.html",
        {"unbroken": partial(words.unbroken, names=results.methods)} | {each.__name__: each for each in filters},
        experiments=experiments,
        title=comparison_title(results.store, records),
        live=live,
        results=results,
        deployed=any(map(experiments.between_sites, records)),
        answer=answer(results),
        value=words.value,
        warnings=notices(records),
        notes=notices(records, of_partition=True),
        summary=summary.to_dict("records"),
        covered=covered(summary, measure),
        how_sure=how_sure(results),
        margin=words.within(measure, summary["margin"].iloc[0]) if summary["margin"].notna().any() else "",
        columns=columns,
        sites=site_rows(results),
        remarks=list(dict.fromkeys(m.remark for m in columns if m.remark)) + remarks(records),
        spread=words.SPREADS[spread].title,
        cell_text=partial(words.cell_text, spread=spread),
        difference=partial(words.difference, measure, show=words.points, spread=spread),
        unfinished=[record for record in records if record.status != "finished"],
        legend=legend(results.methods),
        differences=differences and differences.on_page(),
        figures=[picture.on_page() for picture in over_rounds if picture],
        landscapes=bool(sheets),
        partition=partition(results, of_rows),
        profiles=profiles(records),
        parts=list(dict.fromkeys(part for seconds in profiles(records).values() for part in seconds)),
        measuring=measuring(records),
        drawn=next((record.id for record in records if record.status == "finished"), 0),
    )


def site_rows(results: Results) -> list[Sequence[str]]:
    """Return the table by site as rows, the headings first; empty if no sites have names."""
    by_site = readable_by_site(results)
    return [[*by_site], *zip(*by_site.values(), strict=True)] if by_site else []


def board_page(results: Results) -> str:
    """Return a page for an ethics board on a run between sites: what left each site, and what protects it, as HTML text."""
    [record] = results.titled.records
    algorithm, codec = (experiments.stored_section(record, name) for name in ("algorithm", "codec"))
    clip: Any = algorithm.get("clip", codec["norm"] if codec.get("name") == "clip" else math.inf)
    epsilon = results.store.last([record.id], ["round/epsilon"])
    return rendered(
        "board.html",
        record=record,
        primary=results.measure,
        sites=site_rows(results.titled),
        clip=clip if clip < math.inf else None,
        epsilon=epsilon[0].value if epsilon else None,
    )


def in_grey(text: str) -> Markup:
    """Format ``92.5 ± 1.2`` as HTML, with all but the mean in grey. A document's number may stand before: ``94 → 92.5 ± 1.2``."""
    from markupsafe import Markup

    document, arrow, ours = text.rpartition("→ ")
    mean, _, half = ours.partition(" ")
    grey = '<span class="half">{}</span>'
    return Markup((f"{grey} " if arrow else "{}") + "{}" + (f" {grey}" if half else "{}")).format(
        document + arrow.rstrip(), mean, half
    )


def legend(methods: Sequence[str]) -> list[dict[str, str]]:
    """Return name, colour, dashes and marker of each method; empty for a single method."""
    if len(methods) < 2:
        return []
    return [
        {
            "method": method,
            "colour": f"var(--series-{index % len(SERIES) + 1})",
            "dashes": " ".join(f"{LINE * d:g}" for d in dashes(index)),
            "marker": MARKERS[marker(index)],
        }
        for index, method in enumerate(methods)
    ]


def partition(results: Results, picture: Picture | None) -> dict[str, object]:
    """Describe the partition of the first run that stored one: its ``picture``, its numbers, and whether other runs differ."""
    record = dealt(results.records)
    numbers = record.facts.get("partition", {})
    return {
        "run": record,
        "seed": "" if experiments.own_clients(record) else f", partition seed {record.partition_seed}",
        "figure": picture and picture.on_page(),
        "numbers": [(text, readable(numbers[key])) for key, text in PARTITION_NUMBERS.items() if numbers.get(key)],
        "others": any(
            other.facts.get("partition", numbers) != numbers
            or (other.partition_seed != record.partition_seed and not experiments.own_clients(other))
            for other in results.records
        ),
    }


def readable(value: object) -> str:
    """Format a value for readers; an integer gets thousands separators."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else words.figures(value)
    return str(value)


FILTERS = (
    ("data", "data"),
    ("dominant", "strongest face"),
    ("method", "method"),
    ("measured_on", "measured on"),
    ("verdict", "verdict"),
)


def evidence_page(cells: Sequence[Mapping[str, Any]], about: str) -> str:
    """Return the page as HTML text. Each of ``cells`` is from `fedskew.advice.evidence.cells`."""
    choices = [
        (name, title, sorted({str(cell["title" if name == "method" else name]) for cell in cells}))
        for name, title in FILTERS
    ]
    faces = list(cells[0]["strengths"])
    return rendered("evidence.html", script_file="evidence.js", cells=cells, about=about, filters=choices, faces=faces)

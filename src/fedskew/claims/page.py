"""A document's page: its tables and figures beside fedskew's, and a verdict on each claim, as HTML and as Markdown for the site."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedskew.claims.document import ClaimTable, Document
from fedskew.claims.extras import EXTRAS, Numbers
from fedskew.claims.figures import pictures
from fedskew.claims.quantities import words_for
from fedskew.claims.verdicts import RULE, Judged, Results, TableCell, cells, compared, interval, verdicts
from fedskew.core.text import capital, count, listed
from fedskew.report.html import in_grey
from fedskew.report.style import Picture, rendered

if TYPE_CHECKING:
    from markupsafe import Markup

Grid = tuple[list[str], list[list[str]]]
"""Titles of the columns after the first, and rows of texts."""


@dataclass(frozen=True)
class Section:
    """A table of the document, its figures, and the claims about it."""

    name: str
    title: str
    grid: Grid
    words: bool  # the grid has texts, which are read like prose
    pictures: list[Picture]
    remarks: list[str]
    claims: list[Judged]


def sections(document: Document, results: Results, extras: Mapping[str, Numbers]) -> list[Section]:
    """Return the sections of the page. ``extras`` are the parts that are computed without runs, by name."""
    judged = verdicts(document, results)
    parts = []
    for table in document.tables:
        (columns, rows), missing = texts_of(table, results)
        absent = f"Not run: {'; '.join(missing)}." if len(missing) < len(table.arms) else "Not run."
        remarks = [absent] if missing and rows else []
        if any("→" in text for row in rows for text in row):
            remarks.append("The document's number stands before the arrow, ours after it.")
        figures_of_table = pictures(table, results)
        if table.extra in extras:
            extra, numbers = EXTRAS[table.extra], extras[table.extra]
            rows = rows or [list(row) for row in extra.rows(numbers)]
            figures_of_table += of_extra(table.extra, numbers)
        in_all_captions, drawn = captions(figures_of_table)
        remarks = in_all_captions + remarks + [f"{capital(note)}." for note in table.notes]
        claims = [outcome for outcome in judged if outcome.claim.table == table.name]
        words = len(table.words) > 1 or (table.extra in EXTRAS and EXTRAS[table.extra].words)
        parts.append(Section(table.name, table.title, (columns, rows), words, drawn, remarks, claims))
    return parts


def tally(sections: Sequence[Section]) -> str:
    """Count the verdicts: ``22 claims: 15 hold, 5 fail, 2 undecided``."""
    counts = Counter(judged.verdict for section in sections for judged in section.claims)
    if not counts:
        return "No claim is about this part"
    text = f"{counts.total()} claims: {counts['holds']} hold, {counts['fails']} fail, {counts['undecided']} undecided"
    return f"{text}, {counts['not run']} not run" if counts["not run"] else text


def captions(pictures: Sequence[Picture]) -> tuple[list[str], list[Picture]]:
    """Return the sentences that all captions share, and the figures with the rest of their captions."""
    sentences = [re.split(r"(?<=\.) ", picture.caption) for picture in pictures]
    first = sentences[0] if sentences else []
    common = [text for text in first if text and all(text in of_picture for of_picture in sentences)]
    rest = [" ".join(text for text in of_picture if text not in common) for of_picture in sentences]
    return common, [replace(picture, caption=caption) for picture, caption in zip(pictures, rest, strict=True)]


def of_extra(name: str, numbers: Numbers) -> list[Picture]:
    """Return the figures of a part that needs no runs."""
    draw = EXTRAS[name].draw
    if draw is None:
        return []

    def of_part(number: int, part: str) -> Picture:
        return Picture(key=f"{name}-{number}", heading=part, draw=lambda _: draw(numbers, part))

    return [of_part(number, part) for number, part in enumerate(numbers, 1)]


def texts_of(table: ClaimTable, results: Results) -> tuple[Grid, list[str]]:
    """Return a table's texts, and the arms that were not run. The document's number stands before fedskew's, also of these arms."""
    missing = [arm for arm in table.arms if not results.get(arm)]
    if not table.measures:
        words = [list(row) for row in table.words] or [[]]
        return (words[0], words[1:]), missing
    numbers = {arm: row for arm, row in cells(table, results).items() if arm not in missing or arm in table.printed}
    if table.matrix:
        of = table.measures[0]
        parts = {arm: arm.rsplit(", ", 1) for arm in numbers}
        columns = list(dict.fromkeys(column for _, column in parts.values()))
        rows = {row: dict.fromkeys(columns, "") for row, _ in parts.values()}
        for arm, (row, column) in parts.items():
            rows[row][column] = beside(numbers[arm][of])
        return (columns, [[row, *texts.values()] for row, texts in rows.items()]), missing
    if table.compare:
        if not {*table.arms[:2]} & {*missing}:
            numbers[table.compare] = {m: compared(table, m, results) for m in table.measures}
        turned = [[words_for(m), *(beside(of_arm[m]) for of_arm in numbers.values())] for m in table.measures]
        return (list(numbers), turned), missing
    printed = [m for m in table.measures if any(m in row for row in table.printed.values())]
    by_title: dict[str, list[str]] = {}
    for m in table.measures:
        of_m = [of_arm[m] for of_arm in numbers.values()]
        if m in printed:
            texts = ["–" if cell.document is None else f"{cell.document:g}" for cell in of_m]
            by_title[f"{words_for(m)}, document"] = texts
        by_title[words_for(m)] = [interval(cell.mean, cell.half) for cell in of_m]
    return (list(by_title), list(map(list, zip(numbers, *by_title.values(), strict=True)))), missing


def beside(cell: TableCell) -> str:
    """Format the document's number, then fedskew's."""
    ours = interval(cell.mean, cell.half)
    return ours if cell.document is None else f"{cell.document:g} → {ours}"


def about(document: Document, scale: str, results: Results, rule: str) -> str:
    """Say which command makes the runs, how many have finished, on what data, and how claims are decided."""
    at_scale = document.scale(scale)
    how = f"`fedskew reproduce {document.name} --scale {scale}`: {count(at_scale.seeds, 'seed')} for every arm, the same ones."
    planned, finished = at_scale.seeds * len(document.arms), sum(map(len, results.values()))
    if finished < planned:
        how += f" Of these {count(planned, 'run')}, {finished} have finished."
    if at_scale.surrogate:
        how += f" Surrogate: {at_scale.surrogate}; the document's numbers are shown, and only its claims are judged."
    return " ".join(filter(None, [how, mixed(document, scale, results), rule]))


def mixed(document: Document, scale: str, results: Results) -> str:
    """Say on which data runs have different rows, as from machines whose files differ; empty if on none."""
    of_seed = any(key.startswith("dataset") for key in document.scale(scale).seeded or document.seeded)
    fingerprints: dict[tuple[str, int], set[str]] = {}
    for runs in results.values():
        for seed, run in runs.items():
            data = run.record.facts.get("data", {"name": "", "fingerprint": ""})
            fingerprints.setdefault((data["name"], seed * of_seed), set()).add(data["fingerprint"])
    names = {name for (name, _), of_runs in fingerprints.items() if len(of_runs) > 1}
    if not names:
        return ""
    return f"Runs on {listed(sorted(names))} have different rows, and means mix them: repeat all in another run store (`--runs`)."


def markdown(
    document: Document,
    scale: str,
    results: Results,
    extras: Mapping[str, Numbers] | None = None,
    rule: str = RULE,
    place: Callable[[Picture], str] = lambda _: "",
) -> str:
    """Make a Markdown page. ``rule`` says how claims are decided; ``place`` returns the text that shows a figure."""
    of_document = sections(document, results, extras or {})
    parts = [f"# {document.title}", about(document, scale, results, rule), f"**{tally(of_document)}.**"]
    for section in of_document:
        titles, rows = section.grid
        lines = ["| | " + " | ".join(titles) + " |", "| --- |" + " ---: |" * len(titles)]
        lines += [f"| {' | '.join(row)} |" for row in rows]
        drawn = list(map(place, section.pictures))
        rest = list(dict.fromkeys(picture.caption for picture in section.pictures if picture.caption and any(drawn)))
        parts += [f"## {section.title}", "\n".join(lines) if rows else "" if any(drawn) else "Not run."]
        parts += [*drawn, " ".join([*rest, *section.remarks]) if rows or drawn else ""]
        parts.append("\n".join(f"- **{j.verdict}** · {spoken(j)}. {j.reason}." for j in section.claims))
    if document.open:
        lines = [f"- {what}: {choice.rstrip('.')}." for what, choice in document.open.items()]
        parts += ["## What the document leaves open, and what we chose", "\n".join(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def spoken(judged: Judged) -> str:
    """Return a claim and its place in the document."""
    return f"{judged.claim.text.rstrip('.')} ({judged.claim.where})"


def marked(text: str) -> Markup:
    """Return a text as HTML, with `code` and *emphasis* as Markdown has them."""
    from markupsafe import Markup, escape

    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*([^*]+)\*", r"<em>\1</em>", code))


def html(document: Document, scale: str, results: Results, extras: Mapping[str, Numbers]) -> str:
    """Make the page as one HTML file, with all figures drawn."""
    of_document = sections(document, results, extras)
    return rendered(
        "document.html",
        {"in_grey": in_grey, "marked": marked},
        title=document.title,
        scale=scale,
        about=about(document, scale, results, ""),
        rule=RULE,
        tally=tally(of_document),
        sections=of_document,
        spoken=spoken,
        open=document.open,
    )

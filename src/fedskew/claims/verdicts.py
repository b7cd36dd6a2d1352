"""Verdicts on a document's claims, and its tables with our numbers and the document's."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.claims.document import Document, Evidence, Table, Verdict, evidence_for, judge
from fedskew.claims.quantities import Measured, quantity
from fedskew.core.text import count
from fedskew.measure.statistics import alike, holm, mean_interval
from fedskew.report.words import figures

Results = Mapping[str, Mapping[int, Measured]]
"""Measurements of runs by arm and seed."""


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    name: str
    text: str
    where: str
    statistic: str
    expect: str
    verdict: Verdict
    evidence: Evidence
    p: float  # after the correction for all claims of the document
    seeds: tuple[int, ...]
    diverged: int  # number of the claim's runs that diverged; their rounds up to then count

    @property
    def reason(self) -> str:
        """The numbers behind the verdict, in one line."""
        e = self.evidence
        if not self.seeds:
            return f"{self.statistic}; claimed {self.expect}"
        over = count(len(self.seeds), "seed")
        same = len(self.seeds) > 1 and alike(np.asarray(e.values))
        number = f"{figures(e.mean)} in each of {over}" if same else f"{interval(e.mean, e.half)} over {over}"
        text = f"{self.statistic}: {number}; claimed {self.expect}"
        if self.p > 0:
            text += f"; p {self.p:.2g}"
        if self.diverged:
            text += f"; {self.diverged} of the runs diverged and count as far as they came"
        return text if e.in_document is None else f"{text}; the document's own numbers give {figures(e.in_document)}"


@dataclass(frozen=True)
class Cell:
    """The document's number (None if it prints none), and our mean and half-width."""

    document: float | None
    mean: float
    half: float


def interval(mean: float, half: float) -> str:
    """Format ``0.912 ± 0.013``, both with the same decimals."""
    text = figures(mean)
    return f"{text} ± {figures(half, like=mean)}" if math.isfinite(half) else text


def verdicts(document: Document, known: Results) -> list[Judged]:
    """Decide each claim, from the seeds that all its arms have. The document's own numbers do not affect a verdict.

    Holm's method corrects for all claims of the document that chance could decide.
    """
    printed = {table.name: table.printed for table in document.tables}
    runs = {
        claim: {seed: [known[arm][seed] for arm in claim.arms] for seed in shared_seeds(known, claim.arms)}
        for claim in document.claims
    }
    evidence = [
        evidence_for(claim, [claim.statistic(own) for own in seeds.values()], claim.printed(printed[claim.table]))
        for claim, seeds in runs.items()
    ]
    return [
        Judged(
            claim.name,
            claim.text,
            claim.where,
            claim.described(),
            claim.expect,
            judge(one, p),
            one,
            p,
            tuple(seeds),
            sum(run.status == "diverged" for own in seeds.values() for run in own),
        )
        for (claim, seeds), one, p in zip(runs.items(), evidence, corrected([one.p for one in evidence]), strict=True)
    ]


def corrected(p: Sequence[float]) -> list[float]:
    """Correct the p of all claims by Holm's method. A p of 0 does not change or count: chance could not decide this claim."""
    by_chance = holm([math.nan if one == 0 else one for one in p])
    return [0.0 if one == 0 else changed for one, changed in zip(p, by_chance, strict=True)]


def shared_seeds(known: Results, arms: Sequence[str]) -> list[int]:
    """Return the sorted seeds that all these arms have."""
    return sorted(set.intersection(*(set(known.get(arm, {})) for arm in arms)))


def cells(table: Table, known: Results) -> dict[str, dict[str, Cell]]:
    """Return, by arm and measure, the document's number and ours over the seeds."""
    return {
        arm: {
            measure: Cell(table.printed.get(arm, {}).get(measure), *over_seeds(measure, known.get(arm, {})))
            for measure in table.measures
        }
        for arm in table.arms
    }


def over_seeds(measure: str, runs: Mapping[int, Measured]) -> tuple[float, float]:
    """Return mean and half-width over the runs that have the number."""
    values = [value for run in runs.values() if math.isfinite(value := quantity(measure, run))]
    return mean_interval(values) if values else (math.nan, math.nan)


def as_json(document: Document, scale: str, known: Results) -> dict[str, object]:
    """Return tables, claims and open settings as plain values."""
    return {
        "document": document.name,
        "scale": scale,
        "seeds": document.scale(scale).seeds,
        "surrogate": document.scale(scale).surrogate,
        "tables": {
            table.name: {arm: {m: vars(cell) for m, cell in row.items()} for arm, row in cells(table, known).items()}
            for table in document.tables
        },
        "claims": [{**vars(j), "evidence": vars(j.evidence)} for j in verdicts(document, known)],
        "open": document.open,
    }


def tally(judged: list[Judged]) -> str:
    """Count the verdicts: ``22 claims: 15 hold, 5 fail, 2 undecided``."""
    counts = Counter(j.verdict for j in judged)
    text = f"{len(judged)} claims: {counts['holds']} hold, {counts['fails']} fail, {counts['undecided']} undecided"
    return f"{text}, {counts['not run']} not run" if counts["not run"] else text


RULE = (
    "Our numbers are means over the seeds ± half the width of the 95 % interval. A claim *holds* if paired t tests at 5 % show "
    "that its number lies within the claimed region. It *fails* if they show that it lies outside. Otherwise it is *undecided*. "
    "p is corrected for all claims of the document by Holm's method. A number that is counted, such as megabytes, needs no test: "
    "two seeds that give the same number decide."
)


def markdown(document: Document, scale: str, known: Results, rule: str = RULE) -> str:
    """Make a Markdown page of tables and claims. ``rule`` is a text that says how claims are decided."""
    chosen = document.scale(scale)
    how = f"`fedskew reproduce {document.name} --scale {scale}`: {chosen.seeds} seeds for every arm, the same ones."
    if chosen.surrogate:
        how += f" Surrogate: {chosen.surrogate}; the document's numbers are shown, and only its claims are judged."
    parts = [f"# {document.title}", f"{how} {rule}".strip()]
    judged = {j.name: j for j in verdicts(document, known)}
    parts.append(f"**{tally(list(judged.values()))}.**")
    for table in document.tables:
        parts += [f"## {table.title}", table_of(table, known)]
        if table.note:
            parts.append(f"Note: {table.note}.")
        own = [judged[claim.name] for claim in document.claims if claim.table == table.name]
        parts.append("\n".join(f"- **{j.verdict}** · {j.text.rstrip('.')} ({j.where}). {j.reason}." for j in own))
    if document.open:
        lines = (f"- {what}: {chosen_.rstrip('.')}." for what, chosen_ in document.open.items())
        parts += ["## What the document leaves open, and what we chose", "\n".join(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table_of(table: Table, known: Results) -> str:
    """Make one table in Markdown with the arms that were run.

    A measure has a column for the document's numbers if the document prints any.
    """
    printed = [m for m in table.measures if any(m in row for row in table.printed.values())]
    titles = [title for m in table.measures for title in ([f"{m}, document"] if m in printed else []) + [m]]
    lines = ["| | " + " | ".join(titles) + " |", "| --- |" + " ---: |" * len(titles)]
    rows = cells(table, known)
    left = [arm for arm in table.arms if not known.get(arm)]
    for arm in left:
        del rows[arm]
    if not rows:
        return "Not run."
    for arm, row in rows.items():
        shown = []
        for m, cell in row.items():
            if m in printed:
                shown.append("–" if cell.document is None else figures(cell.document))
            shown.append(interval(cell.mean, cell.half))
        lines.append(f"| {arm} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + (f"\n\nNot run: {', '.join(left)}." if left else "")

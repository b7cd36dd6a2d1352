"""Verdicts on a document's claims, and its tables with the document's numbers and fedskew's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedskew.claims.document import STATISTICS, Claim, ClaimTable, Document, Support, Verdict, evidence_for, judge
from fedskew.claims.quantities import Measured, quantity
from fedskew.core.text import count
from fedskew.measure.statistics import alike, holm, mean_interval
from fedskew.report.words import figures

Results = Mapping[str, Mapping[int, Measured]]
"""Measurements of runs by arm and seed."""


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    claim: Claim
    verdict: Verdict
    evidence: Support
    p: float  # after the correction for all claims of the document
    seeds: tuple[int, ...]
    diverged: int  # number of the claim's runs that diverged; their rounds up to then count

    @property
    def reason(self) -> str:
        """The numbers behind the verdict, in one line."""
        e, statistic = self.evidence, self.claim.described()
        if not self.seeds:
            return f"{statistic}; claimed {self.claim.expect}"
        over = count(len(self.seeds), "seed")
        same = len(self.seeds) > 1 and alike(np.asarray(e.values))
        number = f"{figures(e.mean)} in each of {over}" if same else f"{interval(e.mean, e.half)} over {over}"
        text = f"{statistic}: {number}; claimed {self.claim.expect}"
        if self.p > 0:
            text += f"; p {self.p:.2g}"
        if self.diverged:
            text += f"; {self.diverged} of the runs diverged and count as far as they came"
        return text if e.in_document is None else f"{text}; the document's own numbers give {figures(e.in_document)}"

    def as_json(self) -> dict[str, object]:
        fields = {name: getattr(self.claim, name) for name in ("name", "text", "where", "expect")}
        verdict = {name: value for name, value in vars(self).items() if name != "claim"}
        return {**fields, "statistic": self.claim.described(), **verdict, "evidence": vars(self.evidence)}


@dataclass(frozen=True)
class TableCell:
    """The document's number, or None. Our mean, and half the width of its interval."""

    document: float | None
    mean: float
    half: float


def interval(mean: float, half: float) -> str:
    """Format ``0.912 ± 0.013``, both with the decimals of the larger one. A half-width of 0 or NaN is left out."""
    if not (math.isfinite(half) and half > 1e-9 * abs(mean)):  # rounding errors of equal numbers
        return figures(mean)
    like = max(abs(mean), half)
    return f"{figures(mean, like)} ± {figures(half, like)}"


def verdicts(document: Document, results: Results) -> list[Judged]:
    """Decide each claim, from the seeds that all its arms have. The document's own numbers do not affect a verdict.

    Holm's method corrects for all claims of the document that chance could decide.
    """
    printed = {table.name: table.printed for table in document.tables}
    judged = []
    for claim in document.claims:
        seeds = shared_seeds(results, claim.arms)
        runs = [[results[arm][seed] for arm in claim.arms] for seed in seeds]
        support = evidence_for(claim, list(map(claim.statistic, runs)), claim.printed(printed[claim.table]))
        diverged = sum(run.record.status == "diverged" for of_seed in runs for run in of_seed)
        judged.append(Judged(claim, "undecided", support, support.p, tuple(seeds), diverged))
    p = corrected([outcome.p for outcome in judged])
    return [
        replace(outcome, verdict=judge(outcome.evidence, of_all), p=of_all)
        for outcome, of_all in zip(judged, p, strict=True)
    ]


def corrected(p: Sequence[float]) -> list[float]:
    """Correct the p of all claims by Holm's method. A p of 0 does not change or count: chance could not decide this claim."""
    by_chance = holm([math.nan if value == 0 else value for value in p])
    return [0.0 if value == 0 else changed for value, changed in zip(p, by_chance, strict=True)]


def shared_seeds(results: Results, arms: Sequence[str]) -> list[int]:
    """Return the sorted seeds that all these arms have."""
    return sorted(set.intersection(*(set(results.get(arm, {})) for arm in arms)))


def cells(table: ClaimTable, results: Results, names: Sequence[str] = ()) -> dict[str, dict[str, TableCell]]:
    """Return, by arm and quantity, the document's number and ours over the seeds. ``names``: by default the table's quantities."""
    return {
        arm: {
            measure: TableCell(table.printed.get(arm, {}).get(measure), *over_seeds(measure, results.get(arm, {})))
            for measure in names or table.measures
        }
        for arm in table.arms
    }


def compared(table: ClaimTable, measure: str, results: Results) -> TableCell:
    """Return what a table's last column has: its statistic of the second arm and the first. Both must have runs."""
    arms, statistic = table.arms[1::-1], STATISTICS[table.compare]
    runs = [[results[arm][seed] for arm in arms] for seed in shared_seeds(results, arms)]
    values = [statistic([quantity(measure, run) for run in of_seed]) for of_seed in runs]
    printed = [table.printed.get(arm, {}).get(measure) for arm in arms]
    document = None if None in printed else float(f"{statistic(printed):.3g}")
    return TableCell(document, *mean_interval(values))


def over_seeds(measure: str, runs: Mapping[int, Measured]) -> tuple[float, float]:
    """Return mean and half-width over the runs that have the number."""
    values = [value for run in runs.values() if math.isfinite(value := quantity(measure, run))]
    return mean_interval(values)


def as_json(document: Document, scale: str, results: Results) -> dict[str, object]:
    """Return tables, claims and open settings as plain values."""
    return {
        "document": document.name,
        "scale": scale,
        "seeds": document.scale(scale).seeds,
        "surrogate": document.scale(scale).surrogate,
        "tables": {
            table.name: {arm: {m: vars(cell) for m, cell in row.items()} for arm, row in cells(table, results).items()}
            for table in document.tables
        },
        "claims": [judged.as_json() for judged in verdicts(document, results)],
        "open": document.open,
    }


RULE = (
    "Our numbers are means over the seeds ± half the width of the 95 % interval; ± is left out where all seeds give the same "
    "number, or only one has run. A claim *holds* if paired tests at 5 % show "
    "that its number lies within the claimed region (Fisher's test of signs for 11 to 16 seeds, else t tests). It *fails* if they "
    "show that it lies outside. Otherwise it is *undecided*. "
    "p is corrected for all claims of the document by Holm's method. A number that is counted, such as megabytes, needs no test: "
    "two seeds that give the same number decide."
)

"""What a study found, for the terminal and as a page: six questions, and the decision."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.files import write_whole
from fedskew.core.text import capital, count, listed
from fedskew.measure.statistics import decided, holm
from fedskew.report import diagnosis as diagnosed
from fedskew.report import words
from fedskew.report.answer import difference
from fedskew.report.experiments import name_of
from fedskew.report.plots import differences
from fedskew.report.series import RECALL, Results, by_site, readable_by_site
from fedskew.report.style import rendered, shorten
from fedskew.report.tables import (
    ByRow,
    by_method,
    covered,
    on_verdicts,
    over_rows,
    splits,
    values_of_rows,
    verdict_rule,
)
from fedskew.report.variance import how_sure
from fedskew.store.test_rows import Stored, number_of

WIDTH, LINES, MOST_SITES, NAME = 80, 29, 5, 18
"""Of the printed text: width, most lines, most sites, and longest name of a site. Remedies take the lines that are left."""

Cells = dict[str, list[str]]
"""Cells of a table by heading."""


@dataclass(frozen=True, eq=False)
class Findings:
    """What a study measured. ``results`` compare all arms at the sites, FedAvg first."""

    title: str
    diagnosis: Mapping[str, Any]
    results: Results
    costs: Sequence[str]  # names of the arms that are no remedies: FedAvg, pooled rows, shuffled rows, sites alone
    settings: Mapping[str, str]  # of each arm, as tuning chose them
    notes: Sequence[str]  # what was left out, and why
    commands: Sequence[str]  # to use the decision
    groups: Mapping[str, NDArray[np.int64]]  # ids of the rows of each group, as the store has them

    @cached_property
    def rows(self) -> dict[str, words.Row]:
        """The summary of each arm, by name."""
        return {row["method"]: row for row in words.rows_of(self.results.summary)}

    @cached_property
    def by_row(self) -> ByRow:
        """The values of the rows at the sites."""
        return by_method(self.results.store, self.results.records, "sites")

    @property
    def remedies(self) -> list[str]:
        """The names of the remedies, the best mean first. Those with runs that did not finish come last."""
        measure, rows = self.results.measure, self.rows
        sign = 1 if measure.ahead == "higher" else -1
        names = [name for name, row in rows.items() if name not in self.costs and row["seeds"]]
        return sorted(names, key=lambda name: (self.finished(name), sign * rows[name][measure.key]), reverse=True)

    def finished(self, name: str) -> bool:
        """Whether all runs of an arm finished. Else its mean is over those that did not diverge, and it is not decided."""
        return bool(self.rows[name]["finished"] == self.rows[name]["runs"])

    @property
    def decision(self) -> str:
        """The name of the arm to use: FedAvg, unless a remedy is better by the corrected verdict; among those, the best mean."""
        ahead = [name for name in self.remedies if self.rows[name]["verdict"] == self.results.measure.ahead]
        ahead = [name for name in ahead if self.finished(name)]
        return (ahead or self.costs)[0]

    @property
    def shown_remedy(self) -> str:
        """The remedy in the table of the sites: the decided arm or, if this is FedAvg, the best remedy."""
        return self.decision if self.decision != self.costs[0] else next(iter(self.remedies), self.costs[0])

    @cached_property
    def over_alone(self) -> dict[str, words.Row]:
        """The summary of the arms that join, with differences from sites that train alone, by name."""
        alone, joint = self.costs[-1], {self.costs[0], *self.remedies}
        runs = [record for record in self.results.runs if record.name in {alone, *joint}]
        runs.sort(key=lambda record: record.name != alone)
        rows = words.rows_of(replace(self.results, runs=runs).summary)
        return {row["method"]: row for row in rows if row["method"] != alone}

    def at_sites(self, name: str, other: str) -> dict[str, words.Row]:
        """Return by site the difference of an arm from another: mean, half-width and the verdict, corrected over the sites."""
        ours, theirs, by_name = self.by_row.get(name, {}), self.by_row.get(other, {}), dict[str, words.Row]()
        drawn = splits(self.results.records, "sites")
        gaps = values_of_rows(ours, theirs, sorted(ours.keys() & theirs.keys()))
        for site in dict.fromkeys(by_site(self.results)["site"]):
            at_site = [ids_of(gap) >> 32 == number_of(site) for gap in gaps]
            parts = [Stored(0, gap.values[at], ids_of(gap)[at]) for gap, at in zip(gaps, at_site, strict=True)]
            means = [float(part.values.mean()) for part in parts if len(part.values) > 1]
            whole = over_rows(parts, means, drawn) if len(means) == len(parts) else None
            if whole:
                by_name[site] = {"difference": whole.mean, "difference_half": whole.half(), "p": whole.p()}
        for row, p in zip(by_name.values(), holm([row["p"] for row in by_name.values()]), strict=True):
            row["verdict"] = decided(p, row["difference"])
        return by_name

    def reached(self, name: str) -> str:
        """What an arm reached, in words."""
        measure, row = self.results.measure, self.rows[name]
        return f"{words.with_interval(measure, row[measure.key], row[f'{measure.key}_half'])} {measure.label}"

    def sentences(self) -> tuple[str, str]:
        """Return the decision, and whether joining helps."""
        measure, name, rows = self.results.measure, self.decision, self.rows
        use = f"Use {title_of(name)}, tuned ({self.settings[name]}): {self.reached(name)}"
        if name == self.costs[0]:
            use += "; no remedy is reliably better."
        else:
            use += f", {difference(measure, rows[name])} more than {title_of(self.costs[0])}."
        return use, self.on_joining()

    def on_joining(self) -> str:
        """Say whether joining helps, and for which sites the answer differs."""
        measure, name, alone = self.results.measure, self.decision, self.costs[-1]
        joint = self.over_alone
        if name not in joint or alone not in self.rows:
            return "Whether joining helps was not measured."
        gained = difference(measure, joint[name])
        if all(row["verdict"] == measure.behind for row in joint.values()):
            text, usual = f"Joining does not help: every site alone is better ({gained} by joining)", measure.behind
        elif joint[name]["verdict"] == measure.ahead:
            text, usual = f"Joining helps: {gained} over each site alone", measure.ahead
        else:
            text, usual = f"Whether joining helps is undecided: {gained} over each site alone", "undecided"
        at_sites, apart = self.at_sites(name, alone), list[str]()
        for verdict, verb in ((measure.ahead, "gain"), (measure.behind, "lose")):
            sites = [site for site, row in at_sites.items() if row["verdict"] == verdict != usual]
            if sites:
                apart.append(f"{listed(sites)} {verb}{'s' * (len(sites) == 1)}")
        return text + (f"; but {listed(apart)}." if apart else ".")

    def arms(self, names: Sequence[str]) -> Cells:
        """Return the table of some arms."""
        measure, rows = self.results.measure, [self.rows[name] for name in names if name in self.rows]
        return {
            "": [title_of(row["method"]) for row in rows],
            f"{measure.name.replace('_', ' ')} {measure.unit}".strip(): [words.shown(measure, row) for row in rows],
            f"vs {title_of(self.costs[0])}": [words.difference(measure, row) if row["verdict"] else "" for row in rows],
            "verdict": [row["verdict"] for row in rows],
            "setting": [self.settings.get(row["method"], "") for row in rows],
        }

    def sites(self) -> Cells:
        """Return the table of the sites: joint, alone and `shown_remedy`, what joining brings, the rarest class."""
        arms = {self.shown_remedy: "remedy", self.costs[0]: "joint", self.costs[-1]: "alone"}
        runs = [replace(record, name=arms[record.name]) for record in self.results.runs if record.name in arms]
        cells = readable_by_site(replace(self.results, runs=runs))
        gained, measure = self.at_sites(self.decision, self.costs[-1]), self.results.measure
        cells["joining"] = [
            f"{words.difference(measure, gained[site])} {gained[site]['verdict']}" if site in gained else words.MISSING
            for site in cells.get("site", ())
        ]
        return cells if cells["joining"] else {}

    def of_groups(self) -> Cells:
        """Return the table of the groups of rows: rows, joint, alone, decided."""
        measure = self.results.measure
        arms = dict.fromkeys((self.costs[0], self.costs[-1], self.decision))
        cells: Cells = {"group": [*self.groups], "rows": [str(len(ids)) for ids in self.groups.values()]}
        for arm in arms:
            stored = [*self.by_row.get(arm, {}).values()]
            means = [
                np.mean([of.values[np.isin(ids_of(of), ids)].mean() for of in stored]) for ids in self.groups.values()
            ]
            cells[f"{title_of(arm)} {measure.unit}".strip()] = [words.plain(measure, float(mean)) for mean in means]
        return cells if self.groups else {}

    def sure(self) -> list[str]:
        """Return sentences on certainty: where numbers vary, what would decide the best remedy, and what was left out."""
        import pandas as pd

        best = [{**self.rows[name], "method": title_of(name)} for name in self.remedies[:1]]
        undecided = on_verdicts(pd.DataFrame(best), self.results.measure) if best else []
        lost = [
            f"{row['runs'] - row['finished']} of {row['runs']} runs of {title_of(arm)} did not finish; its mean is over the "
            "others, so it is not decided"
            for arm, row in self.rows.items()
            if not self.finished(arm)
        ]
        sentences = (*lost, *how_sure(self.results.titled), *undecided, *self.notes)
        return [capital(text) for text in sentences]


def ids_of(stored: Stored) -> NDArray[np.int64]:
    """Return the ids of the units; their numbers where the store has none."""
    return np.arange(len(stored.values)) if stored.units is None else stored.units


def title_of(name: str) -> str:
    """Return an arm's name for readers."""
    return str(name_of(name))


def values(findings: Findings) -> dict[str, object]:
    """Return the findings as plain values, for ``--json``."""
    of_page = {name: getattr(findings, name) for name in ("decision", "settings", "commands", "diagnosis")}
    tables = {
        "arms": findings.results.summary.to_dict("records"),
        "sites": findings.sites(),
        "groups": findings.of_groups(),
    }
    return {**of_page, **tables, "sentences": findings.sentences(), "sure": findings.sure()}


def printed(findings: Findings) -> list[str]:
    """Return the findings as at most `LINES` lines of `WIDTH` characters for a terminal."""
    remedies, sites, diagnosis = findings.remedies, findings.sites(), findings.diagnosis
    differ = [
        diagnosed.answer(diagnosis),
        *diagnosis["repairs"][:1],
        *(part["text"] for part in diagnosis["columns"][:1]),
    ]
    first_sites = {heading: cells[:MOST_SITES] for heading, cells in sites.items() if RECALL not in heading}
    first_sites |= {"site": [shorten(name, NAME) for name in first_sites["site"]]} if sites else {}
    further = len(sites.get("site", ())) - MOST_SITES
    whom = [f"For whom (remedy: {title_of(findings.shown_remedy)})", *aligned(first_sites)] if sites else []
    whom += [f"  {count(further, 'more site')}: see the page"] * (further > 0)
    costs = [name for name in findings.costs if name in findings.rows]
    arms = findings.arms([*costs, *remedies])
    table = aligned({heading: cells for heading, cells in arms.items() if heading != "setting"})
    first, helps = table[: 1 + len(costs)], table[1 + len(costs) :]
    lines = [
        *wrapped("Decision: ", " ".join(findings.sentences()), 5),
        *wrapped("How different: ", ". ".join(text.rstrip(".") for text in differ) + ".", 3),
        f"What it costs{first[0][13:]}",
        *first[1:],
        "What helps",
    ]
    sure = fitting("How sure: ", findings.sure(), 4)
    room = LINES - len(lines) - len(whom) - len(sure)
    if len(helps) > room:
        helps = [*helps[: room - 1], f"  {len(helps) - room + 1} more: see the page"]
    return [*lines, *helps, *whom, *sure]


def fitting(head: str, sentences: Sequence[str], most: int) -> list[str]:
    """Wrap the first sentences that fit into this number of lines as a whole, at least one."""
    wholes = [". ".join(sentences[:number]) + "." for number in range(len(sentences), 0, -1)]
    return wrapped(head, next((text for text in wholes if len(wrapped(head, text)) <= most), wholes[-1]), most)


def wrapped(head: str, text: str, most: int | None = None) -> list[str]:
    """Wrap a text to at most this number of lines, if given."""
    return textwrap.wrap(head + text, WIDTH, subsequent_indent="  ", max_lines=most, placeholder=" … (see the page)")


def aligned(cells: Cells) -> list[str]:
    """Return a table as lines: the first column left, the others right."""
    columns = [[heading, *column] for heading, column in cells.items()]
    widths = [max(map(len, column)) for column in columns]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in zip(*columns, strict=True)
    ]


def page(findings: Findings) -> str:
    """Return the page as HTML text."""
    results = findings.results.titled
    return rendered(
        "study.html",
        findings=findings,
        remedy=title_of(findings.shown_remedy),
        differ=diagnosed.answer(findings.diagnosis),
        faces=diagnosed.face_figure(findings.diagnosis),
        columns=diagnosed.column_figure(findings.diagnosis),
        most_clients=diagnosed.MOST_CLIENTS,
        differences=differences(results).on_page(),
        covered=covered(results.summary, results.measure),
        rule=verdict_rule(results.summary, results.measure),
    )


def write_study(findings: Findings, path: str | Path) -> Path:
    """Write the page; raises `FedskewError` if the file cannot be written."""
    return write_whole(path, page(findings), "page")

"""What a study found, for the terminal and as a page: six questions, and the decision."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.groups import grouped
from fedskew.core.text import capital, count, listed, percent
from fedskew.measure.statistics import decided, holm, mean_interval, paired_p
from fedskew.report import diagnosis as diagnosed, tables, words
from fedskew.report.answer import difference, how_sure
from fedskew.report.experiments import name_of, observations
from fedskew.report.plots import differences
from fedskew.report.series import RECALL, Results, readable_by_site, values_at_sites
from fedskew.report.style import rendered, shorten
from fedskew.store.test_rows import Stored, number_of

WIDTH, LINES, MOST_SITES, FEWEST_REMEDIES, NAME = 80, 29, 5, 2, 18
"""Of the printed text: width, most lines, most sites, longest name of a site. Remedies take the lines that are left."""

HARMONISED = "FedAvg + "
"""Start of the names of arms that are FedAvg with a harmonisation."""

NO_SITES = "the clients are dealt, or the data do not say from which site a test row is"

BASELINE = "One answer at each site"
"""Row of the costs without a model: the best constant answer of each site's own rows."""

FEWEST_ROWS = 20
"""A site with fewer rows has few classes by chance."""

CONSTANT = "constant_of_sites"
"""The measurement of this row."""

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
    commands: list[str]  # to use the decision, once it is known
    groups: Mapping[str, NDArray[np.int64]]  # ids of the rows of each group, as the store has them

    @cached_property
    def rows(self) -> dict[str, words.Row]:
        """The summary of each arm, by name."""
        return {row["method"]: row for row in words.rows_of(self.results.summary)}

    @cached_property
    def by_row(self) -> tables.ByRow:
        """The values of the rows at the sites."""
        return tables.by_method(self.results.store, self.results.records, "sites")

    @property
    def references(self) -> list[str]:
        """The names of the rows in the table of costs."""
        names = [name for name in self.costs if name in self.rows]
        return [*names, BASELINE] if math.isfinite(self.baseline) else names

    @cached_property
    def by_mean(self) -> list[str]:
        """The names of the remedies, the best mean first. Those with runs that did not finish come last."""
        rows, key, sign = self.rows, self.results.measure.key, self.results.measure.sign
        names = [name for name, row in rows.items() if name not in self.costs and row["seeds"]]
        return sorted(names, key=lambda name: (self.finished(name), sign * rows[name][key]), reverse=True)

    @property
    def remedies(self) -> list[str]:
        """The names of the remedies: the decided one, then the others, the best mean first."""
        return sorted(self.by_mean, key=lambda name: name != self.decision)

    def finished(self, name: str) -> bool:
        """Whether all runs of an arm finished. Else its mean is over those that did not diverge, and it is not decided."""
        return bool(self.rows[name]["finished"] == self.rows[name]["runs"])

    @property
    def ahead(self) -> list[str]:
        """The names of the remedies that are better than FedAvg by the corrected verdict, the best mean first."""
        measure, rows = self.results.measure, self.rows
        return [name for name in self.by_mean if rows[name]["verdict"] == measure.ahead and self.finished(name)]

    @cached_property
    def decision(self) -> str:
        """The name of the arm to use: FedAvg, unless a remedy is better; among those, the best mean.

        A harmonisation, which leaves one model for all sites, goes before a method that is not reliably better than it.
        """
        best, *others = self.ahead or self.costs
        simple = [name for name in others if name.startswith(HARMONISED)]
        if not self.ahead or best.startswith(HARMONISED) or not simple:
            return best
        behind, over_best = self.results.measure.behind, self.over(best)
        return next((name for name in simple if over_best[name]["verdict"] != behind), best)

    @property
    def shown_remedy(self) -> str:
        """The remedy in the table of the sites: the decided arm or, if this is FedAvg, the best remedy."""
        return self.decision if self.decision != self.costs[0] else next(iter(self.remedies), self.costs[0])

    def over(self, name: str) -> dict[str, words.Row]:
        """Return the summary of the arms that join, with differences from this arm, by name."""
        joint = {name, self.costs[0], *self.by_mean}
        runs = sorted((run for run in self.results.runs if run.name in joint), key=lambda run: run.name != name)
        rows = words.rows_of(replace(self.results, runs=runs).summary)
        return {row["method"]: row for row in rows if row["method"] != name}

    @cached_property
    def over_alone(self) -> dict[str, words.Row]:
        """The summary of the arms that join, with differences from sites that train alone, by name."""
        return self.over(self.costs[-1])

    @cached_property
    def site_values(self) -> dict[tuple[str, tables.Seeds, str], float]:
        """The primary metric by arm, seeds and site."""
        observed, table = observations(self.results.records), values_at_sites(self.results)
        rows = words.rows_of(table[table["name"] == self.results.measure.name])
        values = grouped(((row["method"], observed[row["run"]], row["client_name"]), row["value"]) for row in rows)
        return {key: float(np.mean(of_runs)) for key, of_runs in values.items()}

    @cached_property
    def is_mean_of_rows(self) -> bool:
        """Whether the metric of some rows is the mean of their values. It is for accuracy; RMSE and F1 are no means over rows."""
        return all(
            np.isclose(of_site(stored, site).values.mean(), value, rtol=1e-4, atol=1e-6)
            for (arm, seeds, site), value in self.site_values.items()
            if (stored := self.by_row.get(arm, {}).get(seeds))
        )

    def at_sites(self, name: str, other: str) -> dict[str, words.Row]:
        """Return by site the difference of an arm from another: mean, half-width and the verdict, corrected over the sites."""
        ours, theirs = self.by_row.get(name, {}), self.by_row.get(other, {})
        measured = dict[str, tuple[float, float, float]]()
        drawn, values = tables.splits(self.results.records, "sites"), self.site_values
        done = tables.finished_seeds(self.results.records)
        gaps = tables.values_of_rows(ours, theirs, sorted(ours.keys() & theirs.keys())) if self.is_mean_of_rows else []
        for site in dict.fromkeys(site for _, _, site in values):
            seeds = [key for arm, key, where in values if (arm, where) == (name, site) and (other, key, site) in values]
            seeds = [key for key in seeds if done[name, key] == done[other, key]]
            at_site = [values[name, key, site] - values[other, key, site] for key in seeds]
            parts = [of_site(gap, site) for gap in gaps] if len(gaps) == len(at_site) else []
            tested = [of_site(stored, site) for stored in ours.values()]
            if at_site and any(len(part.values) < 2 for part in tested):  # its splits test the same few rows again
                measured[site] = float(np.mean(at_site)), math.nan, math.nan
            elif whole := tables.over_rows(parts, at_site, drawn):
                measured[site] = whole.mean, whole.half(), whole.p()
            elif len(at_site) > 1:
                measured[site] = *mean_interval(at_site), paired_p(at_site)
        corrected = holm([p for _, _, p in measured.values()])
        return {  # equal differences have no standard error
            site: {"difference": mean, "difference_half": half or math.nan, "p": p, "verdict": decided(of_all, mean)}
            for (site, (mean, half, p)), of_all in zip(measured.items(), corrected, strict=True)
        }

    def reached(self, name: str) -> str:
        """What an arm reached, in words."""
        measure, row = self.results.measure, self.rows[name]
        return f"{words.with_interval(measure, row[measure.key], row[f'{measure.key}_half'])} {measure.label}"

    @cached_property
    def baseline(self) -> float:
        """The primary metric if each site always gives the best constant answer of its own rows; NaN if this is not known."""
        runs = [run.id for run in self.results.runs if run.name == self.costs[0] and run.status == "finished"]
        values = [m.value for m in self.results.store.last(runs, [f"sites/{CONSTANT}"])]
        return float(np.mean(values)) if values else math.nan

    @cached_property
    def over_baseline(self) -> tuple[float, float]:
        """By how much the decided arm is better than `baseline`: mean and half-width over partitions; NaN if this is not known."""
        measure, runs = self.results.measure, [run for run in self.results.runs if run.name == self.decision]
        stored = {
            (m.run, m.name): m.value
            for m in self.results.store.last([run.id for run in runs], [f"sites/{measure.name}", f"sites/{CONSTANT}"])
        }
        gaps = grouped(
            (run.partition_seed, measure.sign * (stored[run.id, measure.name] - stored[run.id, CONSTANT]))
            for run in runs
            if (run.id, CONSTANT) in stored and (run.id, measure.name) in stored
        )
        means = [float(np.mean(of_partition)) for of_partition in gaps.values()]
        return mean_interval(means)

    @cached_property
    def few_classes(self) -> str:
        """Say which sites have one or two of more classes, as their rows show nothing of the others; empty if none has."""
        runs = [record for record in self.results.runs if record.name == self.costs[0]]
        if not runs or runs[0].facts.get("sites", {}).get("rarest") is None:
            return ""
        # a run's partition lacks the rows that are tested or held out
        names, rows = self.diagnosis["client_names"], np.array(self.diagnosis["label_counts"])
        number, classes = (rows > 0).sum(axis=1), int(rows.any(axis=0).sum())
        few = np.flatnonzero((number <= 2) & (number < classes) & (rows.sum(axis=1) >= FEWEST_ROWS))
        if not len(few):
            return ""
        whose = f"{names[few[0]]} has" if len(few) == 1 else f"{len(few)} of {len(rows)} sites have"
        usual = percent(float(rows[few].max(axis=1).sum() / rows[few].sum()))
        return (
            f"{whose} only {number[few].max()} of {classes} classes: alone, a site is tested on these only, where "
            f"one answer is right for {usual} of the rows."
        )

    def sentences(self) -> list[str]:
        """Return the decision: what to mend first, whether to join, and the arm to use."""
        measure, name = self.results.measure, self.decision
        few_limit = " for rows of each site's own classes" * bool(self.few_classes)
        use = f"{title_of(name)}, tuned ({self.settings[name]}): {self.reached(name)}"
        use += f", {difference(measure, self.rows[name])} against {title_of(self.costs[0])}" * (name != self.costs[0])
        use += "; no remedy is reliably better" * (name == self.costs[0])
        if self.ahead and self.ahead[0] != name:
            use += f"; {title_of(self.ahead[0])} is ahead of it, but not reliably"
        mean, half = self.over_baseline
        if mean <= (half if math.isfinite(half) else 0.0):  # not so for NaN
            worse = "no" if mean <= 0 else "not reliably"
            reached = words.with_interval(measure, self.baseline, math.nan)
            use += f". Without a model, one answer at each site is {worse} worse: {reached}"
        mend = "First mend the data (see How different), then repeat: the rest is for the data as they are."
        joined = [f"Use {use}.", self.joining, self.few_classes]
        apart = [f"Do not join{few_limit}: {self.joining}", self.few_classes, f"If they join all the same, use {use}."]
        return list(filter(None, [mend * bool(self.diagnosis["repairs"]), *(apart if self.apart else joined)]))

    @property
    def less(self) -> str:
        """What to say after a number if less is better."""
        return " (less is better)" if self.results.measure.ahead == "lower" else ""

    @property
    def apart(self) -> bool:
        """Whether every arm that joins is worse than sites that train alone."""
        joint = self.over_alone if self.costs[-1] in self.rows else {}
        return bool(joint) and all(row["verdict"] == self.results.measure.behind for row in joint.values())

    @property
    def used(self) -> str:
        """The name of the arm to train for use: the decided one, or sites that train alone if joining does not help."""
        return self.costs[-1] if self.apart else self.decision

    @property
    def joining(self) -> str:
        """Say whether joining helps, and for which sites the answer differs."""
        measure, name, alone, joint = self.results.measure, self.decision, self.costs[-1], self.over_alone
        if name not in joint or alone not in self.rows:
            return "Whether joining helps was not measured."
        gained, apart = f"{difference(measure, joint[name])}{self.less}", list[str]()
        if self.apart:
            text, usual = f"sites that train alone reach {self.reached(alone)}", measure.behind
            text += f"; the best that joins, {title_of(name)}, reaches {self.reached(name)}, {gained}"
        elif joint[name]["verdict"] == measure.ahead:
            text, usual = f"Joining helps: {gained} over sites that train alone", measure.ahead
        else:
            text, usual = f"Whether joining helps is undecided: {gained} over sites that train alone", "undecided"
        at_sites = self.at_sites(name, alone)
        for verdict, verb in ((measure.ahead, "gain"), (measure.behind, "lose")):
            if sites := [site for site, row in at_sites.items() if row["verdict"] == verdict != usual]:
                apart.append(f"{listed(sites)} {verb}{'s' * (len(sites) == 1)}")
        return text + (f"; but {listed(apart)}." if apart else ".")

    def arms(self, names: Sequence[str]) -> Cells:
        """Return the table of some arms."""
        measure = self.results.measure
        alone: words.Row = {measure.key: self.baseline, f"{measure.key}_half": math.nan, "verdict": ""}
        rows = [self.rows[name] if name != BASELINE else {"method": BASELINE, **alone} for name in names]
        reached = f"{measure.name.replace('_', ' ')} {measure.unit}".strip() + self.less
        return {
            "": [title_of(row["method"]) for row in rows],
            reached: [words.cell_text(measure, row) for row in rows],
            f"vs {title_of(self.costs[0])}": [words.difference(measure, row) if row["verdict"] else "" for row in rows],
            "verdict": [words.MISSING if row["method"] == BASELINE else row["verdict"] for row in rows],
            "setting": [self.settings.get(row["method"], "") for row in rows],
        }

    def sites(self) -> Cells:
        """Return the table of the sites: joint, alone and `shown_remedy`, what joining brings, the rarest class.

        Sites with a decided difference are first, and of these the one that loses most by joining.
        """
        arms = {self.shown_remedy: "remedy", self.costs[0]: "joint", self.costs[-1]: "alone"}
        runs = [replace(record, name=arms[record.name]) for record in self.results.runs if record.name in arms]
        cells = readable_by_site(replace(self.results, runs=runs))
        gained, measure = self.at_sites(self.decision, self.costs[-1]), self.results.measure
        cells["joining"] = [
            f"{words.difference(measure, gained[site])} {gained[site]['verdict']}" if site in gained else words.MISSING
            for site in cells.get("site", ())
        ]
        if not cells["joining"]:
            return {}
        losses = [measure.sign * gained[site]["difference"] if site in gained else math.inf for site in cells["site"]]
        order = sorted(range(len(losses)), key=lambda at: ("undecided" in cells["joining"][at], losses[at]))
        titles = {"rows": "test rows"}
        return {titles.get(title, title): [column[at] for at in order] for title, column in cells.items()}

    def of_groups(self) -> Cells:
        """Return the table of the groups of rows: rows, joint, alone, decided."""
        measure = self.results.measure
        arms = dict.fromkeys((self.costs[0], self.costs[-1], self.decision))
        cells: Cells = {"group": [*self.groups], "rows": [str(len(ids)) for ids in self.groups.values()]}
        for arm in arms:
            stored = [*self.by_row.get(arm, {}).values()]
            tested = [[of.values[np.isin(ids_of(of), ids)] for of in stored] for ids in self.groups.values()]
            # some partitions may test no row of a small group
            of_splits = [[float(part.mean()) for part in parts if len(part)] for parts in tested]
            means = [float(np.mean(each)) if each else math.nan for each in of_splits]
            cells[f"{title_of(arm)} {measure.unit}".strip()] = [words.plain(measure, mean) for mean in means]
        return cells if self.groups and self.is_mean_of_rows else {}

    def sure(self) -> list[str]:
        """Return sentences on certainty: where numbers vary, what would decide the best remedy, and what was left out."""
        import pandas as pd

        best = [{**self.rows[name], "method": title_of(name)} for name in self.by_mean[:1]]
        undecided = tables.on_verdicts(pd.DataFrame(best), self.results.measure) if best else []
        lost = [
            f"{row['runs'] - row['finished']} of {row['runs']} runs of {title_of(arm)} did not finish; its mean is over the "
            "others, so it is not decided"
            for arm, row in self.rows.items()
            if not self.finished(arm)
        ]
        measure = self.results.measure.title
        if self.groups and not self.is_mean_of_rows:
            lost.append(f"no table by group: the {measure} is no mean over rows, or is stored for several rows at once")
        return [capital(text) for text in (*lost, *how_sure(self.results.titled), *undecided, *self.notes)]


def of_site(stored: Stored, site: str) -> Stored:
    """Return the values of the rows of a site."""
    at = ids_of(stored) >> 32 == number_of(site)
    return stored._replace(values=stored.values[at], units=ids_of(stored)[at])


def ids_of(stored: Stored) -> NDArray[np.int64]:
    """Return the ids of the units; their numbers where the store has none."""
    return np.arange(len(stored.values)) if stored.units is None else stored.units


def title_of(name: str) -> str:
    """Return an arm's name for readers."""
    return str(name_of(name))


def values(findings: Findings) -> dict[str, object]:
    """Return the findings as plain values, for ``--json``."""
    of_page = {name: getattr(findings, name) for name in ("decision", "settings", "commands", "diagnosis")}
    arms = findings.results.summary.to_dict("records")
    of_tables = {"arms": arms, "sites": findings.sites(), "groups": findings.of_groups()}
    return {**of_page, **of_tables, "sentences": findings.sentences(), "sure": findings.sure()}


def printed(findings: Findings) -> list[str]:
    """Return the findings as at most `LINES` lines of `WIDTH` characters for a terminal."""
    remedies, sites, diagnosis = findings.remedies, findings.sites(), findings.diagnosis
    differ = [diagnosed.answer(diagnosis), *diagnosis["repairs"], *(part["text"] for part in diagnosis["columns"][:1])]
    arms, references = findings.arms([*findings.references, *remedies]), len(findings.references)
    table = aligned({heading: cells for heading, cells in arms.items() if heading != "setting"})
    first, helps = table[: 1 + references], table[1 + references :]
    lines = [
        *wrapped("Decision: ", " ".join(findings.sentences()), 7),
        *fitting("How different: ", differ, 5),
        f"What it costs{first[0][13:]}",
        *first[1:],
        "What helps",
    ]
    sure = fitting("How sure: ", findings.sure(), 4)
    room = LINES - len(lines) - len(sure)
    remedy, chosen = findings.shown_remedy, findings.shown_remedy == findings.decision
    head = f"For whom (remedy: {title_of(remedy)}{'' if chosen else ', tried and not chosen'}){findings.less}"
    no_table = wrapped("For whom: ", f"no table: {NO_SITES}")
    whom = [head, *shortened(sites, room - FEWEST_REMEDIES - 1)] if sites else no_table
    room -= len(whom)
    if len(helps) > room:
        helps = [*helps[: room - 1], f"  {len(helps) - room + 1} more: see the page"]
    return [*lines, *helps, *whom, *sure]


def shortened(sites: Cells, most: int) -> list[str]:
    """Return the table of the first sites as at most this number of lines, without the recall of the rarest class."""
    number = len(sites["site"])
    shown = min(MOST_SITES, number if number < most else most - 2)
    cells = {heading: column[:shown] for heading, column in sites.items() if RECALL not in heading}
    cells["site"] = [shorten(name, NAME) for name in cells["site"]]
    more = [f"  {count(number - shown, 'more site')}: see the page"] if number > shown else []
    return [*aligned(cells), *more]


def fitting(head: str, sentences: Sequence[str], most: int) -> list[str]:
    """Wrap the first sentences that fit into this number of lines as a whole, at least one."""
    sentences = [text.rstrip(".") for text in sentences]
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
        "  " + "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip()
        for first, *others in zip(*columns, strict=True)
    ]


def page(findings: Findings) -> str:
    """Return the page as HTML text."""
    results = findings.results.titled
    return rendered(
        "study.html",
        findings=findings,
        remedy=title_of(findings.shown_remedy),
        rarest=findings.results.records[0].facts.get("sites", {}).get("rarest"),
        no_sites=f"No table: {NO_SITES}",
        differ=diagnosed.answer(findings.diagnosis),
        faces=diagnosed.face_figure(findings.diagnosis),
        columns=diagnosed.column_figure(findings.diagnosis),
        most_clients=diagnosed.MOST_CLIENTS,
        differences=differences(results).on_page(),
        covered=tables.covered(results.summary, results.measure),
        rule=tables.verdict_rule(results.summary, results.measure),
    )

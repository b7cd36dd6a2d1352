"""What a comparison says in sentences: the answer, how sure it is, warnings, remarks, and where the time went."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.core.groups import grouped
from fedskew.core.text import capital, count, listed, percent
from fedskew.measure.registry import Measure, primary_of
from fedskew.measure.statistics import Components, shared_by_rows, variance_components
from fedskew.report.experiments import own_clients, pooled, shares_no_model, stored_section, titled
from fedskew.report.series import Results
from fedskew.report.tables import by_method, repeats, same_rows, splits
from fedskew.report.words import Row, cell_text, gap, heading, plain, rows_of, value, within
from fedskew.store.records import Json, Sign
from fedskew.store.runs import RunRecord

MOST_NAMES = 5
"""Maximum length of a list of methods. A longer list ends in ``and 3 more``."""


def answer(results: Results) -> str:
    """Say which method is best by the primary measure, and how certain this is."""
    rows, measure, label = rows_of(results.summary), results.measure, results.measure.label
    measured = sorted(
        (row for row in rows if math.isfinite(row[measure.key])),
        key=lambda row: float(row[measure.key]),
        reverse=measure.ahead == "higher",
    )
    if not measured and not any(row["finished"] for row in rows):
        return "No run has finished, so there is no answer yet."
    if not measured:
        return f"No method has a {label}, so they cannot be compared by it."
    first, others = rows[0], [row for row in measured if row is not rows[0]]
    if len(rows) == 1:
        return alone(measure, first)
    best = f"{measured[0]['method']} has the {superlative(measure)} mean {label}, {number(measure, measured[0])}"
    if not math.isfinite(first[measure.key]):
        why = "has finished" if not first["finished"] else f"has a {label}"
        return f"Undecided: no run of {first['method']}, the method to compare with, {why}. {best}."
    if all(row["pairs"] < 2 for row in others):
        return f"Undecided: {too_few(others)}. {best}."
    ahead, behind, equivalent, undecided = (
        [row for row in others if row["verdict"] == verdict]
        for verdict in (measure.ahead, measure.behind, "equivalent", "undecided")
    )
    if equivalent and not (ahead or behind or undecided):
        which = f"{names_of(equivalent)} {'is' if len(equivalent) == 1 else 'are'} equivalent to {first['method']}"
        return f"{which} within {within(measure, first['margin'])}. {best}."
    if not (ahead or behind or equivalent):
        which = f"{others[0]['method']} does not differ" if len(rows) == 2 else "no method differs"
        more = not_enough(measure, first, measured[0])
        return f"Undecided: {which} reliably from {first['method']}. {best}{more}."
    if ahead:
        than = f"{first['method']}: {number(measure, ahead[0])} against {number(measure, first)}"
        head = f"{ahead[0]['method']} has a {measure.ahead} {label} than {than}, {difference(measure, ahead[0])}"
    else:
        head = f"No method has a reliably {measure.ahead} {label} than {first['method']}, {number(measure, first)}"
    if measured[0] in undecided:
        best_one = {**measured[0], "method": f"{measured[0]['method']}, {superlative(measure)} mean"}
        undecided = [best_one, *undecided[1:]]
    groups = {f"also {measure.ahead}": ahead[1:], measure.behind: behind}
    groups |= {"equivalent": equivalent, "undecided": undecided}
    rest = "; ".join(f"{word}: {names_of(group)}" for word, group in groups.items() if group)
    return f"{head}." + (f" {capital(rest)}." if rest else "")


def number(measure: Measure, row: Row) -> str:
    """Format the measure of a method with its unit: ``84.7 %``."""
    return value(measure, row[measure.key])


def superlative(measure: Measure) -> str:
    return "highest" if measure.ahead == "higher" else "lowest"


def names_of(rows: Sequence[Row]) -> str:
    """List the methods' names; after `MOST_NAMES` minus 1 names, only say how many more there are."""
    names = [str(row["method"]) for row in rows]
    if len(names) > MOST_NAMES:
        names[MOST_NAMES - 1 :] = [f"{len(names) - MOST_NAMES + 1} more"]
    return listed(names)


def difference(measure: Measure, row: Row) -> str:
    """Format a method's difference from the first: ``+5.1 ± 1.2 points over 5 paired seeds (p = 0.01)``."""
    unit = " points" if measure.unit == "%" else ""
    width = f" ± {gap(measure, row['difference_half'])[1:]}" if math.isfinite(row["difference_half"]) else ""
    p = f" (p\u00a0=\u00a0{row['p']:.2g})" if math.isfinite(row["p"]) else ""
    each = "" if width else " each of"
    return f"{gap(measure, row['difference'])}{width}{unit} over{each} {count(row['pairs'], 'paired ' + row['observed'])}{p}"


def not_enough(measure: Measure, first: Row, best: Row) -> str:
    """In an undecided comparison, say how the best method differs from the ``first``, or why this is unknown."""
    if best is first:
        return ""
    if best["pairs"] < 2:
        return f", but {too_few([best])}"
    return f"; its difference from {first['method']}, {number(measure, first)}, is {difference(measure, best)}"


def alone(measure: Measure, row: Row) -> str:
    """Say what a single method reaches, with its interval over seeds."""
    after, reached = f"after round {row['after_round']}", f"{row['method']} reaches a {measure.label} of"
    if row["seeds"] < 2:
        return f"{reached} {number(measure, row)} {after}. With one seed nothing can be said about certainty."
    over = f"mean and 95\u00a0% interval over {count(row['seeds'], row['observed'])}; it covers the {row['covers']}"
    return f"{reached} {cell_text(measure, row)}\u00a0{measure.unit}".strip() + f" {after}: {over}."


def too_few(rows: Sequence[Row]) -> str:
    """Say why there is no interval: no common seeds, or only one seed."""
    if not any(row["pairs"] for row in rows):
        return "no seed was finished by both, so nothing can be said about certainty"
    return "with one seed nothing can be said about certainty"


OF_PARTITION = ("missing class", "absent class", "dominated", "collapsed")
"""Kinds of warnings about the partition. They do not depend on the method."""


@dataclass(frozen=True)
class Notice:
    """A warning: ``text`` says what was measured and what to try, ``where`` in which runs, ``hint`` gives threshold and source."""

    text: str
    where: str
    hint: str


def notices(records: Sequence[RunRecord], of_partition: bool = False) -> list[Notice]:
    """Return the warnings for the report: those about the partition, or all others. The first run with one gives its text."""
    texts: list[Notice] = []
    for kind, seen in by_kind(records).items():
        if (kind in OF_PARTITION) != of_partition:
            continue
        record, entry = seen[0]
        text = f"{capital(kind)}: {entry.get('measured', entry['line'])}."
        remedy = f" Try {entry['remedy']}." if entry.get("remedy") else ""
        where = f"{len(seen)} of {count(len(records), 'run')}; first in run {record.id}" if len(records) > 1 else ""
        if where and not of_partition:
            where = runs_with(seen, records).removeprefix(" in ")
        hint = "; ".join(filter(None, [entry.get("threshold", ""), entry.get("source", "")]))
        texts.append(Notice(text + remedy, where, hint))
    return texts


def by_kind(records: Sequence[RunRecord]) -> dict[str, list[tuple[RunRecord, Sign]]]:
    """Group the stored warnings by kind; each stands with its run."""
    return grouped((entry["kind"], (record, entry)) for record in records for entry in record.facts.get("warnings", []))


def warnings(records: Sequence[RunRecord]) -> list[str]:
    """Return one line for each kind of warning: the runs that have it, and the text of the first."""
    return [f"{kind}{runs_with(seen, records)}, {seen[0][1]['line']}" for kind, seen in by_kind(records).items()]


def runs_with(seen: Sequence[tuple[RunRecord, Sign]], records: Sequence[RunRecord]) -> str:
    """Say which runs have a warning: `` in 2 of 5 runs of fedavg and 1 of 5 of scaffold: run 7``.

    The text is shorter if all runs have it, and empty for a single run.
    """
    if len(records) == 1:
        return ""
    first = f": run {seen[0][0].id}"
    if len(seen) == len(records):
        return f" in all {len(records)} runs{first}"
    of, showing = (Counter(record.name for record in group) for group in (records, [record for record, _ in seen]))
    parts = [f"{number} of {count(of[name], 'run')} of {name}" for name, number in showing.items()]
    return f" in {listed(parts)}{first}"


def remarks(records: Sequence[RunRecord]) -> list[str]:
    """Return the remarks: methods without comparable values, rows and clients that are left out or not measured, baselines."""
    texts = {
        "one client holds all rows, so there is no worst client": pooled,
        "clients share no model, so the server has no trained model to measure": shares_no_model,
    }
    names = {text: list(dict.fromkeys(r.name for r in records if without(r))) for text, without in texts.items()}
    partitions = [record.facts.get("partition", {}) for record in records]
    of_skews = [text for text in dict.fromkeys(dealt.get("note", "") for dealt in partitions) if text][:1]
    of_methods = [f"{listed(methods)}: {text}" for text, methods in names.items() if methods]
    return [*of_methods, *of_skews, *without_numbers(partitions), *drawn(records), *without_model(records)]


def without_numbers(partitions: Sequence[Json]) -> list[str]:
    """Say how many clients have too few rows to hold one out; an empty list if there are none."""
    counts = [(int(dealt["unmeasured"]), int(dealt["clients"])) for dealt in partitions if dealt.get("unmeasured")]
    if not counts:
        return []
    most, clients = max(counts)
    everywhere = len(counts) == len(partitions) and all(unmeasured == most for unmeasured, _ in counts)
    up_to = "" if everywhere else "up to "
    return [f"{up_to}{most} of {clients} clients hold too few rows to hold one out: they are not measured"]


def drawn(records: Sequence[RunRecord]) -> list[str]:
    """Say how many clients are measured if these are a random choice; an empty list if all are."""
    pairs = [
        (stored_section(r, "evaluation").get("max_clients"), r.facts.get("partition", {}).get("clients", 0))
        for r in records
    ]
    fewer = dict.fromkeys((most, every) for most, every in pairs if isinstance(most, int) and most < every)
    return [f"{most:,} of {every:,} clients, drawn at random, are measured" for most, every in fewer]


def without_model(records: Sequence[RunRecord]) -> list[str]:
    """Give the primary metric that answers without a model reach on each data set's test rows, as a range over test sets."""
    measure = primary_of(records)
    values = grouped(
        ((record.facts.get("data", {}).get("name", ""), answer_), metrics[measure.name])
        for record in records
        for answer_, metrics in record.facts.get("baselines", {}).items()
        if measure.name in metrics
    )
    ranges = grouped(
        (name, f"{answer_} {' to '.join(dict.fromkeys(plain(measure, end(numbers)) for end in (min, max)))}")
        for (name, answer_), numbers in values.items()
    )
    lines = {name: f"{heading(measure)} without a model: {', '.join(each)}" for name, each in ranges.items()}
    return [f"{name}: {text}" for name, text in lines.items()] if len(lines) > 1 else [*lines.values()]


def unfinished(records: Sequence[RunRecord]) -> list[str]:
    """Return a line for each run that did not finish."""
    return [
        f"run {record.id} ({record.name}): {record.status} after round {record.rounds_done}. {record.message}"
        for record in titled(records)
        if record.status != "finished"
    ]


MEASURING = ("evaluation", "measures", "scores of local models")
"""The parts of a run's work that are measuring."""


def profiles(records: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """Return, for each method, the seconds of all its runs by part of the work, the longest first."""
    by_method: dict[str, dict[str, float]] = {}
    for record in records:
        for part, seconds in record.facts.get("profile", {}).items():
            of_method = by_method.setdefault(record.name, {})
            of_method[part] = of_method.get(part, 0.0) + seconds
    return {name: dict(sorted(parts.items(), key=lambda item: -item[1])) for name, parts in by_method.items()}


def measuring(records: Sequence[RunRecord]) -> str:
    """Say which share of the rounds' time measuring took, and every how many rounds models were measured."""
    shares = {}
    for name, seconds in profiles(records).items():
        rounds = sum(seconds.values()) - seconds.get("setting up", 0.0)
        if rounds > 0:
            shares[name] = sum(seconds.get(part, 0.0) for part in MEASURING) / rounds
    if not shares:
        return ""
    low, high = f"{100 * min(shares.values()):.0f}", f"{100 * max(shares.values()):.0f}"
    intervals = sorted({record.facts["measured_every"] for record in records if "measured_every" in record.facts})
    rest = ""
    if intervals and intervals != [1]:
        rest = f"; models were measured every {listed(list(map(str, intervals)))} rounds (evaluation.every)"
    return f"Measuring took {low if low == high else f'{low} to {high}'} % of the time of the rounds{rest}."


def sources(results: Results) -> Components | None:
    """Return the parts of the variance of a run's primary measure.

    None unless two methods finished the same two or more training seeds on each of two or more partitions.
    """
    tables = repeats(results.frame, results.records, results.measure)
    if len(tables) < 2 or results.budget:
        return None
    rows = by_method(results.store, results.records, results.layout.by)
    of_rows = list[float]()
    for seeds, reference in rows.get(results.methods[0], {}).items():
        stored = [of_seeds[seeds] for method in tables if seeds in (of_seeds := rows.get(method, {}))]
        alike = [part.values for part in stored if same_rows(part, reference)]
        of_rows += [shared_by_rows(np.stack(alike))] if len(alike) > 1 else []
    shared = float(np.mean(of_rows)) if of_rows else 0.0
    dealt = not all(map(own_clients, results.records))
    redrawn = splits(results.records, results.layout.by) is not None
    return variance_components(np.stack([*tables.values()]), shared, redrawn, dealt)


def how_sure(results: Results) -> list[str]:
    """Return sentences on the shares of the variance and on the order of the best methods, if partitions and seeds are crossed."""
    parts, measure, sentences = sources(results), results.measure, list[str]()
    if parts and sum(parts):
        tables = repeats(results.frame, results.records, measure)
        partitions, seeds = next(iter(tables.values())).shape
        names = ("choice of the test rows", "partition", "training seed", "method x partition")
        shares = [f"{percent(share)} {name}" for name, share in zip(names, parts.shares(), strict=True)]
        sentences.append(
            f"variance of {measure.label} between runs of a method: {listed(shares)} (analysis of variance, "
            f"{count(len(tables), 'method')} x {count(partitions, 'partition')} x {count(seeds, 'seed')})"
        )
    rows = [row for row in rows_of(results.summary) if math.isfinite(row[measure.key])]
    if parts and len(rows) > 1:
        rows.sort(key=lambda row: row[measure.key], reverse=measure.ahead == "higher")
        first = next((row for row in rows if row["method"] == results.methods[0]), rows[0])
        other = rows[0] if rows[0] is not first else rows[1]
        if math.isfinite(other["flips"]):
            sentences.append(
                f"a repeat of this size orders {other['method']} and {first['method']} the other way with probability "
                f"{percent(other['flips'])}"
            )
    return sentences

"""What a comparison says in sentences: the answer, warnings, remarks, and where the time went."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedskew.core.text import count
from fedskew.measure.registry import primary
from fedskew.report import words
from fedskew.report.experiments import pooled, shares_no_model
from fedskew.report.words import Row, gap, heading, listed, plain, rows_of, shown, value, within
from fedskew.store.records import Sign
from fedskew.store.runs import RunRecord

if TYPE_CHECKING:
    import pandas as pd


NAMED = 5
"""Maximum length of a list of methods. A longer list ends in ``and 3 more``."""


def answer(table: pd.DataFrame) -> str:
    """Say which method is best by the primary measure, and how certain this is. ``table`` comes from `tables.summary`."""
    rows, measure = rows_of(table), primary()
    measured = sorted(
        (row for row in rows if math.isfinite(row[measure.key])),
        key=lambda row: float(row[measure.key]),
        reverse=measure.ahead == "higher",
    )
    if not measured and not any(row["finished"] for row in rows):
        return "No run has finished, so there is no answer yet."
    if not measured:
        return f"No method has a {measure.label}, so they cannot be compared by it."
    first, others = rows[0], [row for row in measured if row is not rows[0]]
    if len(rows) == 1:
        return alone(first)
    if not math.isfinite(first[measure.key]):
        why = "has finished" if not first["finished"] else f"has a {measure.label}"
        return f"Undecided: no run of {first['method']}, the method to compare with, {why}. {best(measured)}."
    if all(row["pairs"] < 2 for row in others):
        return f"Undecided: {too_few(others)}. {best(measured)}."
    ahead, behind, equivalent, undecided = (
        [row for row in others if row["verdict"] == verdict]
        for verdict in (measure.ahead, measure.behind, "equivalent", "undecided")
    )
    if equivalent and not (ahead or behind or undecided):
        which = f"{named(equivalent)} {'is' if len(equivalent) == 1 else 'are'} equivalent to {first['method']}"
        return f"{which} within {within(first['margin'])}. {best(measured)}."
    if not (ahead or behind or equivalent):
        which = f"{others[0]['method']} does not differ" if len(rows) == 2 else "no method differs"
        return f"Undecided: {which} reliably from {first['method']}. {best(measured)}{not_enough(first, measured[0])}."
    if ahead:
        than = f"{first['method']}: {numbered(ahead[0])} against {numbered(first)}"
        head = f"{ahead[0]['method']} has a {measure.ahead} {measure.label} than {than}, {difference(ahead[0])}"
    else:
        head = f"No method has a reliably {measure.ahead} {measure.label} than {first['method']}, {numbered(first)}"
    if measured[0] in undecided:
        undecided = [{**measured[0], "method": f"{measured[0]['method']}, {superlative()} mean"}, *undecided[1:]]
    groups = {f"also {measure.ahead}": ahead[1:], measure.behind: behind}
    groups |= {"equivalent": equivalent, "undecided": undecided}
    rest = "; ".join(f"{word}: {named(group)}" for word, group in groups.items() if group)
    return f"{head}." + (f" {rest[0].upper()}{rest[1:]}." if rest else "")


def numbered(row: Row) -> str:
    """Format the primary measure of a method with its unit: ``84.7 %``."""
    return value(primary(), row[primary().key])


def superlative() -> str:
    return "highest" if primary().ahead == "higher" else "lowest"


def named(rows: Sequence[Row]) -> str:
    """List the methods' names; after `NAMED` minus 1 names, only say how many more there are."""
    names = [str(row["method"]) for row in rows]
    return (
        listed(names) if len(names) <= NAMED else f"{listed([*names[: NAMED - 1], f'{len(names) - NAMED + 1} more'])}"
    )


def best(measured: Sequence[Row]) -> str:
    """Say which method is best: ``SCAFFOLD has the highest mean test accuracy, 84.7 %``. The best row comes first."""
    return f"{measured[0]['method']} has the {superlative()} mean {primary().label}, {numbered(measured[0])}"


def difference(row: Row) -> str:
    """Format a method's difference from the first: ``+5.1 ± 1.2 points over 5 paired seeds (p = 0.01)``."""
    unit = " points" if primary().unit == "%" else ""
    width = f" ± {gap(primary(), row['difference_half'])[1:]}" if math.isfinite(row["difference_half"]) else ""
    p = f" (p\u00a0=\u00a0{row['p']:.2g})" if math.isfinite(row["p"]) else ""
    each = "" if width else " each of"
    return f"{gap(primary(), row['difference'])}{width}{unit} over{each} {count(row['pairs'], 'paired seed')}{p}"


def not_enough(first: Row, top: Row) -> str:
    """In an undecided comparison, say how the best method ``top`` differs from the ``first``, or why this is unknown."""
    if top is first:
        return ""
    if top["pairs"] < 2:
        return f", but {too_few([top])}"
    return f"; its difference from {first['method']}, {numbered(first)}, is {difference(top)}"


def alone(row: Row) -> str:
    """Say what a single method reaches, with its interval over seeds."""
    measure, after = primary(), f"after round {row['after_round']}"
    reached = f"{row['method']} reaches a {measure.label} of"
    if row["seeds"] < 2:
        return f"{reached} {numbered(row)} {after}. With one seed nothing can be said about certainty."
    number = f"{shown(measure, row)}\u00a0{measure.unit}".strip()
    over = f"mean and 95\u00a0% interval over {count(row['seeds'], 'seed')}; it covers the {row['covers']}"
    return f"{reached} {number} {after}: {over}."


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
    found: list[Notice] = []
    for kind, seen in by_kind(records).items():
        if (kind in OF_PARTITION) != of_partition:
            continue
        record, entry = seen[0]
        text = f"{kind[:1].upper()}{kind[1:]}: {entry.get('measured', entry['line'])}."
        remedy = f" Try {entry['remedy']}." if entry.get("remedy") else ""
        where = f"{len(seen)} of {count(len(records), 'run')}; first in run {record.id}" if len(records) > 1 else ""
        if where and not of_partition:
            where = runs_with(seen, records).removeprefix(" in ")
        hint = "; ".join(filter(None, [entry.get("threshold", ""), entry.get("source", "")]))
        found.append(Notice(text + remedy, where, hint))
    return found


def by_kind(records: Sequence[RunRecord]) -> dict[str, list[tuple[RunRecord, Sign]]]:
    """Group the stored warnings by kind; each stands with its run."""
    found: dict[str, list[tuple[RunRecord, Sign]]] = {}
    for record in records:
        for entry in record.facts.get("warnings", []):
            found.setdefault(entry["kind"], []).append((record, entry))
    return found


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
    one = dict.fromkeys(record.name for record in records if pooled(record))
    alone = dict.fromkeys(record.name for record in records if shares_no_model(record))
    texts = {
        "one client holds all rows, so there is no worst client": one,
        "clients share no model, so the server has no trained model to measure": alone,
    }
    found = [f"{listed(list(names))}: {text}" for text, names in texts.items() if names]
    dealt = dict.fromkeys(record.facts.get("partition", {}).get("note", "") for record in records)
    return found + [text for text in dealt if text][:1] + without_numbers(records) + without_model(records)


def without_numbers(records: Sequence[RunRecord]) -> list[str]:
    """Say how many clients have too few rows to hold one out; an empty list if there are none."""
    partitions = [record.facts.get("partition", {}) for record in records]
    counts = [(int(found["unmeasured"]), int(found["clients"])) for found in partitions if found.get("unmeasured")]
    if not counts:
        return []
    most, clients = max(counts)
    up_to = "up to " if any(found.get("unmeasured", 0) != most for found in partitions) else ""
    return [f"{up_to}{most} of {clients} clients hold too few rows to hold one out: they are not measured"]


def without_model(records: Sequence[RunRecord]) -> list[str]:
    """Give the primary metric that answers without a model reach on each data set's test rows, as a range over test sets."""
    measure = primary()
    found: dict[str, dict[str, set[float]]] = {}
    for record in records:
        answers, data = record.facts.get("baselines", {}), record.facts.get("data", {})
        for answer, has in answers.items():
            if measure.name in has:
                found.setdefault(data.get("name", ""), {}).setdefault(answer, set()).add(has[measure.name])
    lines = []
    for name, answered in found.items():
        ranges = [
            f"{answer} {' to '.join(dict.fromkeys(plain(measure, end(values)) for end in (min, max)))}"
            for answer, values in answered.items()
        ]
        text = f"{heading(measure)} without a model: {', '.join(ranges)}"
        lines.append(f"{name}: {text}" if len(found) > 1 else text)
    return lines


MEASURING = ("evaluation", "measures", "scores of local models")
"""The parts of a run's work that are measuring."""


def profiles(records: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """Return, for each method, the seconds of all its runs by part of the work, the longest first."""
    by_method: dict[str, dict[str, float]] = {}
    for record in records:
        for part, seconds in record.facts.get("profile", {}).items():
            own = by_method.setdefault(record.name, {})
            own[part] = own.get(part, 0.0) + seconds
    return {name: dict(sorted(own.items(), key=lambda item: -item[1])) for name, own in by_method.items()}


def measuring(records: Sequence[RunRecord]) -> str:
    """Say which share of the rounds' time measuring took, and every how many rounds models were measured."""
    shares = {}
    for name, own in profiles(records).items():
        rounds = sum(own.values()) - own.get("setting up", 0.0)
        if rounds > 0:
            shares[name] = sum(own.get(part, 0.0) for part in MEASURING) / rounds
    if not shares:
        return ""
    low, high = f"{100 * min(shares.values()):.0f}", f"{100 * max(shares.values()):.0f}"
    often = sorted({record.facts["measured_every"] for record in records if "measured_every" in record.facts})
    rest = (
        f"; models were measured every {words.listed([str(n) for n in often])} rounds (evaluation.every)"
        if often and often != [1]
        else ""
    )
    return f"Measuring took {low if low == high else f'{low} to {high}'} % of the time of the rounds{rest}."

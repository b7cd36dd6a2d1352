"""Warnings of runs for readers. Warnings about the partition are separate from all others."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedskew.core.counting import count
from fedskew.report.words import listed
from fedskew.store.facts import Sign
from fedskew.store.runs import RunRecord

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

"""The result of a comparison in two sentences: the best method, its difference with p, and what is undecided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedskew.core.text import count
from fedskew.measure.registry import primary
from fedskew.report.words import Row, gap, listed, rows_of, shown, value, within

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

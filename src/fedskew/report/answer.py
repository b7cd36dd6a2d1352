"""The result of a comparison in one or two sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedskew.core.counting import count
from fedskew.measure.registry import primary
from fedskew.report.words import SEEDS_ONLY, Row, gap, listed, rows_of, shown, value

if TYPE_CHECKING:
    import pandas as pd


def answer(table: pd.DataFrame) -> str:
    """The best method by the primary measure, and how sure that is, from the summary ``table``."""
    rows, measure = rows_of(table), primary()
    measured = [row for row in rows if math.isfinite(row[measure.key])]
    if not measured:
        return "No run has finished, so there is no answer yet."
    if len(rows) == 1:
        return alone(rows[0])
    best = (max if measure.ahead == "higher" else min)(measured, key=lambda row: float(row[measure.key]))
    return against_others(best, rows[1:]) if best is rows[0] else against_first(rows[0], best)


def best_mean(row: Row) -> str:
    """``highest mean test accuracy, 84.7 %``."""
    measure = primary()
    return f"{'highest' if measure.ahead == 'higher' else 'lowest'} mean {measure.label}, {value(measure, row[measure.key])}"


def alone(row: Row) -> str:
    """The answer for a single method."""
    measure, after = primary(), f"after round {row['after_round']}"
    reached = f"{row['method']} reaches a {measure.label} of"
    if row["seeds"] < 2:
        number = value(measure, row[measure.key])
        return f"{reached} {number} {after}. With one seed nothing can be said about certainty."
    number = f"{shown(measure, row)}\u00a0{measure.unit}".strip()
    over = f"mean and 95\u00a0% interval over {count(row['seeds'], 'seed')}; {SEEDS_ONLY}"
    return f"{reached} {number} {after}: {over}."


def against_first(first: Row, best: Row) -> str:
    """The answer if another method than the first is best."""
    measure = primary()
    first_value = value(measure, first[measure.key])
    found = f"{best['method']} has the {best_mean(best)}"
    if not math.isfinite(first[measure.key]):
        return f"Undecided. {found}, but no run of {first['method']}, the method to compare with, has finished."
    if best["pairs"] < 2:
        return f"Undecided. {found}, against {first_value} for {first['method']}, but {too_few(best)}."
    varied = math.isfinite(best["difference_half"])
    unit = " points" if measure.unit == "%" else ""
    width = f"± {gap(measure, best['difference_half'])[1:]}{unit}" if varied else f"{unit.strip()} in every one".strip()
    difference = (
        f"over {count(best['pairs'], 'paired seed')} the difference from {first['method']} "
        f"({first_value}) is {gap(measure, best['difference'])} {width}"
    )
    same = best["pairs"] == best["seeds"] == first["seeds"]
    note = "" if same else " The two means are over all seeds that each method finished."
    if best["verdict"] == measure.ahead:
        excluded = ", and the 95\u00a0% interval leaves out zero" if varied else ""
        return f"{found}: {difference}{excluded}{corrected(best)}.{note}"
    if best["verdict"] == measure.behind:
        reason = f": on the seeds that both finished it is {measure.behind}"
    elif not varied:
        reason = f", too few that do not vary{corrected(best)}"
    elif abs(best["difference"]) > best["difference_half"]:
        reason = f", which is not enough{corrected(best)}"
    else:
        reason = ", and the 95\u00a0% interval includes zero"
    return f"Undecided. {found}, but {difference}{reason}.{note}"


def corrected(row: Row) -> str:
    """The p-value after Holm's correction, and for how many comparisons; empty if there is only one."""
    if row["comparisons"] < 2:
        return ""
    return f", p\u00a0=\u00a0{row['p']:.2g} after Holm's correction for {row['comparisons']} comparisons"


def against_others(first: Row, others: list[Row]) -> str:
    """The answer if the first method is best."""
    ahead, behind = primary().ahead, primary().behind
    found = f"{first['method']}, the first method, has the {best_mean(first)}"
    by_verdict = {v: [row["method"] for row in others if row["verdict"] == v] for v in (behind, "undecided", ahead)}
    if not by_verdict[behind]:
        few = all(row["pairs"] < 2 for row in others)
        reliable = f"no paired difference is reliably {'below' if behind == 'lower' else 'above'} zero"
        return f"Undecided. {found}, but {too_few(max(others, key=lambda row: row['pairs'])) if few else reliable}."
    parts = [f"{behind} with a 95\u00a0% interval that leaves out zero: {listed(by_verdict[behind])}"]
    if by_verdict["undecided"]:
        parts.append(f"undecided: {listed(by_verdict['undecided'])}")
    if by_verdict[ahead]:
        parts.append(f"{ahead} on the seeds that both finished: {listed(by_verdict[ahead])}")
    return f"{found}. Of the others, {'; '.join(parts)}."


def too_few(row: Row) -> str:
    """The reason why there is no interval, in words."""
    if row["pairs"] == 0:
        return "no seed was finished by both, so nothing can be said about certainty"
    return "with one seed nothing can be said about certainty"

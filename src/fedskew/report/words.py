"""Numbers formatted for readers, and the result of a comparison in one or two sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fedskew.core.counting import count
from fedskew.measure.registry import Measure, primary

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup

    from fedskew.report.budget import Budget

Row = dict[str, Any]
"""A row of the summary, by column."""

MISSING = "–"
EDGE = 1e-9
"""Rounding error up to which an interval counts as inside its range."""

SEEDS_ONLY = "the interval covers the seeds only, not the choice of the test rows"
"""Every run of a data set is tested on the same rows."""


def share(value: float) -> str:
    """A share in 0..1 as percent with one decimal, without the sign."""
    return f"{100 * value:.1f}" if math.isfinite(value) else MISSING


def breakable(name: str) -> Markup:
    """The name as HTML that a browser may break after its punctuation."""
    from markupsafe import Markup

    return Markup(re.sub("([:,])", r"\1<wbr>", str(Markup.escape(name))))


def interval(
    mean: float, half_width: float, show: Callable[[float], str] = share, low: float = 0.0, high: float = 1.0
) -> str:
    """``92.5 ± 1.2``; ``57.7 (0 to 100)``, cut off, where the interval leaves ``low``..``high``; the mean alone without one."""
    if not (math.isfinite(mean) and math.isfinite(half_width)):
        return show(mean)
    bottom, top = mean - half_width, mean + half_width
    if bottom < low - EDGE or top > high + EDGE:
        ends = (re.sub(r"\.0+$", "", show(end)) for end in (max(bottom, low), min(top, high)))
        return f"{show(mean)} ({' to '.join(ends)})"
    return f"{show(mean)} ± {half(show(half_width).lstrip('+'), half_width)}"


def shown(measure: Measure, row: Row) -> str:
    """The measure of a row of the summary, with its interval if it has one: ``92.5 ± 1.2``; shares in percent, without the sign."""
    mean, half_width = row[measure.key], row.get(f"{measure.key}_half", math.nan)
    show = share if measure.unit == "%" else partial(figures, like=mean)
    return interval(mean, half_width, show, measure.low, measure.high)


def difference(row: Row, show: Callable[[float], str] | None = None) -> str:
    """The difference of a row of the summary from the first method in the primary measure: ``+1.2 ± 0.4``.

    ``show`` formats a difference of shares, by default in percentage points with one decimal.
    """
    measure = primary()
    if measure.unit == "%":
        return interval(row["difference"], row["difference_half"], show or signed, low=-1.0)
    return interval(row["difference"], row["difference_half"], partial(gap, measure), low=-math.inf)


def heading(measure: Measure) -> str:
    """``accuracy %``."""
    return f"{measure.title} {measure.unit}".strip()


def plain(measure: Measure, number: float) -> str:
    """A value without its unit: ``92.5``."""
    return share(number) if measure.unit == "%" else figures(number)


def value(measure: Measure, number: float) -> str:
    """A value of the measure in a sentence: ``92.5 %``."""
    return f"{plain(measure, number)}\u00a0{measure.unit}".strip()


def gap(measure: Measure, number: float) -> str:
    """A signed difference of the measure: in percentage points where it is a share."""
    return points(number) if measure.unit == "%" else f"{'+' if number > 0 else ''}{figures(number)}"


def half(text: str, value: float) -> str:
    """The rounded half-width ``text``, or ``<0.01`` where rounding makes nothing of a positive ``value``."""
    return f"<{text[:-1]}1" if value > 0 and not re.search("[1-9]", text) else text


def signed(value: float) -> str:
    """A difference of shares in percentage points, signed, with one decimal."""
    return f"{100 * value:+.1f}" if math.isfinite(value) else MISSING


def points(value: float) -> str:
    """A difference of shares in percentage points, signed, with two decimals."""
    return f"{100 * value:+.2f}".replace("-", "−") if math.isfinite(value) else MISSING


def figures(value: float, like: float | None = None) -> str:
    """Three significant digits, or the decimals of ``like``; scientific where that would be long."""
    like = value if like is None else like
    if not (math.isfinite(value) and math.isfinite(like)):
        return MISSING
    size = math.floor(math.log10(abs(like))) if like else 0
    if not -3 <= size <= 6:
        return f"{value:.2e}"
    return f"{value:,.{max(2 - size, 0)}f}".replace(",", "\u202f")


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def ranges(numbers: Sequence[int]) -> str:
    """``0–3, 7`` from the distinct numbers in order."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


def rows_of(table: pd.DataFrame) -> list[Row]:
    """The rows of a table, each by column."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False)]


def read_after(table: pd.DataFrame, budget: Budget | None) -> str:
    """The rounds after which the methods of the summary ``table`` are read, in words."""
    if not budget:
        return "after the last round"
    rounds = dict(zip(table["method"], table["after_round"], strict=True))
    if len(set(rounds.values())) == 1:
        return f"after round {next(iter(rounds.values()))}, the last within the budget {budget} with measured models"
    own = listed([f"{method} after round {rounds_ or MISSING}" for method, rounds_ in rounds.items()])
    return f"within the budget {budget}, where all models were measured: {own}"


def answer(table: pd.DataFrame) -> str:
    """The best method by the primary measure, and how sure that is, from the summary ``table``: one or two sentences."""
    rows = rows_of(table)
    key = primary().key
    measured = [row for row in rows if math.isfinite(row[key])]
    if not measured:
        return "No run has finished, so there is no answer yet."
    first, best = (
        rows[0],
        max(measured, key=lambda row: float(row[key]) if primary().better == "higher" else -float(row[key])),
    )
    if len(rows) == 1:
        return alone(first)
    return against_others(first, rows[1:]) if best is first else against_first(first, best)


def alone(row: Row) -> str:
    """The answer for a single method."""
    measure, after = primary(), f"after round {row['after_round']}"
    reached = f"{row['method']} reaches a {measure.label} of"
    if row["seeds"] < 2:
        return (
            f"{reached} {value(measure, row[measure.key])} {after}. With one seed nothing can be said about certainty."
        )
    number = f"{shown(measure, row)}\u00a0{measure.unit}".strip()
    over = f"mean and 95\u00a0% interval over {count(row['seeds'], 'seed')}; {SEEDS_ONLY}"
    return f"{reached} {number} {after}: {over}."


def against_first(first: Row, best: Row) -> str:
    """The answer if another method than the first is best."""
    measure = primary()
    first_value = value(measure, first[measure.key])
    highest = f"{best['method']} has the {superlative(measure)}, {value(measure, best[measure.key])}"
    if not math.isfinite(first[measure.key]):
        return f"Undecided. {highest}, but no run of {first['method']}, the method to compare with, has finished."
    if best["pairs"] < 2:
        return f"Undecided. {highest}, against {first_value} for {first['method']}, but {too_few(best)}."
    varied = math.isfinite(best["difference_half"])
    width = f"± {gap(measure, best['difference_half'])[1:]} points" if varied else "points in every one"
    difference = (
        f"over {count(best['pairs'], 'paired seed')} the difference from {first['method']} "
        f"({first_value}) is {gap(measure, best['difference'])} {width}"
    )
    same = best["pairs"] == best["seeds"] == first["seeds"]
    note = "" if same else " The two means are over all seeds that each method finished."
    if not varied and best["verdict"] != "lower":
        sure = f"{highest}: {difference}{corrected(best)}.{note}"
        unsure = f"Undecided. {highest}, but {difference}, too few that do not vary{corrected(best)}.{note}"
        return sure if best["verdict"] == "higher" else unsure
    if best["verdict"] == "higher":
        return f"{highest}: {difference}, and the 95\u00a0% interval leaves out zero{corrected(best)}.{note}"
    if best["verdict"] == "lower":
        return f"Undecided. {highest}, but {difference}: on the seeds that both finished it is lower.{note}"
    if abs(best["difference"]) > best["difference_half"]:
        return f"Undecided. {highest}, but {difference}, which is not enough{corrected(best)}.{note}"
    return f"Undecided. {highest}, but {difference}, and the 95\u00a0% interval includes zero.{note}"


def corrected(row: Row) -> str:
    """The p-value after Holm's correction, and for how many comparisons; empty if there is only one."""
    if row["comparisons"] < 2:
        return ""
    return f", p\u00a0=\u00a0{row['p']:.2g} after Holm's correction for {row['comparisons']} comparisons"


def against_others(first: Row, others: list[Row]) -> str:
    """The answer if the first method is best."""
    best = f"{superlative(primary())}, {value(primary(), first[primary().key])}"
    highest = f"{first['method']}, the first method, has the {best}"
    by_verdict = {v: [row["method"] for row in others if row["verdict"] == v] for v in ("lower", "undecided", "higher")}
    if not by_verdict["lower"]:
        few = all(row["pairs"] < 2 for row in others)
        reason = (
            too_few(max(others, key=lambda row: row["pairs"])) if few else "no paired difference is reliably below zero"
        )
        return f"Undecided. {highest}, but {reason}."
    parts = [f"lower with a 95\u00a0% interval that leaves out zero: {listed(by_verdict['lower'])}"]
    if by_verdict["undecided"]:
        parts.append(f"undecided: {listed(by_verdict['undecided'])}")
    if by_verdict["higher"]:
        parts.append(f"higher on the seeds that both finished: {listed(by_verdict['higher'])}")
    return f"{highest}. Of the others, {'; '.join(parts)}."


def superlative(measure: Measure) -> str:
    """``highest mean test accuracy``."""
    return f"{'lowest' if measure.better == 'lower' else 'highest'} mean {measure.label}"


def too_few(row: Row) -> str:
    """The reason why there is no interval, in words."""
    if row["pairs"] == 0:
        return "no seed was finished by both, so nothing can be said about certainty"
    return "with one seed nothing can be said about certainty"

"""Numbers as people read them, and the answer of a comparison in a sentence or two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

MISSING = "–"


def share(value: float) -> str:
    """A share in 0..1 as percent with one decimal, without the sign."""
    return f"{100 * value:.1f}" if math.isfinite(value) else MISSING


def points(value: float) -> str:
    """A difference of shares in percentage points, signed, with two decimals."""
    return f"{100 * value:+.2f}".replace("-", "−") if math.isfinite(value) else MISSING


def figures(value: float) -> str:
    """Three significant digits, whole numbers from a thousand on, scientific where that would be long."""
    if not math.isfinite(value):
        return MISSING
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 1000 else f"{value:.2e}"


def count(number: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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


def answer(table: pd.DataFrame) -> str:
    """What the summary ``table`` says about the best mean test accuracy; never more than its intervals allow."""
    measured = table.dropna(subset="accuracy")
    if measured.empty:
        return "No run has finished, so there is no answer yet."
    rows: list[dict[str, Any]] = table.to_dict("records")
    first, best = rows[0], rows[int(measured["accuracy"].idxmax())]
    if len(rows) == 1:
        return alone(first)
    return against_others(first, rows[1:]) if best is first else against_first(first, best)


def alone(row: dict[str, Any]) -> str:
    accuracy = f"{row['method']} reaches a test accuracy of {share(row['accuracy'])}"
    if row["seeds"] < 2:
        return f"{accuracy} % after the last round. With one seed nothing can be said about certainty."
    return (
        f"{accuracy} ± {share(row['accuracy_half'])} % after the last round: mean and 95 % interval over "
        f"{count(row['seeds'], 'seed')}."
    )


def against_first(first: dict[str, Any], best: dict[str, Any]) -> str:
    """The best mean belongs to another method than the first."""
    highest = f"{best['method']} has the highest mean test accuracy, {share(best['accuracy'])} %"
    if not math.isfinite(first["accuracy"]):
        return f"Undecided. {highest}, but no run of {first['method']}, the method to compare with, has finished."
    if best["pairs"] < 2:
        return f"Undecided. {highest}, against {share(first['accuracy'])} % for {first['method']}, but {too_few(best)}."
    difference = (
        f"over {count(best['pairs'], 'paired seed')} the difference from {first['method']} ({share(first['accuracy'])} %) is "
        f"{points(best['difference'])} ± {points(best['difference_half'])[1:]} points"
    )
    if best["verdict"] == "higher":
        return f"{highest}: {difference}, and the 95 % interval leaves out zero."
    if best["verdict"] == "lower":
        return f"Undecided. {highest}, but {difference}: on the seeds that both finished it is lower."
    return f"Undecided. {highest}, but {difference}, and the 95 % interval includes zero."


def against_others(first: dict[str, Any], others: list[dict[str, Any]]) -> str:
    """The best mean belongs to the first method."""
    highest = f"{first['method']}, the first method, has the highest mean test accuracy, {share(first['accuracy'])} %"
    by_verdict = {v: [row["method"] for row in others if row["verdict"] == v] for v in ("lower", "undecided", "higher")}
    if not by_verdict["lower"]:
        few = all(row["pairs"] < 2 for row in others)
        reason = too_few(max(others, key=lambda row: row["pairs"])) if few else "no 95 % interval of a paired difference lies below zero"
        return f"Undecided. {highest}, but {reason}."
    parts = [f"lower with a 95 % interval that leaves out zero: {listed(by_verdict['lower'])}"]
    if by_verdict["undecided"]:
        parts.append(f"undecided: {listed(by_verdict['undecided'])}")
    if by_verdict["higher"]:
        parts.append(f"higher on the seeds that both finished: {listed(by_verdict['higher'])}")
    return f"{highest}. Of the others, {'; '.join(parts)}."


def too_few(row: dict[str, Any]) -> str:
    """Why there is no interval."""
    if row["pairs"] == 0:
        return "no seed was finished by both, so nothing can be said about certainty"
    return "with one seed nothing can be said about certainty"

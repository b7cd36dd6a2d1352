"""The time that runs spent on each part of their work."""

from collections.abc import Sequence

from fedskew.report import words
from fedskew.store.runs import RunRecord

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

"""A short recommendation out of the packaged evidence; where there is none it says so.

The evidence (evidence.json) is made by experiments/evidence.py: under a planted skew, with the strengths of the four faces that
were measured, how much accuracy each method gained over FedAvg on the same seeds, with the 95 % interval. A gain has one of two
measures, which are never mixed: one model for all on the test set, or each client's model on the client's own held-out rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedskew.advice.evidence import evidence

NEAR = 0.25
"""Evidence counts where the dominant face's strength differs by no more than this."""

SHOWS = 0.05
"""A face that is weaker in a case's data did not decide what helped there."""

MOST = 3
"""Methods that are named for each measure."""

MEASURES = {
    "test": "one model for all, on the test set",
    "own": "each client with its own model, or the one for all, on its own held-out rows",
}

HELD_OUT = "--held-out 0.2"
"""Of an advised comparison: own models, above all, look better on the rows that they were trained on."""

PLAIN = "mlp"
"""The model of the evidence unless a method needs another."""


def advise(dominant: str, strengths: Mapping[str, float], data: str = "") -> dict[str, Any]:
    """``methods`` in order, ``because`` of what, ``caution`` about how thin the evidence is, ``command`` to find out.

    A method is recommended for a measure on which its accuracy was higher than FedAvg's in some near case and lower in none, by the
    corrected verdicts of the table; in order of the mean gain over the near cases. ``data`` are the arguments of
    ``fedskew compare`` that name the data.
    """
    if not dominant:
        return {
            "methods": [],
            "because": "Nothing differs beyond chance: plain averaging has nothing to correct.",
            "caution": "Differences too small for clients of these sizes to show are not excluded.",
            "command": command(["fedavg"], data),
        }
    strength = strengths[dominant]
    cases = [c for c in evidence()["cases"] if c["dominant"] == dominant]
    close = [c for c in cases if abs(c["strengths"][c["dominant"]] - strength) <= NEAR]
    near = [c for c in close if not foreign(c, strengths)]
    if not near:
        return {
            "methods": [],
            "because": f"The {dominant} face dominates at strength {strength:.2f}.",
            "caution": f"{missing(cases, close, dominant, strengths)}, so no method is recommended: compare some.",
            "command": command(["fedavg", "scaffold", "fedprox:mu=0.1"], data),
        }
    methods = [line for measure in MEASURES for line in helpful(near, measure)]
    order = list(dict.fromkeys(line["method"] for line in methods))
    models = {e["model"] for line in methods for e in line["evidence"]} - {PLAIN}
    return {
        "methods": methods,
        "because": f"The {dominant} face dominates at strength {strength:.2f}; {counted(len(near))} near it."
        + "".join(f" {nothing(near, m)}" for m in MEASURES if not any(line["measure"] == m for line in methods)),
        "caution": caution(near, dominant, strengths),
        "command": command(["fedavg", *(order or ["scaffold", "fedprox:mu=0.1"])], data, *sorted(models)[:1]),
    }


def foreign(case: Mapping[str, Any], strengths: Mapping[str, float]) -> list[str]:
    """The faces that the case shows and these data do not: what helped may have helped against them."""
    return [face for face, value in case["strengths"].items() if value >= SHOWS and not strengths.get(face)]


def missing(
    cases: Sequence[Mapping[str, Any]],
    close: Sequence[Mapping[str, Any]],
    dominant: str,
    strengths: Mapping[str, float],
) -> str:
    """Why none of our runs on this face says anything about these data."""
    at = ", ".join(sorted(f"{c['strengths'][dominant]:.2f}" for c in close or cases))
    if close:
        others = dict.fromkeys(face for case in close for face in foreign(case, strengths))
        return f"Our runs near that ({at}) also show the face {' and '.join(others)}, which your data do not"
    return f"We have no runs of our own near that ({f'only at {at}' if at else 'none for this face'})"


def helpful(near: Sequence[Mapping[str, Any]], measure: str) -> list[dict[str, Any]]:
    """The methods that gained on the measure and lost nowhere, best first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in near:
        for line in case["methods"]:
            if line["measure"] == measure:
                told = {**line, "data": case["data"], "skew": case["skew"], "model": case["model"]}
                found.setdefault(line["method"], []).append(told)
    good = {
        method: lines
        for method, lines in found.items()
        if any(line["verdict"] == "higher" for line in lines) and not any(line["verdict"] == "lower" for line in lines)
    }
    order = sorted(good, key=lambda method: -sum(line["gain"] for line in good[method]) / len(good[method]))[:MOST]
    return [{"method": m, "measure": measure, "meaning": MEASURES[measure], "evidence": good[m]} for m in order]


def nothing(near: Sequence[Mapping[str, Any]], measure: str) -> str:
    """That no method helped on the measure, and which were tried."""
    tried = sorted({line["method"] for case in near for line in case["methods"] if line["measure"] == measure})
    found = f"none of these did better than FedAvg beyond chance: {', '.join(tried)}" if tried else "nothing was tried"
    return f"For {MEASURES[measure]}, {found}."


def counted(cases: int) -> str:
    return "one skew of ours comes" if cases == 1 else f"{cases} skews of ours come"


def caution(near: Sequence[Mapping[str, Any]], dominant: str, strengths: Mapping[str, float]) -> str:
    """On how little the advice rests."""
    data = " and ".join(sorted({c["data"] for c in near}))
    seeds = min(line["seeds"] for case in near for line in case["methods"])
    others = [face for face, strength in strengths.items() if face != dominant and strength >= strengths[dominant] / 2]
    mixed = (
        f" Your data also show the face {' and '.join(others)}, which few or none of those runs did." if others else ""
    )
    return (
        f"Thin evidence: {data} only, {seeds} seeds a case, gains in accuracy at a learning rate tuned for each method.{mixed} "
        "Other data may differ: compare before you choose."
    )


def command(methods: Sequence[str], data: str = "", model: str = "") -> str:
    """The comparison to make, on a model that the methods can do with; clients are measured on rows kept from training."""
    words = [
        "fedskew compare",
        data,
        HELD_OUT,
        f"--model {model}" if model else "",
        f"--algorithms {' '.join(methods)}",
    ]
    return " ".join(word for word in words if word)

"""Recommend methods from the packaged evidence, or say that there is none.

experiments/evidence.py makes the evidence (evidence.json). Each case is a planted skew with the measured strengths of the four
faces, and each method's gain in accuracy over FedAvg on the same seeds, with its 95 % interval. A gain is measured in one of two
ways, which are never mixed: one model for all on the test set, or each client's model on the client's held-out rows.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from fedskew.advice.evidence import Case, Line, Measure, evidence

NEAR = 0.25
"""Maximum difference in the dominant face's strength between the data and a case that counts."""

SHOWS = 0.05
"""Minimum strength of a face that may have decided which methods helped in a case."""

MOST = 3
"""Maximum number of recommended methods for each measure."""

MEASURES: dict[Measure, str] = {
    "test": "one model for all, on the test set",
    "own": "each client with its own model, or the one for all, on its own held-out rows",
}

FAIR = "--held-out 0.2 --tuned"
"""Options of an advised comparison: models look too good on the rows that they were trained on, and each method needs its own
learning rate."""

PLAIN = "mlp"
"""The model of the evidence unless a method needs another."""


class Gain(Line):
    """A method's gain, with the case that it was measured in."""

    data: str
    skew: str
    model: str


class Recommended(TypedDict):
    """A method for a measure, with its gains in the near cases."""

    method: str
    measure: Measure
    meaning: str
    evidence: list[Gain]  # where the accuracy was higher
    undecided: int  # near cases in which it was neither higher nor lower


class Advice(TypedDict):
    """Methods, best first, with reasons, and the command that compares them."""

    methods: list[Recommended]
    because: str
    caution: str
    command: str


def advise(dominant: str, strengths: Mapping[str, float], data: str = "", name: str = "") -> Advice:
    """Recommend methods: ``methods`` (best first), ``because``, ``caution``, and a ``command`` that compares them.

    A method is recommended for a measure if, by the corrected verdicts, its accuracy was higher than FedAvg's in some near case and
    lower in none. The order is by mean gain over the near cases. ``data`` are the arguments of ``fedskew compare`` that name the
    data, ``name`` is the data set's name if it has one: evidence on the data set itself is marked as such.
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
            "caution": f"{missing(cases, close, strengths)}, so no method is recommended: compare some.",
            "command": command(["fedavg", "scaffold", "fedprox:mu=0.1"], data),
        }
    methods = [line for measure in MEASURES for line in helpful(near, measure)]
    order = list(dict.fromkeys(line["method"] for line in methods))
    models = {e["model"] for line in methods for e in line["evidence"]} - {PLAIN}
    return {
        "methods": methods,
        "because": f"The {dominant} face dominates at strength {strength:.2f}. {counted(len(near))} near it."
        + "".join(f" {nothing(near, m)}" for m in MEASURES if not any(line["measure"] == m for line in methods)),
        "caution": caution(near, dominant, strengths, name),
        "command": command(["fedavg", *(order or ["scaffold", "fedprox:mu=0.1"])], data, *sorted(models)[:1]),
    }


def foreign(case: Case, strengths: Mapping[str, float]) -> list[str]:
    """The faces that the case shows and these data do not: a method may have helped against them."""
    return [face for face, value in case["strengths"].items() if value >= SHOWS and not strengths.get(face)]


def missing(
    cases: Sequence[Case],
    close: Sequence[Case],
    strengths: Mapping[str, float],
) -> str:
    """Why no run on this face is evidence for these data."""
    at = ", ".join(sorted(f"{c['strengths'][c['dominant']]:.2f}" for c in close or cases))
    if close:
        others = dict.fromkeys(face for case in close for face in foreign(case, strengths))
        return f"Our runs near that ({at}) also show the face {' and '.join(others)}, which your data do not"
    return f"We have no runs of our own near that ({f'only at {at}' if at else 'none for this face'})"


def helpful(near: Sequence[Case], measure: Measure) -> list[Recommended]:
    """The methods that gained on the measure in some case and lost in none, best first."""
    found: dict[str, list[Gain]] = {}
    for case in near:
        for line in case["methods"]:
            if line["measure"] == measure:
                gain: Gain = {**line, "data": case["data"], "skew": case["skew"], "model": case["model"]}
                found.setdefault(line["method"], []).append(gain)
    good = {
        method: lines
        for method, lines in found.items()
        if any(line["verdict"] == "higher" for line in lines) and not any(line["verdict"] == "lower" for line in lines)
    }
    order = sorted(good, key=lambda method: -sum(line["gain"] for line in good[method]) / len(good[method]))[:MOST]
    return [
        {
            "method": m,
            "measure": measure,
            "meaning": MEASURES[measure],
            "evidence": [line for line in good[m] if line["verdict"] == "higher"],
            "undecided": sum(line["verdict"] == "undecided" for line in good[m]),
        }
        for m in order
    ]


def nothing(near: Sequence[Case], measure: Measure) -> str:
    """A sentence: no method helped on the measure, and these were tried."""
    tried = sorted({line["method"] for case in near for line in case["methods"] if line["measure"] == measure})
    if not tried:
        return f"No method was tried for {MEASURES[measure]}."
    return f"Tried for {MEASURES[measure]}: {', '.join(tried)}. None of them was better than FedAvg beyond chance."


def counted(cases: int) -> str:
    return "One of our own experiments is" if cases == 1 else f"{cases} of our own experiments are"


def caution(near: Sequence[Case], dominant: str, strengths: Mapping[str, float], name: str) -> str:
    """A sentence on how thin the evidence is."""
    data = " and ".join(sorted({c["data"] for c in near}))
    seeds = min(line["seeds"] for case in near for line in case["methods"])
    others = [face for face, strength in strengths.items() if face != dominant and strength >= strengths[dominant] / 2]
    mixed = (
        f" Your data also show the face {' and '.join(others)}, which few or none of those runs did." if others else ""
    )
    itself = sum(c["data"].partition(":")[0] == name for c in near)
    if itself:
        mixed += f" {itself} of the experiments used {name} itself: they repeat a known result and say nothing about other data."
    return (
        f"The evidence is thin: {data} only, {seeds} seeds each, accuracy at a learning rate tuned for each method.{mixed} "
        "Other data may differ: compare before you choose. --tuned finds each method's learning rate first; leave it out for a "
        "quick look."
    )


def command(methods: Sequence[str], data: str = "", model: str = "") -> str:
    """The command that compares the methods fairly, with a model that the methods can use."""
    words = [
        "fedskew compare",
        data,
        FAIR,
        f"--model {model}" if model else "",
        f"--algorithms {' '.join(methods)}",
    ]
    return " ".join(word for word in words if word)

"""Recommend methods from the packaged evidence, or say that there is none.

experiments/evidence.py makes the evidence (evidence.json). Each case is a planted skew with the measured strengths of the four
faces, and each method's gain in accuracy over FedAvg on the same seeds, with its 95 % interval. A gain is measured in one of two
ways, which are never mixed: one model for all on the test set, or each client's model on the client's held-out rows.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict

from fedskew.advice.evidence import Case, Line, Measure, evidence
from fedskew.core.counting import count
from fedskew.core.titles import title

NEAR = 0.25
"""Maximum difference in the dominant face's strength between the data and a case that counts."""

SHOWS = 0.05
"""Minimum strength of a face that may have decided which methods helped in a case."""

MOST = 3
"""Maximum number of recommended methods for each measure."""

MEASURES: dict[Measure, str] = {
    "test": "with one model for all clients, on the test set",
    "own": "with a model for each client, on its held-out rows",
}

FAIR = "--held-out 0.2 --tuned"
"""Options of an advised comparison: models look too good on the rows that they were trained on, and each method needs its own
learning rate."""

COMMON = ("scaffold", "fedprox:mu=0.1")
"""What is compared where no evidence speaks for a method."""

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


def advise(
    dominant: str, strengths: Mapping[str, float], data: str = "", name: str = "", target: str = "classes"
) -> Advice:
    """Recommend methods: ``methods`` (best first), ``because``, ``caution``, and a ``command`` that compares them.

    A method is recommended for a measure if, by the corrected verdicts, its accuracy was higher than FedAvg's in some near case and
    lower in none. The order is by mean gain over the near cases. ``data`` are the arguments of ``fedskew compare`` that name the
    data, ``name`` is the data set's name if it has one: evidence on the data set itself is marked as such. All evidence is on
    ``target`` classes.
    """
    if not dominant:
        return {
            "methods": [],
            "because": "Nothing differs beyond chance. Train with FedAvg, and tune its learning rate.",
            "caution": "Differences that are too small to show in so few rows may exist.",
            "command": command(["fedavg"], data),
        }
    strength = strengths[dominant]
    differ = f"Your clients differ mostly by {dominant} (strength {strength:.2f})."
    cases = [c for c in evidence()["cases"] if c["dominant"] == dominant and target == "classes"]
    close = [c for c in cases if abs(c["strengths"][c["dominant"]] - strength) <= NEAR]
    near = [c for c in close if not foreign(c, strengths)]
    if not near:
        return {
            "methods": [],
            "because": f"{differ} Compare FedAvg with two widely used methods.",
            "caution": f"We cannot say which method is best here: {missing(cases, close, strengths, target)}.",
            "command": command(["fedavg", *COMMON], data),
        }
    methods = [line for measure in MEASURES for line in helpful(near, measure)]
    order = list(dict.fromkeys(line["method"] for line in methods))
    models = {e["model"] for line in methods for e in line["evidence"]} - {PLAIN}
    advised = (
        f"Compare FedAvg with {listed([title(method.partition(':')[0]) for method in order])}."
        if order
        else "Train with FedAvg, and tune its learning rate."
    )
    return {
        "methods": methods,
        "because": " ".join([differ, advised, *nothing(near, {line["measure"] for line in methods})]),
        "caution": caution(near, dominant, strengths, name),
        "command": command(["fedavg", *order], data, *sorted(models)[:1]),
    }


def foreign(case: Case, strengths: Mapping[str, float]) -> list[str]:
    """The faces that the case shows and these data do not: a method may have helped against them."""
    return [face for face, value in case["strengths"].items() if value >= SHOWS and not strengths.get(face)]


def missing(cases: Sequence[Case], close: Sequence[Case], strengths: Mapping[str, float], target: str) -> str:
    """Why no run of our own says anything about these data."""
    if target != "classes":
        return "all our experiments have classes"
    at = listed(sorted(f"{c['strengths'][c['dominant']]:.2f}" for c in close or cases))
    if close:
        others = listed(list(dict.fromkeys(face for case in close for face in foreign(case, strengths))))
        return f"in our experiments of about this strength ({at}) clients also differ by {others}, and yours do not"
    return f"our experiments have other strengths ({at})" if at else "we have no experiment with this difference"


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


def nothing(near: Sequence[Case], helped: Collection[Measure]) -> list[str]:
    """Sentences on the measures on which no method helped."""
    said = []
    for measure in MEASURES:
        tried = {line["method"] for case in near for line in case["methods"] if line["measure"] == measure}
        if measure not in helped:
            few = "the only method was not" if len(tried) == 1 else f"none of {len(tried)} methods was"
            what = f"{few} better than FedAvg" if tried else "we tried no method"
            said.append(f"In {count(len(near), 'experiment')} with such differences, {what} {MEASURES[measure]}.")
    return said


def caution(near: Sequence[Case], dominant: str, strengths: Mapping[str, float], name: str) -> str:
    """Sentences on how thin the evidence is."""
    data = listed(sorted({c["data"] for c in near}))
    seeds = min(line["seeds"] for case in near for line in case["methods"])
    said = [
        f"This rests on {count(len(near), 'experiment')} ({data}; {seeds} seeds each), so compare before you choose."
    ]
    others = [face for face, strength in strengths.items() if face != dominant and strength >= strengths[dominant] / 2]
    if others:
        said.append(f"Your clients also differ by {listed(others)}, theirs hardly did.")
    itself = sum(c["data"].partition(":")[0] == name for c in near)
    if itself:
        said.append(f"{count(itself, 'experiment')} used {name} itself.")
    return " ".join([*said, "Leave out --tuned for a quick look."])


def listed(words: Sequence[str]) -> str:
    """The words, with commas and "and"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


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

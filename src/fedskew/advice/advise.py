"""Recommend methods. Each comes with its expected gain, the nearest cases, and a check of such advice on other data sets."""

import math
from collections.abc import Sequence
from typing import TypedDict

from fedskew.advice.check import Check, check
from fedskew.advice.evidence import FACES, MEASURES, Case, Line, Measure, Strengths
from fedskew.advice.model import Expected, advisable, fit, points_of
from fedskew.advice.protocol import NEEDS
from fedskew.core.counting import count, percent
from fedskew.core.titles import title
from fedskew.measure.statistics import Verdict

NEAREST = 5
"""Number of cases that are shown beside an expected gain."""

MOST = 3
"""Maximum number of recommended methods for each measure."""

FAIR = "--tuned"
"""Option of an advised comparison: each method needs its own learning rate."""

COMMON = ("scaffold", "fedprox:mu=0.1")
"""Methods to compare with FedAvg if there is no evidence for any method."""


class Near(TypedDict):
    """The gain of a method in a case with similar strengths of the faces."""

    data: str
    skew: str
    distance: float  # Euclidean, between the strengths of the faces
    text: str  # the change of the metric
    verdict: Verdict
    seeds: int


class Recommended(TypedDict):
    """A method for one measure. ``expected`` is the share of FedAvg's error that it should remove, with its 95 % interval."""

    method: str
    measure: Measure
    meaning: str
    expected: float
    low: float
    high: float
    evidence: list[Near]


class Advice(TypedDict):
    """The recommended methods, best first, with reasons and the command that compares them."""

    methods: list[Recommended]
    because: str
    checked: list[str]
    caution: str
    command: str


def advise(
    cases: Sequence[Case],
    dominant: str,
    strengths: Strengths,
    data: str = "",
    name: str = "",
    target: str = "classes",
) -> Advice:
    """Recommend methods for data with these ``strengths`` of the faces.

    For each measure these are the methods with the largest expected gain, if it is above 0. Only cases with the same kind of
    ``target`` count. ``data`` are the arguments of ``fedskew compare`` that name the data. Cases of the data set ``name`` are
    counted.
    """
    if not dominant:
        return {
            "methods": [],
            "because": "No measured face differs beyond chance. Train with FedAvg, and tune its learning rate.",
            "checked": [],
            "caution": "Differences that are too small to show in so few rows may exist.",
            "command": command(["fedavg"], data),
        }
    named: dict[str, float] = {str(face): value for face, value in strengths.items()}
    differ = f"Your clients differ mostly by {dominant} (strength {named[dominant]:.2f})."
    alike = [case for case in cases if case.target == target]
    if not alike:
        return {
            "methods": [],
            "because": f"{differ} Compare FedAvg with two widely used methods.",
            "checked": [],
            "caution": f"We cannot say which method is best here: {missing(cases, target)}.",
            "command": command(["fedavg", *COMMON], data),
        }
    near = sorted(alike, key=lambda case: distance(case, strengths))[:NEAREST]
    methods = [
        recommended(one, measure, near, strengths) for measure in MEASURES for one in best(alike, measure, strengths)
    ]
    order = list(dict.fromkeys(line["method"] for line in methods))
    advised = (
        f"Compare FedAvg with {listed([title(method.partition(':')[0]) for method in order])}."
        if order
        else "Train with FedAvg, and tune its learning rate: no method is expected to do better."
    )
    return {
        "methods": methods,
        "because": f"{differ} {advised}",
        "checked": [verdict_on(check(alike, measure), measure) for measure in MEASURES],
        "caution": caution(alike, name),
        "command": command(["fedavg", *order], data),
    }


def best(cases: Sequence[Case], measure: Measure, strengths: Strengths) -> list[Expected]:
    """Return the `MOST` methods with the largest expected gains, best first. Each expected gain is above 0."""
    model = fit(points_of(cases, measure))
    found = [model.expected(method, strengths) for method in advisable(cases, measure)]
    return sorted((one for one in found if one.gain > 0), key=lambda one: -one.gain)[:MOST]


def recommended(one: Expected, measure: Measure, near: Sequence[Case], strengths: Strengths) -> Recommended:
    found: list[Near] = [
        {
            "data": case.data,
            "skew": case.skew,
            "distance": distance(case, strengths),
            "text": change(case, line),
            "verdict": case.verdicts()[line.method, measure],
            "seeds": line.seeds,
        }
        for case in near
        for line in case.methods
        if (line.method, line.measure) == (one.method, measure)
    ]
    return {
        "method": one.method,
        "measure": measure,
        "meaning": MEASURES[measure],
        "expected": one.gain,
        "low": one.low,
        "high": one.high,
        "evidence": found,
    }


def distance(case: Case, strengths: Strengths) -> float:
    """Return the Euclidean distance between the strengths of the case and the given ones."""
    return math.dist([case.strengths[face] for face in FACES], [strengths.get(face, 0.0) for face in FACES])


def change(case: Case, line: Line) -> str:
    """Return the change of the metric as text: ``+2.1 ± 0.5 points``, or ``rmse -0.3 ± 0.1``."""
    if case.better == "higher":
        return f"{100 * line.gain:+.1f} ± {100 * line.half:.1f} points"
    return f"{case.metric} {-line.gain:+.3g} ± {line.half:.2g}"


def verdict_on(found: Check | None, measure: Measure) -> str:
    """Say in a sentence if such advice beat FedAvg on data sets that the model never saw."""
    where = MEASURES[measure]
    if found is None:
        return f"This advice was not checked {where}: that needs three data sets."
    removed = f"{percent(found.advised.mean)} ± {100 * found.advised.half:.0f} of FedAvg's error"
    checked = f"on {found.data_sets} data sets that it never saw"
    if found.beats_fedavg:
        return f"Checked {checked}, such advice beat FedAvg, tuned, {where}: it removed {removed}."
    return f"Checked {checked}, such advice did not beat FedAvg, tuned, {where}: it removed {removed}, which is not above 0."


def missing(cases: Sequence[Case], target: str) -> str:
    """Say why no case has the same kind of target as these data."""
    kinds = sorted({case.target for case in cases})
    return f"all our experiments have {listed(kinds)}" if kinds else "there are no experiments"


def caution(cases: Sequence[Case], name: str) -> str:
    """Say on how many experiments and seeds the advice rests."""
    sets = sorted({case.data_set for case in cases})
    seeds = [line.seeds for case in cases for line in case.methods]
    number = f"{min(seeds)} to {max(seeds)}" if seeds and min(seeds) < max(seeds) else f"{max(seeds, default=0)}"
    said = [
        f"This rests on {count(len(cases), 'experiment')} ({listed(sets)}; {number} seeds each) with small models and "
        f"few rounds, so "
        "compare before you choose."
    ]
    itself = sum(case.data_set == name for case in cases)
    if itself:
        said.append(f"{count(itself, 'experiment')} used {name} itself.")
    return " ".join([*said, "Leave out --tuned for a quick look."])


def listed(words: Sequence[str]) -> str:
    """Join the words with commas and "and"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def command(methods: Sequence[str], data: str = "") -> str:
    """Return the command that compares the methods, each with a tuned learning rate and the options that it needs."""
    needs = [NEEDS[name] for method in methods if (name := method.partition(":")[0]) in NEEDS]
    words = ["fedskew compare", data, FAIR, *dict.fromkeys(needs), f"--algorithms {' '.join(methods)}"]
    return " ".join(word for word in words if word)

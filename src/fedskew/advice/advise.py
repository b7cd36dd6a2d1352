"""The overall winner: the method with the largest mean gain over the data sets. `check` chooses it without each data set in turn.

A gain is a share of FedAvg's error. With a model for each client, it is the share beyond what adapted FedAvg removes. Each
data set counts once: its gain is the mean over its cases.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple, TypedDict

from fedskew.advice import evidence
from fedskew.core.groups import grouped
from fedskew.core.text import count, listed, percent, title
from fedskew.measure.statistics import LEVEL, mean_interval, paired_p

OFTEN = 0.5
"""A method can win only if it was measured in at least this share of the cases."""


BEYOND: dict[evidence.Measure, str] = {"test": "", "own": " more than FedAvg + FT did"}
"""End of a sentence on a gain: what it is compared with."""


class Winner(TypedDict):
    """The method with the largest mean gain on one measure."""

    method: str
    measure: evidence.Measure
    meaning: str  # the measure in words
    gain: float  # mean share of FedAvg's error that it removed; for "own", minus the share that FedAvg + FT removed
    beyond: str  # the entry of `BEYOND`
    half: float  # half-width of the 95 % interval of ``gain``
    data_sets: int  # over which ``gain`` is a mean
    methods: int  # among which it is the largest


class Check(NamedTuple):
    """Mean gains over the data sets, with the half-widths of 95 % intervals."""

    data_sets: int
    gain: float  # of the winner of all other data sets
    half: float
    best: float  # of the best method of each data set, which is known only afterwards
    # the winner of the others beats FedAvg (adapted, for a model for each client), by the paired t test
    beats_fedavg: bool


def reference(case: evidence.Case, measure: evidence.Measure) -> float | None:
    """Return the share of FedAvg's error that the method to beat removes.

    That method is FedAvg, or adapted FedAvg if each client has its own model. None if the case did not measure adapted FedAvg.
    """
    if measure == "test":
        return 0.0
    lines = (line for line in case.methods if (line.method, line.measure) == (evidence.ADAPTED, measure))
    return next(map(case.share, lines), None)


def gains_of(cases: Sequence[evidence.Case], measure: evidence.Measure) -> dict[str, dict[str, float]]:
    """Return by method and data set the mean gain over its cases, for methods that may be advised.

    These are federated methods that were measured in at least half of the cases that have a `reference`.
    """
    excluded = (*evidence.BOUNDS, *evidence.PUBLISHED, evidence.REFERENCE)
    shares: dict[str, dict[str, list[float]]] = {}
    bases = [(case, base) for case in cases if (base := reference(case, measure)) is not None]
    for case, base in bases:
        for line in case.methods:
            if line.measure == measure and line.method not in excluded:
                shares.setdefault(line.method, {}).setdefault(case.data_set, []).append(case.share(line) - base)
    enough = OFTEN * len(bases)
    return {
        method: {data_set: fmean(values) for data_set, values in of_sets.items()}
        for method, of_sets in shares.items()
        if sum(map(len, of_sets.values())) >= enough
    }


def winner(cases: Sequence[evidence.Case], measure: evidence.Measure) -> Winner | None:
    """Return the overall winner of these cases; None if no mean gain is above 0."""
    gains = gains_of(cases, measure)
    best = max(gains, key=lambda method: fmean(gains[method].values()), default="")
    values = list(gains.get(best, {}).values())
    if not values or fmean(values) <= 0:
        return None
    mean, half = mean_interval(values)
    return {
        "method": best,
        "measure": measure,
        "meaning": evidence.MEASURES[measure],
        "gain": mean,
        "beyond": BEYOND[measure],
        "half": half,
        "data_sets": len(values),
        "methods": len(gains),
    }


def check(cases: Sequence[evidence.Case], measure: evidence.Measure) -> Check | None:
    """Leave out each data set in turn, choose the winner on the others, and measure it on the one left out.

    None for fewer than three data sets. A data set in which the winner of the others was not measured counts as FedAvg, with a
    gain of 0.
    """
    of_sets = grouped(
        (case.data_set, case)
        for case in cases
        if reference(case, measure) is not None and any(line.measure == measure for line in case.methods)
    )
    if len(of_sets) < 3:
        return None
    reached, best = [], []
    for name, left_out in sorted(of_sets.items()):
        elsewhere = winner([case for other, rest in of_sets.items() if other != name for case in rest], measure)
        here = gains_of(left_out, measure)
        reached.append(here.get(elsewhere["method"], {}).get(name, 0.0) if elsewhere else 0.0)
        best.append(max([0.0, *(values[name] for values in here.values())]))
    mean, half = mean_interval(reached)
    return Check(len(of_sets), mean, half, fmean(best), paired_p(reached) < LEVEL and mean > 0)


NEAREST = 5
"""Number of nearest cases that are shown."""

MOST = 3
"""Maximum number of recommended methods."""

FAIR = "--tuned"
"""Option of an advised comparison: each method needs its own learning rate."""

COMMON = ("scaffold", "fedprox:mu=0.1")
"""Methods to compare with FedAvg if there is no evidence for any method."""


class Advice(TypedDict):
    """The overall winners, the nearest cases, reasons, and the command that compares the methods."""

    methods: list[Winner]
    nearest: list[dict[str, Any]]  # see `nearest_cases`
    because: str
    checked: list[str]
    caution: str
    command: str


def advise(
    cases: Sequence[evidence.Case],
    dominant: str,
    strengths: evidence.Strengths,
    data: str = "",
    name: str = "",
    target: str = "classes",
) -> Advice:
    """Recommend methods for data with these ``strengths`` of the faces.

    These are the overall winner on each measure, and methods with the verdict *higher* in one of the nearest cases. Only cases with
    the same kind of ``target`` count. ``data`` are the arguments of ``fedskew compare`` that name the data. Cases of the data set
    ``name`` are counted.
    """
    alike = [case for case in cases if case.target == target] if dominant else []
    winners = [best for measure in evidence.MEASURES if (best := winner(alike, measure))]
    nearest = nearest_cases(alike, strengths)
    reliable = [near["method"] for near in nearest if near["verdict"] == "higher"]
    measured = any(reference(case, "own") is not None for case in alike)
    if measured and not any(line["measure"] == "own" for line in winners):
        reliable.insert(0, evidence.ADAPTED)
    order = list(dict.fromkeys([*(line["method"] for line in winners), *reliable]))[:MOST]
    strength = next((value for face, value in strengths.items() if face == dominant), 0.0)
    differ = f"Your clients differ mostly by {dominant} (strength {strength:.2f})."
    if not dominant:
        because = "No measured face differs beyond chance. Train with FedAvg, and tune its learning rate."
        beware = "Differences that are too small to show in so few rows may exist."
    elif not alike:
        order = [*COMMON]
        because = f"{differ} Compare FedAvg with two widely used methods."
        beware = f"We cannot say which method is best here: {missing(cases, target)}."
    else:
        because = f"{differ} Train with FedAvg, and tune its learning rate: no method did better on average."
        if order:
            because = f"{differ} Compare FedAvg with {listed([title(method.partition(':')[0]) for method in order])}."
        beware = caution(alike, name)
    return {
        "methods": winners,
        "nearest": nearest,
        "because": because,
        "checked": [verdict_on(check(alike, measure), measure) for measure in evidence.MEASURES if alike],
        "caution": beware,
        "command": command(["fedavg", *order], data),
    }


def nearest_cases(cases: Sequence[evidence.Case], strengths: evidence.Strengths) -> list[dict[str, Any]]:
    """Return the best method on each measure in the `NEAREST` cases with the most similar strengths, the nearest first.

    ``text`` is the change of the metric, and ``meaning`` the measure in words.
    """
    rows = []
    for case in sorted(cases, key=lambda case: distance(case, strengths))[:NEAREST]:
        for measure, meaning in evidence.MEASURES.items():
            allowed = gains_of([case], measure)
            if lines := [line for line in case.methods if line.measure == measure and line.method in allowed]:
                best = max(lines, key=lambda line: line.gain)
                rows.append(
                    {
                        "data": case.data,
                        "skew": case.skew,
                        "distance": distance(case, strengths),
                        "measure": measure,
                        "meaning": meaning,
                        "method": best.method,
                        "text": evidence.change(case, best),
                        "verdict": case.verdicts()[best.method, measure],
                        "seeds": best.seeds,
                    }
                )
    return rows


def distance(case: evidence.Case, strengths: evidence.Strengths) -> float:
    """Return the Euclidean distance between the strengths of the case and the given ones."""
    faces = evidence.FACES
    return math.dist([case.strengths[face] for face in faces], [strengths.get(face, 0.0) for face in faces])


def verdict_on(result: Check | None, measure: evidence.Measure) -> str:
    """Say in a sentence if the winner of other data sets beat FedAvg on the data set that was left out."""
    where = evidence.MEASURES[measure]
    if result is None:
        return f"The winner was not checked {where}: that needs three data sets."
    rival = "FedAvg" if measure == "test" else title(evidence.ADAPTED)
    if not result.gain and not result.half:
        return f"No method had a larger mean gain than {rival}, tuned, with any of {result.data_sets} data sets left out, {where}."
    removed = f"{percent(result.gain)} ± {100 * result.half:.0f} of FedAvg's error{BEYOND[measure]}"
    beat = f"{'beat' if result.beats_fedavg else 'did not beat'} {rival}"
    return f"The winner of the other data sets {beat}, tuned, on {result.data_sets} data sets {where}: it removed {removed}."


def missing(cases: Sequence[evidence.Case], target: str) -> str:
    """Say why no case has the same kind of target as these data."""
    kinds = sorted({case.target for case in cases})
    return f"all our experiments have {listed(kinds)}" if kinds else "there are no experiments"


def caution(cases: Sequence[evidence.Case], name: str) -> str:
    """Say on how many experiments and seeds the advice rests."""
    sets = sorted({case.data_set for case in cases})
    seeds = [line.seeds for case in cases for line in case.methods]
    number = f"{min(seeds)} to {max(seeds)}" if seeds and min(seeds) < max(seeds) else f"{max(seeds, default=0)}"
    sentences = [
        f"This rests on {count(len(cases), 'experiment')} ({listed(sets)}; {number} seeds each) with small models and "
        "few rounds, so compare before you choose."
    ]
    if itself := sum(case.data_set == name for case in cases):
        sentences.append(f"{count(itself, 'experiment')} used {name} itself.")
    return " ".join([*sentences, "Leave out --tuned for a quick look."])


def command(methods: Sequence[str], data: str = "") -> str:
    """Return the command that compares the methods, each with a tuned learning rate and the options that it needs."""
    needs = [evidence.NEEDS[name] for method in methods if (name := method.partition(":")[0]) in evidence.NEEDS]
    words = ["fedskew compare", data, FAIR, *dict.fromkeys(needs), f"--algorithms {' '.join(methods)}"]
    return " ".join(word for word in words if word)

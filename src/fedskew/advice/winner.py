"""The overall winner: the method with the largest mean gain over the data sets. `check` chooses it without each data set in turn.

A gain is a share of FedAvg's error. With a model for each client, it is the share beyond what adapted FedAvg removes. Each
data set counts once: its gain is the mean over its cases.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from fedskew.advice.evidence import Case, Measure
from fedskew.advice.protocol import ADAPTED, BOUNDS, PUBLISHED, REFERENCE
from fedskew.measure.intervals import mean_interval
from fedskew.measure.statistics import LEVEL, paired_p

OFTEN = 0.5
"""A method can win only if it was measured in at least this share of the cases."""


BEYOND: dict[Measure, str] = {"test": "", "own": " more than FedAvg + FT did"}
"""What follows a gain of `Winner` and `Check` in a sentence."""


class Winner(NamedTuple):
    """A method's mean gain over ``data_sets`` data sets, the largest of ``methods``; half-width of its 95 % interval."""

    method: str
    gain: float
    half: float
    data_sets: int
    methods: int


class Check(NamedTuple):
    """Mean gains over the data sets, with the half-widths of 95 % intervals."""

    data_sets: int
    gain: float  # of the winner of all other data sets
    half: float
    best: float  # of the best method of each data set, which is known only afterwards
    beats_fedavg: (
        bool  # the winner of the others beats FedAvg (adapted, for a model for each client), by the paired t test
    )


def reference(case: Case, measure: Measure) -> float | None:
    """Return the share of FedAvg's error that the method to beat removes: FedAvg, or adapted FedAvg for a model for each client.

    None if the case did not measure adapted FedAvg.
    """
    if measure == "test":
        return 0.0
    lines = (line for line in case.methods if (line.method, line.measure) == (ADAPTED, measure))
    return next(map(case.share, lines), None)


def gains_of(cases: Sequence[Case], measure: Measure) -> dict[str, dict[str, float]]:
    """Return by method and data set the mean gain over its cases, for methods that may be advised.

    These are federated methods that were measured in at least half of the cases that have a `reference`.
    """
    shares: dict[str, dict[str, list[float]]] = {}
    bases = [(case, base) for case in cases if (base := reference(case, measure)) is not None]
    for case, base in bases:
        for line in case.methods:
            if line.measure == measure and line.method not in (*BOUNDS, *PUBLISHED, REFERENCE):
                shares.setdefault(line.method, {}).setdefault(case.data_set, []).append(case.share(line) - base)
    enough = OFTEN * len(bases)
    return {
        method: {data_set: fmean(values) for data_set, values in of_sets.items()}
        for method, of_sets in shares.items()
        if sum(map(len, of_sets.values())) >= enough
    }


def winner(cases: Sequence[Case], measure: Measure) -> Winner | None:
    """Return the overall winner of these cases; None if no mean gain is above 0."""
    gains = gains_of(cases, measure)
    best = max(gains, key=lambda method: fmean(gains[method].values()), default="")
    values = list(gains.get(best, {}).values())
    if not values or fmean(values) <= 0:
        return None
    return Winner(best, *mean_interval(values), len(values), len(gains))


def check(cases: Sequence[Case], measure: Measure) -> Check | None:
    """Choose the winner without each data set in turn, and measure it there. None for fewer than three data sets.

    A data set in which the winner of the others was not measured counts as FedAvg, with a gain of 0.
    """
    of_measure = [
        case
        for case in cases
        if reference(case, measure) is not None and any(line.measure == measure for line in case.methods)
    ]
    names = sorted({case.data_set for case in of_measure})
    if len(names) < 3:
        return None
    reached, best = [], []
    for name in names:
        chosen = winner([case for case in of_measure if case.data_set != name], measure)
        here = gains_of([case for case in of_measure if case.data_set == name], measure)
        reached.append(here.get(chosen.method, {}).get(name, 0.0) if chosen else 0.0)
        best.append(max([0.0, *(values[name] for values in here.values())]))
    mean, half = mean_interval(reached)
    return Check(len(names), mean, half, fmean(best), paired_p(reached) < LEVEL and mean > 0)

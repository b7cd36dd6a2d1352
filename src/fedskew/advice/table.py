"""The evidence as a table: one row for each gain, with its verdict and the command that repeats it."""

import shlex
from collections.abc import Iterator, Sequence
from typing import TypedDict

from fedskew.advice.advise import change
from fedskew.advice.evidence import FACES, Case, Face, Line, Measure
from fedskew.core.text import percent, title
from fedskew.measure.statistics import Verdict

MEASURED_ON: dict[Measure, str] = {"test": "one model, test rows", "own": "clients' own held-out rows"}


class Cell(TypedDict):
    """One row of the table: a gain over FedAvg."""

    data: str
    skew: str
    dominant: str
    strengths: dict[Face, float]
    method: str
    title: str
    measured_on: str
    lr: float
    fedavg: str
    change: str  # of the metric, with its 95 % interval
    share: float  # gain divided by FedAvg's error
    removed: str
    verdict: Verdict
    seeds: int
    command: str


def cells(cases: Sequence[Case]) -> Iterator[Cell]:
    """Yield the rows of all gains, case by case."""
    for case in cases:
        verdicts = case.verdicts()
        for line in case.methods:
            yield {
                "data": case.data,
                "skew": case.skew,
                "dominant": case.dominant or "none",
                "strengths": case.strengths,
                "method": line.method,
                "title": title(line.method.partition(":")[0]),
                "measured_on": MEASURED_ON[line.measure],
                "lr": line.lr,
                "fedavg": reached(case, line.measure),
                "change": change(case, line),
                "share": case.share(line),
                "removed": percent(case.share(line)),
                "verdict": verdicts[line.method, line.measure],
                "seeds": line.seeds,
                "command": repeats(case, line),
            }


def reached(case: Case, measure: Measure) -> str:
    """Return FedAvg's metric as text."""
    value = case.fedavg.get(measure, float("nan"))
    return f"{100 * value:.1f} %" if case.better == "higher" else f"{case.metric} {value:.4g}"


def repeats(case: Case, line: Line) -> str:
    """Return the command that repeats a gain."""
    made = f"--case {shlex.quote(case.title)} --algorithms {line.method} --seeds {line.seeds}"
    return case.command or f"fedskew evidence run {made} --runs again"


def summary(cases: Sequence[Case]) -> list[dict[str, str]]:
    """Return one row for each case: strengths, FedAvg's metric, the number of decided gains, the largest gain on test rows."""
    rows = []
    for case in cases:
        verdicts = list(case.verdicts().values())
        best = max((line for line in case.methods if line.measure == "test"), key=lambda line: line.gain, default=None)
        faces: dict[str, str] = {face: f"{case.strengths[face]:.2f}" for face in FACES}
        rows.append(
            {
                "data": case.data,
                "skew": case.skew,
                **faces,
                "FedAvg": reached(case, "test"),
                "best method": best.method if best else "",
                "its change": change(case, best) if best else "",
                "higher": str(verdicts.count("higher")),
                "lower": str(verdicts.count("lower")),
                "gains": str(len(verdicts)),
            }
        )
    return rows


def described(cases: Sequence[Case]) -> str:
    """Say in a sentence how many cases, methods and gains the evidence has."""
    methods = {line.method for case in cases for line in case.methods}
    number = sum(len(case.methods) for case in cases)
    sets = {case.data_set for case in cases}
    decided = sum(verdict != "undecided" for case in cases for verdict in case.verdicts().values())
    return (
        f"{len(cases)} cases of {len(sets)} data sets, {len(methods)} methods beside FedAvg, {number} gains; {decided} of them are "
        "decided after Holm's correction."
    )

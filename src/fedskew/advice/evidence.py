"""The packaged evidence: what each method gained over FedAvg under a skew whose faces were measured."""

from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, NotRequired, TypedDict

import msgspec

from fedskew.core.errors import BadInput
from fedskew.measure.statistics import Verdict, decided, holm, interval_p

Face = Literal["label", "feature", "quantity", "concept"]
Measure = Literal["test", "own"]


class Line(TypedDict):
    """A method's gain in accuracy on a measure, at the rate tuned for it, with the half-width of its 95 % interval."""

    method: str
    lr: float
    measure: Measure
    gain: float
    half: float
    seeds: int
    verdict: NotRequired[Verdict]  # made when the file is read


class Case(TypedDict):
    """A skew of some data, with FedAvg's accuracies."""

    data: str
    skew: str
    model: str
    dominant: Face
    strengths: Annotated[dict[Face, float], msgspec.Meta(min_length=4)]  # of all faces, 0..1
    fedavg: dict[Measure, float]
    methods: Annotated[list[Line], msgspec.Meta(min_length=1)]


class Evidence(TypedDict):
    """The table and the command that makes it."""

    made_by: str
    cases: list[Case]


@cache
def evidence() -> Evidence:
    """The packaged evidence."""
    return read((files("fedskew.advice") / "evidence.json").read_bytes(), "evidence.json")


def read(data: bytes, where: str) -> Evidence:
    """Read evidence from JSON and add a verdict to each gain. Raises `BadInput` for another file.

    Verdicts come from the paired t test at 5 %, after Holm's correction for all gains of the file.
    """
    try:
        found = msgspec.json.decode(data, type=Evidence)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInput(
            f"evidence {where}: {error}; experiments/evidence.py makes it, and a fresh installation has it"
        ) from None
    lines = [line for case in found["cases"] for line in case["methods"]]
    corrected = holm([interval_p(line["gain"], line["half"], line["seeds"]) for line in lines])
    for line, p in zip(lines, corrected, strict=True):
        line["verdict"] = decided(p, line["gain"])
    return found

"""Types of a stored run: the columns of its row, and the keys of its JSON facts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

from fedskew.core.metrics import TaskMetric
from fedskew.measure.registry import declare, declare_metrics

Json = dict[str, Any]
"""A JSON object or a TOML table."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Engine(TypedDict, total=False):
    name: str
    choice: str
    estimated_seconds_a_round: dict[str, float]
    note: str


class Sign(TypedDict):
    """A warning: the measured value, its threshold, the threshold's source, and a remedy. ``line`` is the whole message."""

    kind: str
    line: str
    measured: NotRequired[str]
    threshold: NotRequired[str]
    source: NotRequired[str]
    remedy: NotRequired[str]


class Data(TypedDict, total=False):
    name: str
    source: str
    notes: str
    fingerprint: str
    training_rows: Count
    test_rows: Count
    test_units: Count  # persons or clients of the test rows, or the rows themselves


class Facts(TypedDict, total=False):
    """Known facts of a run. Other keys are allowed."""

    engine: Engine
    metrics: list[Json]  # the metrics of a user's own task, see `TaskMetric.given`
    primary: str  # the name of the task's primary metric
    defaults: Json  # the default options by section; reports hide options with these values
    profile: dict[str, float]
    warnings: list[Sign]
    data: Data
    baselines: dict[str, dict[str, float]]  # metrics of predictions without a model, by baseline and metric
    partition: Json
    frozen: Json
    flower: Json
    tuned: Json
    tuning: Json
    versions: dict[str, str]
    machine: dict[str, str]
    layers: list[str]
    classes: list[str]
    adaptation: list[str]
    measured_every: Count
    parameters: Count
    asked: str
    tags: list[str]


class Stored(TypedDict):
    """The columns of a run."""

    id: Count
    comparison: Count | None
    name: str
    experiment: str
    experiment_hash: str
    seed: int
    partition_seed: int
    status: Literal["planned", "running", "finished", "interrupted", "diverged", "failed"]
    message: str
    rounds: Count
    rounds_done: Count
    created: Time
    updated: Time
    facts: Facts


def problem(row: Json) -> str:
    """Check the types of a run's columns; return the first error, or an empty text."""
    try:
        msgspec.convert(row, Stored)
    except msgspec.ValidationError as error:
        return str(error).replace("`", "").replace("$.", "").replace(" - at ", " at ")
    return ""


DAMAGED = "damaged"
"""Status of a record that could not be read from the store. It is never written to the store."""


@dataclass(frozen=True)
class RunRecord:
    """One run, without its measurements."""

    id: int
    comparison: int | None
    name: str
    experiment: str
    experiment_hash: str
    seed: int
    partition_seed: int
    status: str
    message: str
    rounds: int
    rounds_done: int
    created: str
    updated: str
    facts: Facts


COLUMNS = [field.name for field in fields(RunRecord)]


def read_json(text: str) -> Json:
    """Read facts. The faster reader knows no NaN."""
    try:
        facts: Json = msgspec.json.decode(text)
    except msgspec.DecodeError:
        facts = json.loads(text)
    return facts


def record_from(row: Sequence[object]) -> RunRecord:
    """Make a record from a row with the values of `COLUMNS`.

    For a damaged row, the record has the run's number, the status `DAMAGED`, and the reason as its message.
    """
    values: Json = dict(zip(COLUMNS, row, strict=True))
    try:
        values["facts"] = read_json(values["facts"])
        reason = problem(values)
        if not reason:
            declare(values["facts"].get("measures", ()))
            declare_metrics(msgspec.convert(values["facts"].get("metrics", ()), tuple[TaskMetric, ...]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = str(error)
    if reason:
        reason = f"its record in the store is damaged: {reason}"
        return RunRecord(int(values["id"]), None, "?", "", "", 0, 0, DAMAGED, reason, 0, 0, "", "", {})
    return RunRecord(**values)

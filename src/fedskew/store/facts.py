"""Types of a stored run: its columns, and the facts that other code reads."""

from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

Json = dict[str, Any]
"""An object of JSON or TOML."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Engine(TypedDict, total=False):
    name: str
    choice: str
    estimated_seconds_a_round: dict[str, float]
    note: str


class Sign(TypedDict):
    """A warning: what was measured, its threshold and source, and what to try; ``line`` says all of it."""

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


class Facts(TypedDict, total=False):
    """Facts of a run. It may have others."""

    engine: Engine
    metrics: list[Json]  # of a task of users: `TaskMetric.given`
    primary: str  # the name of the task's primary metric
    defaults: Json  # the default options by section, which views leave out
    profile: dict[str, float]
    warnings: list[Sign]
    data: Data
    baselines: dict[str, dict[str, float]]  # metrics of answers without a model
    partition: Json
    frozen: Json
    flower: Json
    tuned: Json
    tuning: Json
    versions: dict[str, str]
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
    """The first error in the columns of a run; empty if there is none."""
    try:
        msgspec.convert(row, Stored)
    except msgspec.ValidationError as error:
        return str(error).replace("`", "").replace("$.", "").replace(" - at ", " at ")
    return ""

"""Records of runs: one row of the table ``runs`` as a Python object."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields

import msgspec

from fedskew.core.metrics import TaskMetric
from fedskew.measure.registry import declare, declare_metrics
from fedskew.store.facts import Facts, Json, problem

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


def record_from(row: Sequence[object]) -> RunRecord:
    """Make a record from a row with the values of `COLUMNS`.

    For a damaged row, the record has the run's number, the status `DAMAGED`, and the reason as its message.
    """
    values: Json = dict(zip(COLUMNS, row, strict=True))
    try:
        values["facts"] = json.loads(values["facts"])
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

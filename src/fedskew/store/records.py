"""What the store knows of a run, as it is read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import msgspec

DAMAGED = "damaged"
"""The status of a run whose record cannot be read; no run has it in the store."""


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
    facts: dict[str, Any]


class Data(TypedDict, total=False):
    name: str


class Facts(TypedDict, total=False):
    """The facts that tables and pages show, and their types; there may be others."""

    data: Data
    engine: dict[str, Any]
    measured_every: int
    partition: dict[str, Any]
    profile: dict[str, float]
    versions: dict[str, str]
    warnings: list[dict[str, Any]]


COLUMNS = [field.name for field in fields(RunRecord)]


def record_from(row: Sequence[Any]) -> RunRecord:
    """The record of a row of `COLUMNS`; of a row that is damaged its number, the status `DAMAGED`, and the reason."""
    values = dict(zip(COLUMNS, row, strict=True))
    try:
        record = msgspec.convert({**values, "facts": json.loads(values["facts"])}, RunRecord)
        msgspec.convert(record.facts, Facts)
    except (ValueError, TypeError, RecursionError) as error:
        reason = f"its record in the store is damaged: {error}"
        return RunRecord(int(values["id"]), None, "?", "", "", 0, 0, DAMAGED, reason, 0, 0, "", "", {})
    return record

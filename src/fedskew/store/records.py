"""What the run store holds: the tables of `schema.sql`, and the types of a run's row and of its facts."""

import json
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict, cast

import msgspec

from fedskew.core.errors import FedskewError, require
from fedskew.measure.registry import measures_of

VERSION = 1


def opened_for_writing(path: Path) -> sqlite3.Connection:
    """Open the database for writing; create it if it does not exist. Raises `sqlite3.Error` and `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    patiently(db, "PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("PRAGMA foreign_keys=ON")
    db.execute("BEGIN IMMEDIATE")
    if is_new(db) or version_of(db) == VERSION:
        make_tables(db)
    db.execute("COMMIT")
    return db


def opened_for_reading(path: Path) -> sqlite3.Connection:
    """Open the database for reading; if it does not exist, open an empty one in memory. Raises `sqlite3.Error`.

    While a process writes to a database, SQLite keeps two more files beside it. If these files do not exist and SQLite has no
    permission to create them, no process is writing, and the database is opened as immutable.
    """
    if path.exists():
        address, log = f"{path.resolve().as_uri()}?mode=ro", path.with_name(f"{path.name}-wal")
        try:
            db = sqlite3.connect(address, uri=True, timeout=60, isolation_level=None)
            new = is_new(db)
        except sqlite3.OperationalError:
            if log.exists() and log.stat().st_size:
                raise
            db = sqlite3.connect(f"{address}&immutable=1", uri=True, isolation_level=None)
            new = is_new(db)
        if not new:
            return db
    db = sqlite3.connect(":memory:", isolation_level=None)
    make_tables(db)
    return db


def make_tables(db: sqlite3.Connection) -> None:
    """Create the tables that the database lacks: all, or those that an older store does not have."""
    for statement in (files("fedskew.store") / "schema.sql").read_text(encoding="utf-8").split(";\n"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version={VERSION}")


def is_new(db: sqlite3.Connection) -> bool:
    """True for a database without tables."""
    return version_of(db) == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone()


def version_of(db: sqlite3.Connection) -> int:
    """Return the version of the schema; 0 if none was set."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def patiently(db: sqlite3.Connection, statement: str) -> None:
    """Execute a statement; retry for 10 s while another process locks the file. SQLite itself does not wait here."""
    for _ in range(200):
        try:
            db.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            time.sleep(0.05)
    raise sqlite3.OperationalError("database is locked")


Json = dict[str, Any]
"""A JSON object or a TOML table."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Status = Annotated[str, msgspec.Meta(pattern="^(planned|running|finished|interrupted|diverged|failed)$")]


class ChosenEngine(TypedDict, total=False):
    """How the engine of a run was chosen."""

    name: str
    choice: str  # the fastest option: engine and threads
    estimated_seconds_a_round: dict[str, float]  # by option
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


class RunFacts(TypedDict, total=False):
    """Known facts of a run. Other keys are allowed."""

    engine: ChosenEngine
    measures: list[Json]  # user's own metrics and what the method decides, see `fedskew.measure.registry.measures_of`
    metrics: list[Json]  # the metrics of a user's own task, see `TaskMetric.given`
    primary: str  # the name of the task's primary metric
    defaults: Json  # the default options by section; reports hide options with these values
    profile: dict[str, float]
    warnings: list[Sign]
    data: Data
    baselines: dict[str, dict[str, float]]  # metrics of predictions without a model, by baseline and metric
    partition: Json
    sites: Json  # what models are measured on at the sites, see `fedskew.execution.sites`
    frozen: Json
    flower: Json  # of a run between sites
    left: dict[str, dict[str, int]]  # names and sizes of what left the sites, by kind of request
    tuned: Json
    tuning: Json
    pace: float  # seconds of a run of those that a study executed side by side
    study: Json  # seconds of a study's timed run
    final: Json  # what a study expects of the model that was trained on all rows
    versions: dict[str, str]
    machine: dict[str, str]
    layers: list[str]
    classes: list[str]
    adaptation: list[str]
    measured_every: Count
    parameters: Count
    asked: str
    hash_before: str  # the experiment's hash before the run got more rounds
    first_round: Count  # rounds that another run had done, see `training.init`
    best_round: Count  # of a run with `training.patience`
    tags: list[str]


DAMAGED = "damaged"
"""Status of a record that could not be read from the store. It is never written to the store."""


@dataclass(frozen=True)
class RunRecord:
    """One run, without its measurements. The fields are the columns of its row."""

    id: Count
    comparison: Count | None
    name: str
    experiment: str
    experiment_hash: str
    seed: int
    partition_seed: int
    status: Status
    message: str
    rounds: Count
    rounds_done: Count
    created: str
    updated: str
    facts: RunFacts

    @property
    def used_round(self) -> int:
        """The round of a finished run whose model is used: the best one if it has `training.patience`, else the last."""
        return self.facts.get("best_round", self.rounds)


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
        facts = values["facts"] = read_json(values["facts"])
        record = msgspec.convert(values, RunRecord)
        for moment in (record.created, record.updated):
            require(datetime.fromisoformat(moment).tzinfo is not None, f"the time {moment} has no time zone")
        measures_of([facts])
        cast(Json, record.facts).update(facts)  # the keys that `RunFacts` does not list
        return record
    except (FedskewError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = str(error).replace("`", "").replace("$.", "").replace(" - at ", " at ")
        reason = f"its record in the store is damaged: {reason}"
        return RunRecord(int(values["id"]), None, "?", "", "", 0, 0, DAMAGED, reason, 0, 0, "", "", {})

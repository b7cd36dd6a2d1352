"""The run store: one SQLite file with every run, its complete experiment, and all its measurements.

Measurements are rows (run, round, client or null, split, name, value); round 0 is before training. `fedskew.measure.registry` has
all splits and names.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fedskew.core.errors import BadInput, FedskewError, first_line, require
from fedskew.measure.registry import Measures, measures_of
from fedskew.store.records import (
    COLUMNS,
    DAMAGED,
    VERSION,
    RunRecord,
    opened_for_reading,
    opened_for_writing,
    record_from,
    version_of,
)

if TYPE_CHECKING:
    import pandas as pd

ADD_MEASUREMENTS = "INSERT INTO measurements VALUES (?, ?, ?, ?, ?, ?)"
WANTED = """(m.split, m.name) IN (
  SELECT substr(value, 1, instr(value, '/') - 1), substr(value, instr(value, '/') + 1) FROM json_each(:measures)
)"""
CURVES = f"""
SELECT m.run, m.round, m.client, m.split, m.name, m.value
FROM json_each(:after) AS w JOIN measurements AS m ON m.run = CAST(w.key AS INTEGER) AND m.round > w.value
WHERE (m.client IS NOT NULL) = :per_client AND (:measures = '[]' OR {WANTED})
ORDER BY m.run, m.round
"""
FACTS = "CASE WHEN json_valid(facts) THEN facts ELSE '{}' END"
LAST = f"""
WITH ends(run, until) AS (
  SELECT CAST(key AS INTEGER), min(value, coalesce(json_extract({FACTS}, '$.best_round'), value))
  FROM json_each(:until) LEFT JOIN runs ON runs.id = CAST(key AS INTEGER) AND status = 'finished'
), spans(run, since, until) AS (
  SELECT run, (
    SELECT m.round FROM measurements AS m WHERE m.run = ends.run AND m.round <= until AND m.split <> 'round' AND {WANTED}
    ORDER BY m.round DESC LIMIT 1
  ), until FROM ends
)
SELECT m.run, max(m.round), m.client, m.split, m.name, m.value
FROM spans JOIN measurements AS m ON m.run = spans.run AND m.round BETWEEN coalesce(since, 0) AND until
WHERE (m.client IS NOT NULL) = :per_client AND {WANTED}
GROUP BY m.run, m.client, m.split, m.name
"""
"""SQLite takes the columns without an aggregate from the row with the largest round.

A run's rows are read backwards from its end to the last round in which a model was measured, not all of them.
"""

REQUESTED = f"coalesce(json_extract({FACTS}, '$.asked'), experiment_hash)"
"""The hash of the experiment that was requested, before its engine was chosen."""

Rounds = Mapping[int, int]
"""A round for each run."""

EVERY_ROUND: Rounds = MappingProxyType({})

Row = tuple[int | None, str, str, float]
"""(client or None, split, name, value) of one round."""


class Measurement(NamedTuple):
    """A value that a run stored after ``round``: of a ``client``, or of none. NaN is a value, too."""

    run: int
    round: int
    client: int | None
    split: str
    name: str
    value: float


class RunStore:
    """The run store of one folder. Several processes may use it at once; a killed process loses at most its current round.

    With ``read_only`` nothing is written. The folder may then be missing or not writable.
    """

    def __init__(self, folder: str | Path = "runs", read_only: bool = False) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "fedskew.db"
        try:
            self.db = opened_for_reading(self.path) if read_only else opened_for_writing(self.path)
            version = version_of(self.db)
        except (OSError, sqlite3.Error, ValueError) as error:
            what = "read" if read_only else "opened or written"
            raise BadInput(f"run store {self.folder}: cannot be {what}: {error}") from None
        if version != VERSION:
            raise BadInput(f"run store {self.folder}: made by another version of fedskew (schema {version})")

    def resume_command(self, *words: object) -> str:
        """The command that continues runs of this store."""
        return " ".join(["fedskew resume", *map(str, words)]) + self.option

    @property
    def option(self) -> str:
        """What a command ends with so that it uses this store: `` --runs FOLDER``, or nothing for the default folder."""
        return "" if self.folder == Path("runs") else f" --runs {shlex.quote(str(self.folder))}"

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all statements or none. Raises `FedskewError` if the disk is full or the folder is gone."""
        try:
            self.db.execute("BEGIN IMMEDIATE")
            yield
            self.db.execute("COMMIT")
        except BaseException as error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise FedskewError(
                    f"run store {self.folder}: cannot write ({error}); everything up to the last finished round is kept"
                ) from None
            raise

    # writing
    def add_comparison(self, title: str) -> int:
        """Register a comparison; return its number."""
        with self.transaction():
            number = self.unused("comparisons", self.folder.glob("c*.html"))
            self.db.execute("INSERT INTO comparisons VALUES (?, ?, ?)", (number, title, now()))
        return number

    def unused(self, table: str, files: Iterable[Path]) -> int:
        """Return one more than the largest number in the table and in the names of ``files``.

        An earlier store may have left such files in the folder.
        """
        left = [int(path.stem.removeprefix("c")) for path in files if re.fullmatch(r"c?[0-9]{1,9}", path.stem)]
        newest = self.db.execute(f"SELECT max(id) FROM {table}").fetchone()[0]
        return 1 + max(newest or 0, *left, 0)

    def add_run(
        self,
        *,
        name: str,
        experiment: str,
        experiment_hash: str,
        seed: int,
        partition_seed: int,
        rounds: int,
        comparison: int | None = None,
    ) -> int:
        """Register a run with status planned; return its number."""
        with self.transaction():
            number = self.unused("runs", self.folder.iterdir())
            self.db.execute(
                "INSERT INTO runs(id, comparison, name, experiment, experiment_hash, seed, partition_seed, status, rounds, "
                "created, updated) VALUES (?, ?, ?, ?, ?, ?, ?, 'planned', ?, ?, ?)",
                (number, comparison, name, experiment, experiment_hash, seed, partition_seed, rounds, now(), now()),
            )
        return number

    def update(self, run: int, *, status: str, message: str = "", experiment: str | None = None) -> None:
        """Set status and message. ``experiment`` replaces the stored TOML, for example once the engine is chosen."""
        with self.transaction():
            self.db.execute(
                "UPDATE runs SET status=?, message=?, updated=?, experiment=coalesce(?, experiment) WHERE id=?",
                (status, message, now(), experiment, run),
            )

    def extend(self, run: int, experiment: str, experiment_hash: str, rounds: int) -> None:
        """Give a run more rounds, with the TOML and the hash that it has then. Its status is interrupted."""
        before = self.run(run)
        facts = {**before.facts, "asked": experiment_hash, "hash_before": before.experiment_hash}
        with self.transaction():
            self.db.execute(
                "UPDATE runs SET experiment=?, experiment_hash=?, rounds=?, status='interrupted', updated=?, facts=? WHERE id=?",
                (experiment, experiment_hash, rounds, now(), json.dumps(facts), run),
            )

    def add_facts(self, run: int, facts: Mapping[str, object]) -> None:
        """Merge ``facts`` into the run's facts."""
        with self.transaction():
            before = json.loads(self.db.execute("SELECT facts FROM runs WHERE id=?", (run,)).fetchone()[0])
            self.db.execute("UPDATE runs SET facts=? WHERE id=?", (json.dumps({**before, **facts}), run))

    def set_partition(self, run: int, rows: Iterable[tuple[int, str, str, int]]) -> None:
        """Replace the run's partition. Each row is (client, client name, label, number of rows)."""
        with self.transaction():
            self.db.execute("DELETE FROM partitions WHERE run=?", (run,))
            self.db.executemany("INSERT INTO partitions VALUES (?, ?, ?, ?, ?)", ((run, *row) for row in rows))

    def write_round(self, run: int, round_: int, rows: Iterable[Row], durable: bool = False) -> None:
        """Write all measurements of a round in one transaction. They replace stored ones of this and later rounds.

        With ``durable``, SQLite syncs this and all earlier writes to disk, so that a power cut loses none of them.
        Raises `FedskewError` for a measure that is neither in `fedskew.measure.registry` nor declared by the run.
        """
        self.db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        with self.transaction():
            self.db.execute("DELETE FROM measurements WHERE run=? AND round>=?", (run, round_))
            self.add_measurements(run, [(round_, row) for row in rows])
            self.db.execute("UPDATE runs SET rounds_done=?, updated=? WHERE id=?", (round_, now(), run))
        self.db.execute("PRAGMA synchronous=NORMAL")  # the next statements need not wait for the disk

    def copy_run(self, run: int, record: RunRecord, rows: Iterable[tuple[int, Row]]) -> None:
        """Fill a planned run with what another store has of it: status, rounds, times, facts, and ``rows`` with their rounds."""
        with self.transaction():
            self.db.execute(
                "UPDATE runs SET status=?, rounds_done=?, created=?, updated=?, facts=? WHERE id=?",
                (record.status, record.rounds_done, record.created, record.updated, json.dumps(record.facts), run),
            )
            self.add_measurements(run, [*rows])

    def add_measurements(self, run: int, rows: Sequence[tuple[int, Row]]) -> None:
        """Add rows with their rounds. Raises `FedskewError` for a measure that neither fedskew nor the run's facts have."""
        unknown = {row[1:3] for _, row in rows} - Measures().stored.keys()
        if unknown and (unknown := unknown - measures_of([self.run(run).facts]).stored.keys()):
            raise FedskewError(f"the measure {'/'.join(min(unknown))} has no row in fedskew.measure.registry; add one")
        self.db.executemany(ADD_MEASUREMENTS, [(run, round_, *row) for round_, row in rows])

    def replace_splits(self, run: int, round_: int, rows: Sequence[Row]) -> None:
        """Write measurements of an earlier round. They replace the stored ones of their splits."""
        with self.transaction():
            splits = json.dumps(list({split for _, split, _, _ in rows}))
            chosen = "run=? AND round=? AND split IN (SELECT value FROM json_each(?))"
            self.db.execute(f"DELETE FROM measurements WHERE {chosen}", (run, round_, splits))
            self.add_measurements(run, [(round_, row) for row in rows])

    def forget_models(self, run: int) -> None:
        """Remove the measurements of the run's models: the models have trained on the test rows."""
        with self.transaction():
            self.db.execute("DELETE FROM measurements WHERE run=? AND split NOT IN ('round', 'client')", (run,))
            for table in ("test_rows", "site_rows"):
                self.db.execute(f"DELETE FROM {table} WHERE run=?", (run,))

    # reading
    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn an error in the ``with`` block into a `FedskewError` that says that the file is damaged."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, TypeError, RecursionError) as error:
            raise FedskewError(
                f"run store {self.folder}: cannot be read, its file is damaged: {first_line(error)}"
            ) from None

    def query(self, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """The rows of an SQL query. Bytes that are not UTF-8 become escapes, so that one damaged run leaves the others readable."""
        with self.reading():
            try:
                return self.db.execute(statement, values).fetchall()
            except sqlite3.OperationalError as error:
                if "UTF-8" not in str(error):
                    raise
                self.db.text_factory = lambda data: data.decode(errors="backslashreplace")
                return self.db.execute(statement, values).fetchall()

    def covered(self, run: int) -> int:
        """Return the last round before the first round without measurements, from the round on at which the run began."""
        rounds = {round_ for (round_,) in self.query("SELECT DISTINCT round FROM measurements WHERE run=?", (run,))}
        first = self.run(run).facts.get("first_round", 0)
        return next(round_ for round_ in count(first) if round_ + 1 not in rounds)

    def used(self, run: int) -> int:
        """Return the round whose model is used: `RunRecord.used_round` of a finished run, but no later one than `covered`."""
        record = self.run(run)
        return min(self.covered(run), record.used_round if record.status == "finished" else sys.maxsize)

    def runs(self, where: str = "1", values: Sequence[object] = ()) -> list[RunRecord]:
        """Return runs in order of their ids. ``where`` is an SQL condition on the runs table.

        A run with a damaged record has the status `DAMAGED`.
        """
        rows = self.query(f"SELECT {', '.join(COLUMNS)} FROM runs WHERE {where} ORDER BY id", values)
        return [record_from(row) for row in rows]

    def requested(self, hashes: Sequence[str]) -> list[RunRecord]:
        """Return the runs of the experiments with these hashes, as they were before an engine was chosen."""
        return self.runs(f"{REQUESTED} IN (SELECT value FROM json_each(?))", [json.dumps(hashes)])

    def titles(self) -> dict[int, str]:
        """Return the titles of the comparisons, by number."""
        return {number: str(title) for number, title in self.query("SELECT id, title FROM comparisons ORDER BY id")}

    def run(self, run: int) -> RunRecord:
        """Return one run. Raises `BadInput` if this id does not exist, and `FedskewError` if its record is damaged."""
        return self.numbered([run])[0]

    def numbered(self, runs: Sequence[int]) -> list[RunRecord]:
        """Return the runs with these ids, in this order. Raises the errors of `run`."""
        records = {r.id: r for r in self.runs("id IN (SELECT value FROM json_each(?))", [json.dumps(list(runs))])}
        for run in runs:
            if run not in records:
                raise BadInput(f"run store {self.folder}: there is no run {run}; `fedskew list runs` shows them")
        return sound([records[run] for run in runs])

    def select(self, tokens: Sequence[str]) -> list[RunRecord]:
        """Return the runs that the tokens name: ``7``, ``3-5``, ``c2`` (a comparison), ``latest``, or a tag.

        Without tokens: the latest run or comparison. Raises `BadInput` for a token that names no run.
        """
        records = {record.id: record for token in tokens or ["latest"] for record in self.named_by(token)}
        return sound(list(records.values()))

    def named_by(self, token: str) -> list[RunRecord]:
        if token == "latest":
            newest = self.runs("id=(SELECT max(id) FROM runs)")
            if not newest:
                raise BadInput(
                    f"run store {self.folder}: there are no runs yet; `fedskew run` or `fedskew compare` makes some"
                )
            return self.named_by(f"c{newest[0].comparison}") if newest[0].comparison else newest
        if re.fullmatch(r"c[0-9]{1,18}", token):
            records = self.runs("comparison=?", (int(token[1:]),))
            if not records:
                raise BadInput(
                    f"run store {self.folder}: there is no comparison {token}; `fedskew list runs` shows them"
                )
            return records
        numbers = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", token)
        if numbers and int(numbers[1]) <= int(numbers[2] or numbers[1]):
            return [self.run(i) for i in range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1)]
        tagged = [record for record in self.runs() if token in record.facts.get("tags", [])]
        require(bool(tagged), f"{token!r} is not a run: write a number, a range 3-5, a comparison c2, a tag, or latest")
        return tagged

    def curves(
        self,
        runs: Iterable[int],
        measures: Iterable[str] = (),
        *,
        per_client: bool = False,
        after: Rounds = EVERY_ROUND,
    ) -> list[Measurement]:
        """Return the values of the ``measures`` (``split/name``; without any: all), run by run in order of rounds.

        They are values without a client; with ``per_client``, of clients. ``after`` has rounds by run: only later rounds
        are returned.
        """
        rounds = {run: after.get(run, -1) for run in runs}
        return self.measured(CURVES, measures, per_client, after=json.dumps(rounds))

    def last(
        self, runs: Iterable[int], measures: Iterable[str], *, per_client: bool = False, until: Rounds = EVERY_ROUND
    ) -> list[Measurement]:
        """Return the last value of each of the ``measures`` (``split/name``) in each run, or in the best round if it is used.

        The values belong to no client; with ``per_client``, each belongs to one. ``until`` has the last round that counts, by
        run. A measure without a value since models were last measured has no last value.
        """
        rounds = {run: until.get(run, sys.maxsize) for run in runs}
        return self.measured(LAST, measures, per_client, until=json.dumps(rounds))

    def measured(self, statement: str, measures: Iterable[str], per_client: bool, **rounds: str) -> list[Measurement]:
        values = {"measures": json.dumps(list(measures)), "per_client": per_client, **rounds}
        return [
            Measurement._make([*about, value if isinstance(value, float) else math.nan])
            for *about, value in self.query(statement, values)
        ]

    def measurements(
        self, runs: Sequence[int], *, per_client: bool | None = None, names: Iterable[str] = ()
    ) -> pd.DataFrame:
        """Return the measurements of the runs, with columns run, round, client, split, name, value.

        ``per_client=True`` keeps rows with a client, ``per_client=False`` rows without one; ``names``, if any, rows with one
        of these names.
        """
        import pandas as pd

        marks = ",".join("?" * len(runs))
        only = {None: "", True: " AND client IS NOT NULL", False: " AND client IS NULL"}[per_client]
        only += " AND name IN (SELECT value FROM json_each(?))" if names else ""
        query = f"SELECT run, round, client, split, name, value FROM measurements WHERE run IN ({marks}){only}"
        values: list[int | str] = [*runs, *([json.dumps(list(names))] if names else [])]
        types: dict[str, Any] = {"round": int, "client": "Int64", "value": float}
        with self.reading():
            # in parts: rows as Python objects take several times the memory of a frame
            parts = pd.read_sql_query(query, self.db, params=values, chunksize=50_000)
            return pd.concat((part.astype(types) for part in parts), ignore_index=True)

    def partition(self, run: int) -> pd.DataFrame:
        """Return the run's partition, with columns client, client_name, label, rows; one row a client and label."""
        import pandas as pd

        query = "SELECT client, client_name, label, rows FROM partitions WHERE run=? ORDER BY client"
        with self.reading():
            frame = pd.read_sql_query(query, self.db, params=[run])
            return frame.astype({"client": int, "client_name": str, "label": str, "rows": int})

    def client_names(self, runs: Iterable[int]) -> dict[tuple[int, int], str]:
        """Return the names of the clients in the runs' partitions, by run and client."""
        query = "SELECT DISTINCT run, client, client_name FROM partitions WHERE run IN (SELECT value FROM json_each(?))"
        return {(run, client): name for run, client, name in self.query(query, [json.dumps(list(runs))])}

    def run_folder(self, run: int) -> Path:
        """Return the folder with the run's TOML file and checkpoints."""
        return self.folder / str(run)


def sound(records: list[RunRecord]) -> list[RunRecord]:
    """Return the records unchanged. Raises `FedskewError` for the first damaged one."""
    for record in records:
        if record.status == DAMAGED:
            raise FedskewError(f"run {record.id}: {record.message}; name other runs")
    return records


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

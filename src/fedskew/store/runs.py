"""The run store: one SQLite file with every run, its complete experiment, and every number it measured.

Measurements are rows (run, round, client or null, split, name, value); round 0 is before training. `MEASUREMENTS` names them.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import BadInput, FedskewError
from fedskew.store.lease import Owner, TakenOver
from fedskew.store.records import COLUMNS, DAMAGED, RunRecord, record_from
from fedskew.store.schema import VERSION, opened_for_reading, opened_for_writing, version_of

if TYPE_CHECKING:
    import pandas as pd

MEASUREMENTS: dict[str, dict[str, str]] = {
    "test": {
        "accuracy": "of the global model on the unseen test set, 0..1",
        "loss": "mean cross-entropy of the global model on the test set, in nats",
        "forgetting": "mean of the classes' forgetting, if `evaluation.classes` asks for it",
        "recovery": "rounds from a change of the concept until accuracy is 95 % of its mean over the ten measurements before; "
        "stored in the round in which it is",
        "opportunity": "difference of true positive rates between the two groups, where data name a sensitive attribute",
        "parity": "difference of the rates of positive predictions between the two groups",
        "odds": "the larger of the gaps in true and in false positive rate",
    },
    "clients": {
        "accuracy_mean": "of the global model on each client's data: mean over the clients, 0..1",
        "accuracy_worst": "of the global model on the client where it is lowest",
        "accuracy_worst_decile": "mean over the tenth of the clients (rounded up) where it is lowest",
        "accuracy_std": "standard deviation over the clients (population)",
        "accuracy_jain": "Jain's index over the clients: 1 if all are served alike, 1 / clients if one alone is served",
        "accuracy_entropy": "entropy of the clients' shares of all accuracy over that of equal ones, 0..1",
        "loss_mean": "mean over the clients of the global model's loss",
    },
    "personal": {
        "accuracy_mean": "of each client's personal model on its data, where the method or the tuning makes one: mean, 0..1",
        "accuracy_worst": "of the personal models: that of the client where it is lowest",
        "accuracy_worst_decile": "of the personal models: mean over the tenth of the clients (rounded up) where it is lowest",
        "accuracy_std": "of the personal models: standard deviation over the clients (population)",
        "accuracy_jain": "of the personal models: Jain's index over the clients",
        "accuracy_entropy": "of the personal models: entropy of the clients' shares, 0..1",
        "loss_mean": "mean over the clients of the personal models' losses",
    },
    "round": {
        "divergence": "mean distance of the local models to their uniform mean (failure-modes study, eq. 4)",
        "drift": "mean distance of the local models to their example-weighted mean (book section on non-IID data, section 3)",
        "relative_drift": "weighted mean square distance over weighted mean square update, 0 (all agree) to 1",
        "signal_to_noise": "square length of the mean update over the mean square distance to it, (1 - R) / R of relative drift",
        "update_norm": "mean length of the clients' updates, before a codec",
        "alignment": "mean cosine of the clients' updates with their example-weighted mean, -1..1",
        "cosine": "mean cosine over all pairs of updates, if `evaluation.layers` asks for it",
        "inexactness": "mean over the clients of their inexactness, if `evaluation.inexactness` asks for it",
        "local_steps": "local steps of all clients",
        "update_amount": "learning rate times local steps, mean over the clients by their rows (u of 'From IID to Non-IID', eq. 3)",
        "clients": "clients that took part: trained, and were heard",
        "available": "clients that were there",
        "selected": "clients that the selection asked, of those that were there",
        "answered": "clients that answered, of those asked",
        "stragglers": "clients that got done with a part of their work, or were dropped for it",
        "bytes_down": "sent to the whole cohort, to dropped stragglers too",
        "bytes_up": "sent by the whole cohort, in the codec's messages",
        "rejected": "answers that were not usable or not given in time, in deployed runs and where `faults` are declared",
        "seconds": "of the round: training, evaluation and measures",
        "epsilon": "privacy loss of any client in all rounds, repeated ones too, at the method's delta; where the method bounds it",
    },
    "global-model": {
        "accuracy": "per client: of the global model on the client's data, 0..1",
        "loss": "per client: mean loss of the global model on the client's data",
    },
    "local-model": {
        "accuracy": "per client: of the client's own local model on its data, before aggregation, 0..1",
        "loss": "per client: mean loss of the client's own local model on its data",
    },
    "personal-model": {
        "accuracy": "per client: of its personal model, after `evaluation.adapt_steps` steps, on its data, 0..1",
        "loss": "per client: mean loss of its personal model on its data",
    },
    "fault": {
        "missing": "per client: times that it was not there or did not answer in time",
        "refused": "per client: times that the node said why it could not answer",
        "garbage": "per client: messages that could not be read, or claimed to be another client's",
        "other_round": "per client: answers that were of another round or run",
        "wrong_shape": "per client: answers whose tensors had other names, shapes or types",
        "not_finite": "per client: answers with values that were not finite",
        "out_of_range": "per client: answers with impossible numbers: more rows than agreed, accuracy above 1, loss below 0",
        "too_long": "per client: updates that were longer than the limit, or far longer than the other clients'",
    },
    "layer": {
        "cosine": "per layer, whose number takes the place of a client's: mean cosine over all pairs of updates",
    },
    "class": {
        "accuracy": "per class, whose number takes the place of a client's: of the global model on the test rows of the class",
        "forgetting": "per class: its highest accuracy of any measured round so far minus the one now, 0..1 (Lee et al. 2022)",
    },
    "client": {
        "steps": "per client: local steps",
        "inexactness": "per client: norm of its local problem's gradient at its local model over that at the global model, on all "
        "its rows: 0 solved, 1 no nearer (the gamma of the FedProx paper)",
        "distance": "per client: distance of its local model to the example-weighted mean",
        "update_norm": "per client: length of its update",
        "alignment": "per client: cosine of its update with the example-weighted mean update; below 0 it pulls the other way",
        "cluster": "per client: the cluster whose model it trained, from 0, where the method has clusters",
    },
}
"""Every (split, name) that a run may store, and what it is. Norms are Euclidean over the trainable parameters."""

COVERED = """
WITH RECURSIVE there(round) AS (
  SELECT 0 UNION ALL
  SELECT round + 1 FROM there WHERE EXISTS (SELECT 1 FROM measurements AS m WHERE m.run=? AND m.round=there.round + 1)
)
SELECT max(round) FROM there
"""

Row = tuple[int | None, str, str, float]
"""(client or None, split, name, value) of one round."""


class RunStore:
    """The store in one folder. Safe for several processes; a killed one loses at most the round in flight.

    With ``read_only`` nothing is written, and the folder need not be writable, nor be there.
    """

    def __init__(self, folder: str | Path = "runs", read_only: bool = False) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "fedskew.db"
        self.tokens: dict[int, str] = {}  # of the leases that are held through this object
        try:
            self.db = opened_for_reading(self.path) if read_only else opened_for_writing(self.path)
            version = version_of(self.db)
        except (OSError, sqlite3.Error, ValueError) as error:
            what = "read" if read_only else "opened or written"
            raise BadInput(f"run store {self.folder}: cannot be {what}: {error}") from None
        if version != VERSION:
            raise BadInput(f"run store {self.folder}: made by another version of fedskew (schema {version})")

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or none; a full disk or a lost folder ends in one clear line."""
        try:
            self.db.execute("BEGIN IMMEDIATE")
            yield
            self.db.execute("COMMIT")
        except sqlite3.Error as error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise FedskewError(
                f"run store {self.folder}: cannot write ({error}); everything up to the last finished round is kept"
            ) from None
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    # writing
    def add_comparison(self, title: str) -> int:
        """Register a comparison; its number."""
        with self.transaction():
            number = self.unused("comparisons", self.folder.glob("c*.html"))
            self.db.execute("INSERT INTO comparisons VALUES (?, ?, ?)", (number, title, now()))
        return number

    def unused(self, table: str, files: Iterable[Path]) -> int:
        """The next number, above those in the table and those of files that an earlier store has left in the folder."""
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
        """Register a run as planned; its number."""
        with self.transaction():
            number = self.unused("runs", self.folder.iterdir())
            self.db.execute(
                "INSERT INTO runs(id, comparison, name, experiment, experiment_hash, seed, partition_seed, status, rounds, "
                "created, updated) VALUES (?, ?, ?, ?, ?, ?, ?, 'planned', ?, ?, ?)",
                (number, comparison, name, experiment, experiment_hash, seed, partition_seed, rounds, now(), now()),
            )
        return number

    def update(self, run: int, *, status: str, message: str = "", experiment: str | None = None) -> None:
        """Set the status, and the experiment where it has become more exact (the engine that was chosen)."""
        with self.transaction():
            self.check_lease(run)
            self.db.execute(
                "UPDATE runs SET status=?, message=?, updated=?, experiment=coalesce(?, experiment) WHERE id=?",
                (status, message, now(), experiment, run),
            )

    def add_facts(self, run: int, facts: dict[str, Any]) -> None:
        """Merge ``facts`` into what is known of the run."""
        with self.transaction():
            known = json.loads(self.db.execute("SELECT facts FROM runs WHERE id=?", (run,)).fetchone()[0])
            self.db.execute("UPDATE runs SET facts=? WHERE id=?", (json.dumps({**known, **facts}), run))

    def set_partition(self, run: int, rows: Iterable[tuple[int, str, str, int]]) -> None:
        """(client, client name, label, rows) of the clients to be shown."""
        with self.transaction():
            self.db.execute("DELETE FROM partitions WHERE run=?", (run,))
            self.db.executemany("INSERT INTO partitions VALUES (?, ?, ?, ?, ?)", ((run, *row) for row in rows))

    def write_round(self, run: int, round_: int, rows: Sequence[Row], durable: bool = False) -> None:
        """All measurements of a round in one transaction; a round written before is replaced.

        If it is ``durable``, this and everything before it is on the disk when this returns, and a power cut takes none of it.
        """
        self.db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        with self.transaction():
            self.check_lease(run)
            self.db.execute("DELETE FROM measurements WHERE run=? AND round>=?", (run, round_))
            self.db.executemany(
                "INSERT INTO measurements VALUES (?, ?, ?, ?, ?, ?)", ((run, round_, *row) for row in rows)
            )
            self.db.execute("UPDATE runs SET rounds_done=?, updated=? WHERE id=?", (round_, now(), run))

    def check_lease(self, run: int) -> None:
        """Raise `TakenOver` if this process held the run's lease, and another holds it now."""
        token, owner = self.tokens.get(run), self.owner(run)
        if token and (owner is None or owner.token != token):
            by = f"process {owner.process} on {owner.host}" if owner else "another process"
            raise TakenOver(f"run {run}: {by} has taken it over, as this one was silent for too long; it stops here")

    # reading
    @contextmanager
    def reading(self) -> Iterator[None]:
        """A damaged file ends in one clear line."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, TypeError, RecursionError) as error:
            raise FedskewError(
                f"run store {self.folder}: cannot be read, its file is damaged: {str(error).splitlines()[0]}"
            ) from None

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of an SQL query."""
        with self.reading():
            return self.db.execute(statement, values).fetchall()

    def owner(self, run: int) -> Owner | None:
        """Who holds the run's lease, gone or not."""
        if not self.query("SELECT 1 FROM sqlite_master WHERE name='leases'"):
            return None
        found = self.query("SELECT token, host, machine, process, began, expires FROM leases WHERE run=?", (run,))
        return Owner(*found[0]) if found else None

    def covered(self, run: int) -> int:
        """The last round up to which no round of the run is missing."""
        return int(self.query(COVERED, (run,))[0][0])

    def runs(self, where: str = "1", values: Sequence[Any] = ()) -> list[RunRecord]:
        """Runs by id; ``where`` is an SQL condition on the runs table. One whose record is damaged has that as its status."""
        found = self.query(f"SELECT {', '.join(COLUMNS)} FROM runs WHERE {where} ORDER BY id", values)
        return [record_from(row) for row in found]

    def run(self, run: int) -> RunRecord:
        """One run; raises `BadInput` if there is none of that id, `FedskewError` if its record is damaged."""
        found = self.runs("id=?", (run,))
        if not found:
            raise BadInput(f"run store {self.folder}: there is no run {run}; `fedskew list runs` shows them")
        return sound(found)[0]

    def select(self, tokens: Sequence[str]) -> list[RunRecord]:
        """Runs by words of the command line: ``7``, ``3-5``, ``c2`` (a comparison), ``latest``; none means latest."""
        chosen: dict[int, RunRecord] = {}
        for token in tokens or ["latest"]:
            for record in self.one(token):
                chosen[record.id] = record
        return sound(list(chosen.values()))

    def one(self, token: str) -> list[RunRecord]:
        if token == "latest":
            newest = self.runs("id=(SELECT max(id) FROM runs)")
            if not newest:
                raise BadInput(
                    f"run store {self.folder}: there are no runs yet; `fedskew run` or `fedskew compare` makes some"
                )
            return self.one(f"c{newest[0].comparison}") if newest[0].comparison else newest
        if re.fullmatch(r"c[0-9]{1,18}", token):
            found = self.runs("comparison=?", (int(token[1:]),))
            if not found:
                raise BadInput(
                    f"run store {self.folder}: there is no comparison {token}; `fedskew list runs` shows them"
                )
            return found
        numbers = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", token)
        if numbers and int(numbers[1]) <= int(numbers[2] or numbers[1]):
            return [self.run(i) for i in range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1)]
        raise BadInput(f"{token!r} is not a run: write a number, a range 3-5, a comparison c2, or latest")

    def measurements(self, runs: Sequence[int], *, per_client: bool | None = None) -> pd.DataFrame:
        """All measurements of the runs: columns run, round, client, split, name, value.

        ``per_client`` True or False restricts to rows with or without a client.
        """
        import pandas as pd

        marks = ",".join("?" * len(runs))
        only = {None: "", True: " AND client IS NOT NULL", False: " AND client IS NULL"}[per_client]
        query = f"SELECT run, round, client, split, name, value FROM measurements WHERE run IN ({marks}){only}"
        with self.reading():
            frame = pd.read_sql_query(query, self.db, params=list(runs))
            return frame.astype({"round": int, "client": "Int64", "value": float})

    def partition(self, run: int) -> pd.DataFrame:
        """Columns client, client_name, label, rows."""
        import pandas as pd

        query = "SELECT client, client_name, label, rows FROM partitions WHERE run=? ORDER BY client"
        with self.reading():
            frame = pd.read_sql_query(query, self.db, params=[run])
            return frame.astype({"client": int, "client_name": str, "label": str, "rows": int})

    def run_folder(self, run: int) -> Path:
        """Where the run's TOML and checkpoints are."""
        return self.folder / str(run)


def sound(records: list[RunRecord]) -> list[RunRecord]:
    """The records. Raises `FedskewError` for the first that is damaged."""
    for record in records:
        if record.status == DAMAGED:
            raise FedskewError(f"run {record.id}: {record.message}; name other runs")
    return records


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

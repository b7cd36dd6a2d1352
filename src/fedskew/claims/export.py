"""Exports: the measurements of a document's runs in a JSON file, from which another store continues."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np

from fedskew.claims.document import Document
from fedskew.claims.quantities import Measured, Series
from fedskew.claims.verdicts import Results
from fedskew.core.errors import BadInput
from fedskew.core.groups import grouped
from fedskew.store.records import Json, RunFacts, RunRecord

Number = float | None
"""None (null in JSON) stands for a number that does not exist."""


class Curves(TypedDict):
    """Measures that a run has in the same ``rounds``. A single number stands for the same number in every round.

    A name is ``split/name``, or ``split/name/client``.
    """

    rounds: list[int]
    values: dict[str, Number | list[Number]]


class ExportedRun(TypedDict):
    """One run of an export."""

    status: str
    rounds: int  # rounds done
    seconds: Number
    hash: str  # of the experiment
    planned: int  # rounds
    began: str
    ended: str
    facts: Json
    measured: list[Curves]
    # training rows by client and label, of a partition that a figure draws
    dealt: NotRequired[dict[str, dict[str, int]]]


class Export(TypedDict):
    """The JSON of an export: runs by arm and seed."""

    document: str
    scale: str
    began: str
    ended: str
    hardware: dict[str, str]
    versions: dict[str, list[str]]
    runs: dict[str, dict[str, ExportedRun]]
    extras: NotRequired[dict[str, Any]]  # the numbers of parts that need no runs, by name


DIGITS = 6
"""Number of significant digits in an export. Whole numbers have all digits."""

FACTS = ("versions", "machine", "data", "partition", "primary", "layers", "measures")
"""The facts of a run that an export contains."""

NOT_EXPORTED = {
    "balanced_accuracy", "f1_macro", "auc", "ece", "accuracy_mean", "accuracy_worst_decile", "accuracy_jain", "accuracy_entropy",
    "signal_to_noise", "alignment",
}  # fmt: skip
"""Measures that no claim, table or figure of a document needs."""


def exported(document: Document, scale: str, results: Results, extras: Mapping[str, Any]) -> Export:
    """Return the measurements of all runs, by arm and seed, as plain values. There must be a run."""
    records = [run.record for runs in results.values() for run in runs.values()]
    machines = [record.facts.get("machine", {}) for record in records]
    return {
        "document": document.name,
        "scale": scale,
        "began": min(record.created for record in records),
        "ended": max(record.updated for record in records),
        "hardware": {key: " and ".join(names) for key, names in together(machines).items()},
        "versions": together([record.facts.get("versions", {}) for record in records]),
        "runs": {
            arm: {str(seed): plain(document, arm, run) for seed, run in runs.items()} for arm, runs in results.items()
        },
        "extras": dict(extras),
    }


def together(facts: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return, by key, the different values that the runs have."""
    return {key: sorted({f[key] for f in facts if key in f}) for key in dict.fromkeys(k for f in facts for k in f)}


def plain(document: Document, arm: str, run: Measured) -> ExportedRun:
    """Return one run of the export. It has the measures of each client that the figures of its tables draw.

    Of the rounds' seconds it has the mean.
    """
    tables = [table for table in document.tables if arm in table.arms]
    of_clients = {name for table in tables for name in table.clients}
    drawn = [table.drawn(panel) for table in tables for panel in table.panels if panel.kind == "partition"]
    seconds = run.curve("round", "seconds")
    mean = rounded(float(seconds.mean())) if len(seconds) else 0
    measured: dict[tuple[int, ...], Curves] = {}
    for (split, name, client), (rounds, values) in run.series.items():
        if name not in NOT_EXPORTED if client is None else f"{split}/{name}" in of_clients:
            row = [rounded(float(value)) for value in values] if name != "seconds" else [mean]
            curves = measured.setdefault(tuple(rounds.tolist()), {"rounds": rounds.tolist(), "values": {}})
            key = f"{split}/{name}" + ("" if client is None else f"/{client}")
            curves["values"][key] = row[0] if len(set(row)) == 1 else row
    record = run.record
    dealt = grouped((name, (label, rows)) for _, name, label, rows in run.dealt if (arm,) in drawn)
    table: ExportedRun = {
        "status": record.status,
        "rounds": record.rounds_done,
        "seconds": rounded(float((mean or 0) * len(seconds))),
        "hash": record.experiment_hash,
        "planned": record.rounds,
        "began": record.created,
        "ended": record.updated,
        "facts": {name: value for name, value in record.facts.items() if name in FACTS},
        "measured": list(measured.values()),
    }
    if dealt:
        table["dealt"] = {name: dict(of_client) for name, of_client in dealt.items()}
    return table


def rounded(value: float) -> Number:
    """Round to `DIGITS` significant digits; None if the value is not finite, because JSON has no such numbers."""
    if not math.isfinite(value):
        return None
    short = value if value.is_integer() else float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


def read(text: bytes, where: str) -> tuple[Export, Results]:
    """Parse an export; return it and its runs. Raises `BadInput` if it is not valid."""
    try:
        export = msgspec.json.decode(text, type=Export)
        results = results_of(export)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not an export of `fedskew reproduce`: {error}; name another file") from None
    return export, results


def results_of(export: Export) -> Results:
    """Return the runs of an export, by arm and seed."""
    return {
        arm: {int(seed): run_of(arm, int(seed), table) for seed, table in runs.items()}
        for arm, runs in export["runs"].items()
    }


def run_of(arm: str, seed: int, table: ExportedRun) -> Measured:
    """Convert a run of an export; None becomes NaN."""
    facts = msgspec.convert({k: v for k, v in table["facts"].items() if k in FACTS}, RunFacts)
    record = RunRecord(
        id=0, comparison=None, name=arm, experiment="", experiment_hash=table["hash"], seed=seed, partition_seed=0,
        status=table["status"], message="", rounds=table["planned"], rounds_done=table["rounds"], created=table["began"],
        updated=table["ended"], facts=facts,
    )  # fmt: skip
    clients = enumerate(table.get("dealt", {}).items())
    dealt = [(k, name, label, count) for k, (name, labels) in clients for label, count in labels.items()]
    return Measured(record, dict(series_of(table["measured"])), dealt)


def series_of(measured: Sequence[Curves]) -> Iterator[tuple[tuple[str, str, int | None], Series]]:
    for curves in measured:
        rounds = np.array(curves["rounds"])
        for key, row in curves["values"].items():
            split, name, *client = key.split("/")
            values = np.broadcast_to(np.array(row, dtype=float), rounds.shape)
            yield (split, name, int(client[0]) if client else None), (rounds, values)

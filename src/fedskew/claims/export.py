"""Exports: the measurements of a document's runs in a JSON file, from which another store continues, and pages are made."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict, get_args

import msgspec
import numpy as np

from fedskew.claims.document import DOCUMENTS, Document, Verdict, load
from fedskew.claims.page import markdown, sections
from fedskew.claims.quantities import Measured, Series
from fedskew.claims.verdicts import RULE, Results, verdicts
from fedskew.core.errors import BadInput
from fedskew.report.style import Picture
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
    dealt: NotRequired[
        dict[str, dict[str, int]]
    ]  # training rows by client and label, of a partition that a figure draws


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
    dealt: dict[str, dict[str, int]] = {}
    for _, client_name, label, rows in run.dealt if (arm,) in drawn else ():
        dealt.setdefault(client_name, {})[label] = rows
    table: ExportedRun = {
        "status": run.status,
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
        table["dealt"] = dealt
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
        results = known(export)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not an export of `fedskew reproduce`: {error}; name another file") from None
    return export, results


def known(export: Export) -> Results:
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


def pages(exports: Sequence[Export]) -> dict[str, str]:
    """Make pages, by name: an overview, and a page for each export with its document's tables and claims."""
    order = sorted(
        exports, key=lambda e: (e["document"] != "contradictions", DOCUMENTS.index(e["document"]), e["scale"])
    )
    index = [
        "# Repeated experiments of documents",
        "Results of the documents' experiments, repeated. [Claims](../how-to/claims.md) explains claims and verdicts.",
        RULE,
        "`python docs/generate.py` makes these pages from the files in `docs/results`, which hold the numbers of every run. "
        "`fedskew reproduce NAME --scale SCALE --export FILE` carries out the runs and writes such a file.",
        overview(order),
    ]
    return {"documents": "\n\n".join(index) + "\n", **{page_name(export): page(export) for export in order}}


def page_name(export: Export) -> str:
    return f"{export['document']}-{export['scale']}"


def page(export: Export) -> str:
    """Make the page of an export: its document's tables, figures and claims. `drawings` makes the pictures."""

    def place(picture: Picture) -> str:
        return f"{picture.heading}:\n![{picture.heading}](../pictures/{page_name(export)}-{picture.key}.svg)"

    document = load(export["document"]).at(export["scale"])
    text = markdown(document, export["scale"], known(export), export.get("extras", {}), "", place)
    title = f"# {document.title}"
    return f"{title}: {export['scale']} scale\n\n{circumstances(document, export)}" + text.removeprefix(title)


def drawings(export: Export) -> dict[str, Picture]:
    """Return the figures of an export's page, by the names of their files."""
    document = load(export["document"]).at(export["scale"])
    parts = sections(document, known(export), export.get("extras", {}))
    return {f"{page_name(export)}-{picture.key}.svg": picture for part in parts for picture in part.pictures}


def overview(exports: Sequence[Export]) -> str:
    """Make a table with a line for each export: numbers of runs, claims and verdicts."""
    lines = [
        "| document | scale | runs | claims | hold | fail | undecided | not run |",
        "| --- | --- |" + " ---: |" * 6,
    ]
    for export in exports:
        document = load(export["document"]).at(export["scale"])
        decided = [judged.verdict for judged in verdicts(document, known(export))]
        counts = " | ".join(str(decided.count(verdict)) for verdict in get_args(Verdict))
        page = f"[{document.title}]({page_name(export)}.md)"
        lines.append(f"| {page} | {export['scale']} | {done_of(document, export)} | {len(decided)} | {counts} |")
    return "\n".join(lines)


def runs(export: Export) -> list[ExportedRun]:
    return [run for of_arm in export["runs"].values() for run in of_arm.values()]


def done_of(document: Document, export: Export) -> str:
    """Format how many of the document's runs at this scale are done: ``115 of 115``."""
    return f"{len(runs(export))} of {document.scale(export['scale']).seeds * len(document.arms)}"


def circumstances(document: Document, export: Export) -> str:
    """Describe number of runs, time and hardware in one sentence."""
    done = runs(export)
    diverged = sum(run["status"] == "diverged" for run in done)
    text = f"{done_of(document, export)} runs" + (f", {diverged} diverged" if diverged else "")
    minutes = sum(run["seconds"] or 0 for run in done) / 60
    hardware = ", ".join(str(value) for value in export["hardware"].values())
    versions = ", ".join(f"{name} {' and '.join(values)}" for name, values in export["versions"].items())
    return (
        f"{text}, {minutes:.1f} minutes of rounds in all, between {export['began'][:16]} and {export['ended'][:16]} UTC "
        f"on {hardware or 'hardware not noted'}; {versions}."
    )

"""Exports: the numbers behind a document's tables and verdicts, in a small JSON file. They replace the run store."""

import math
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict, get_args

from fedskew.claims.claim import OVER_ROUNDS, Verdict
from fedskew.claims.document import DOCUMENTS, Document, load
from fedskew.claims.quantities import ExportedRun, Measured, Numbers, curve, quantity
from fedskew.claims.verdicts import RULE, Known, markdown, verdicts
from fedskew.core.errors import require


class Export(TypedDict):
    """The JSON of an export: runs by arm and seed."""

    document: str
    scale: str
    began: str
    ended: str
    hardware: dict[str, str]
    versions: dict[str, list[str]]
    runs: dict[str, dict[str, ExportedRun]]
    listing: NotRequired[list[Mapping[str, object]]]


DIGITS = 9
"""Number of significant digits in an export."""


def exported(document: Document, scale: str, known: Known[Measured], hardware: Mapping[str, str]) -> Export:
    """Return all numbers that the document's tables and claims need, by arm and seed, as plain values.

    ``hardware`` describes the machine. Raises `BadInput` if no run is done.
    """
    records = [run.record for runs in known.values() for run in runs.values()]
    require(bool(records), f"reproduce: the store holds no finished run of {document.name} at scale {scale}")
    versions = [record.facts.get("versions", {}) for record in records]
    return {
        "document": document.name,
        "scale": scale,
        "began": min(record.created for record in records),
        "ended": max(record.updated for record in records),
        "hardware": dict(hardware),
        "versions": {key: sorted({v[key] for v in versions if key in v}) for key in dict.fromkeys(k for v in versions for k in v)},
        "runs": {
            arm: {str(seed): plain(document, arm, run) for seed, run in runs.items()} for arm, runs in known.items()
        },
    }  # fmt: skip


def plain(document: Document, arm: str, run: Measured) -> ExportedRun:
    """Return one run of the export."""
    claims = [claim for claim in document.claims if arm in claim.arms]
    single = [claim for claim in claims if claim.kind not in OVER_ROUNDS]
    names = [measure for table in document.tables if arm in table.arms for measure in table.measures]
    names += [name for claim in single for name in (claim.of, claim.against) if name]
    curves = dict.fromkeys(claim.of for claim in claims if claim.kind in OVER_ROUNDS)
    return {
        "status": run.status,
        "rounds": run.record.rounds_done,
        "seconds": rounded(float(run.curve("round", "seconds").sum())),
        "values": {name: rounded(quantity(name, run)) for name in dict.fromkeys(names)},
        "curves": {name: [rounded(float(value)) for value in curve(name, run)] for name in curves},
    }


def rounded(value: float) -> float | None:
    """Round to `DIGITS` significant digits; None if the value is not finite, because JSON has no such numbers."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def known(export: Export) -> Known[Numbers]:
    """Return the runs of an export, by arm and seed."""
    return {
        arm: {int(seed): Numbers.read(table) for seed, table in runs.items()} for arm, runs in export["runs"].items()
    }


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
    """Make the page of an export: its document's tables and claims."""
    document = load(export["document"]).at(export["scale"])
    text = markdown(document, export["scale"], known(export), rule="").removeprefix(f"# {document.title}\n\n")
    parts = [f"# {document.title}: {export['scale']} scale", circumstances(document, export)]
    parts += [listing(export.get("listing", ())), text.strip()]
    return "\n\n".join(part for part in parts if part) + "\n"


def listing(rows: Sequence[Mapping[str, object]]) -> str:
    """Make the table of the document's listing with our numbers and its own; empty if there is no listing."""
    if not rows:
        return ""
    lines = ["The listing on its own random numbers, ours and (the document's):", ""]
    lines += ["| partition | local epochs | drift | accuracy | |", "| --- | ---: | ---: | ---: | --- |"]
    for r in rows:
        drift, accuracy = (f"{r[name]:.3f} ({r[f'{name}_in_document']:.3f})" for name in ("drift", "accuracy"))
        lines.append(f"| {r['skew']} | {r['epochs']} | {drift} | {accuracy} | {'same' if r['agrees'] else 'differs'} |")
    return "\n".join(lines)


def overview(exports: Sequence[Export]) -> str:
    """Make a table with a line for each export: numbers of runs, claims and verdicts."""
    lines = [
        "| document | scale | runs | claims | hold | fail | undecided | not run |",
        "| --- | --- |" + " ---: |" * 6,
    ]
    for export in exports:
        document = load(export["document"]).at(export["scale"])
        found = [judged.verdict for judged in verdicts(document, known(export))]
        counts = " | ".join(str(found.count(verdict)) for verdict in get_args(Verdict))
        page = f"[{document.title}]({page_name(export)}.md)"
        lines.append(f"| {page} | {export['scale']} | {done_of(document, export)} | {len(found)} | {counts} |")
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

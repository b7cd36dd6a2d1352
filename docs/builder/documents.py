"""The pages of repeated documents: an overview, and a page for each export in ``docs/results``, with its figures."""

from collections.abc import Sequence
from typing import get_args

from fedskew.claims.document import DOCUMENTS, Document, Verdict, load
from fedskew.claims.export import Export, ExportedRun, results_of
from fedskew.claims.page import markdown, sections
from fedskew.claims.verdicts import RULE, verdicts
from fedskew.report.style import Picture


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
    text = markdown(document, export["scale"], results_of(export), export.get("extras", {}), "", place)
    title = f"# {document.title}"
    return f"{title}: {export['scale']} scale\n\n{circumstances(document, export)}" + text.removeprefix(title)


def drawings(export: Export) -> dict[str, Picture]:
    """Return the figures of an export's page, by the names of their files."""
    document = load(export["document"]).at(export["scale"])
    parts = sections(document, results_of(export), export.get("extras", {}))
    return {f"{page_name(export)}-{picture.key}.svg": picture for part in parts for picture in part.pictures}


def overview(exports: Sequence[Export]) -> str:
    """Make a table with a line for each export: numbers of runs, claims and verdicts."""
    lines = [
        "| document | scale | runs | claims | hold | fail | undecided | not run |",
        "| --- | --- |" + " ---: |" * 6,
    ]
    for export in exports:
        document = load(export["document"]).at(export["scale"])
        decided = [judged.verdict for judged in verdicts(document, results_of(export))]
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

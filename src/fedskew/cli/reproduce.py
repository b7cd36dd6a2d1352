"""``reproduce``: a document's experiments, its numbers beside ours, and a verdict on each claim."""

import argparse
import json
from functools import partial
from pathlib import Path

from rich.table import Column, Table

from fedskew.api.caller import CommandLine
from fedskew.api.execute import complete
from fedskew.claims.document import Document, load
from fedskew.claims.export import exported, read
from fedskew.claims.extras import EXTRAS, Numbers
from fedskew.claims.page import html, markdown, mixed, sections, tally
from fedskew.claims.reproduce import PlannedRun, estimate, missing, plan, restore, results
from fedskew.claims.verdicts import Judged, Results, as_json
from fedskew.cli.output import print_json
from fedskew.core.errors import require
from fedskew.core.files import write_whole
from fedskew.core.text import count
from fedskew.execution.plan import processes, slow_precision
from fedskew.execution.torchrun import on_ranks
from fedskew.report.console import Console
from fedskew.report.progress import board_of_one
from fedskew.report.words import duration
from fedskew.store.runs import RunStore


@on_ranks
def reproduce(parsed: argparse.Namespace) -> int:
    """Carry out missing runs, then print and write the result. The exit code is 1 if a digit of a listing differs."""
    document = load(parsed.document).at(parsed.scale)
    if parsed.only:
        require(not parsed.export, "reproduce: --export writes a whole document; leave out --only")
        document = document.only(parsed.only)
    planned = plan(document, parsed.scale)
    store = RunStore(parsed.runs)
    extras: dict[str, Numbers] = {}
    if parsed.export and parsed.export.exists():
        extras |= read_back(store, document, planned, parsed)
    left = [] if parsed.as_stored else announced(store, document, planned, parsed)
    extras |= {name: computed(name) for name in document.extras if name not in extras}
    try:
        if left:
            title = f"reproduce {document.name} {parsed.scale}"
            complete(store, [p.experiment for p in left], title, parsed.jobs, CommandLine())
    finally:
        finished = results(store, planned)
        if parsed.export and finished:
            numbers = exported(document, parsed.scale, finished, extras)
            text = json.dumps(numbers, separators=(",", ":")).replace('}]},"', '}]},\n"') + "\n"
            write_whole(parsed.export, text, "numbers")
    empty = f"reproduce: the store holds no finished run of {document.name} at scale {parsed.scale}"
    require(bool(finished) or not parsed.export, empty)
    path = write(store, document, parsed, finished, extras)
    if parsed.json:
        print_json({**as_json(document, parsed.scale, finished), "extras": extras, "page": str(path)})
    else:
        print_result(document, parsed.scale, finished, extras)
        Console().print(f"page: {path}", soft_wrap=True)
    return 0 if all(EXTRAS[name].agrees(numbers) for name, numbers in extras.items()) else 1


def read_back(
    store: RunStore, document: Document, planned: list[PlannedRun], parsed: argparse.Namespace
) -> dict[str, Numbers]:
    """Add the runs of the export to the store. Return the export's numbers of the parts that need no runs.

    Print how many runs there are, and how many belong to other experiments.
    """
    export, finished = read(parsed.export.read_bytes(), str(parsed.export))
    same = (export["document"], export["scale"]) == (document.name, parsed.scale)
    require(same, f"{parsed.export}: holds runs of {export['document']} at scale {export['scale']}; name another file")
    number = restore(store, planned, finished, str(parsed.export))
    others = sum(map(len, export["runs"].values())) - number
    text = f"{parsed.export}: {count(number, 'run')} read"
    if others:
        text += f"; {count(others, 'run')} left out, of other experiments or seeds than the document now has"
    Console(stderr=True).print(text, soft_wrap=True)
    return {name: numbers for name, numbers in export.get("extras", {}).items() if name in document.extras}


def announced(
    store: RunStore, document: Document, planned: list[PlannedRun], parsed: argparse.Namespace
) -> list[PlannedRun]:
    """Return the runs that the store does not have yet, and print how long they will take."""
    console = Console(stderr=True)
    left = missing(store, planned)
    if planned:
        console.print(f"{document.title}, {parsed.scale}: {count(len(planned), 'run')}, {len(left)} to do")
    for line in slow_precision([p.experiment for p in left]):
        console.print(line, soft_wrap=True)
    if left:
        jobs = min(processes(parsed.jobs), len(left))
        with board_of_one("estimating", total=0) as board:  # shows no remaining time: the first arms take longest
            seconds = estimate(left, jobs, board.stage)
        console.print(f"this will take about {duration(seconds)}, {jobs} runs at a time", style="dim")
    return left


def write(
    store: RunStore, document: Document, parsed: argparse.Namespace, finished: Results, extras: dict[str, Numbers]
) -> Path:
    """Write the result as an HTML page, or as Markdown if the file's name ends in ``.md``."""
    part = f"-{parsed.only}" if parsed.only else ""
    path: Path = parsed.output or store.folder / f"{document.name}-{parsed.scale}{part}.html"
    make = markdown if path.suffix == ".md" else html
    return write_whole(path, make(document, parsed.scale, finished, extras), "result")


COLOUR = {"holds": "green", "fails": "red", "undecided": "yellow", "not run": "dim"}


def print_result(document: Document, scale: str, finished: Results, extras: dict[str, Numbers]) -> None:
    """Print the tables, each with the claims about it, and then the open questions."""
    console = Console()
    if surrogate := document.scale(scale).surrogate:
        console.print(f"surrogate: {surrogate}", style="dim")
    if warning := mixed(document, scale, finished):
        console.print(warning, style="yellow", markup=False)
    of_document = sections(document, finished, extras)
    for section in of_document:
        console.print(f"\n{section.title}", style="bold")
        titles, rows = section.grid
        columns = (Column(title, justify="right", style="dim" * title.endswith("document")) for title in titles)
        table = Table(Column("", overflow="fold"), *columns, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        if rows:
            console.print(table)
        for line in section.remarks:
            console.print(line, style="dim")
        for outcome in section.claims:
            print_claim(console, outcome)
    console.print(f"\n{tally(of_document)}", style="bold")
    if document.open:
        console.print("open in the document, and chosen here:", style="dim")
        for what, choice in document.open.items():
            console.print(f"  {what}: {choice}", style="dim")


def print_claim(console: Console, judged: Judged) -> None:
    console.print(f"{judged.verdict:9} ", style=COLOUR[judged.verdict], end="")
    console.print(f"{judged.claim.text} ({judged.claim.where})")
    console.print(f"          {judged.reason}", style="dim")


def computed(name: str) -> Numbers:
    """Compute a part that needs no runs."""
    with board_of_one(name) as board:
        return EXTRAS[name].compute(partial(board.stage, name))

"""``reproduce``: a document's experiments, its numbers beside ours, and a verdict on each claim."""

import argparse
import json
from functools import partial
from pathlib import Path

from rich.table import Table

from fedskew.api.execute import complete
from fedskew.claims.document import Document, load
from fedskew.claims.export import exported, read
from fedskew.claims.extras import EXTRAS, Extra
from fedskew.claims.reproduce import PlannedRun, estimate, missing, plan, restore, results
from fedskew.claims.verdicts import Judged, Results, as_json, markdown, tally, texts_of, verdicts
from fedskew.cli.output import print_json, save_figure
from fedskew.cli.request import jobs_of
from fedskew.cli.terminal import CommandLine
from fedskew.core.errors import require
from fedskew.core.files import write_whole
from fedskew.core.text import count
from fedskew.execution.torchrun import on_ranks
from fedskew.report.console import Console
from fedskew.report.progress import board_of_one
from fedskew.report.words import duration
from fedskew.store.runs import RunStore


@on_ranks
def reproduce(parsed: argparse.Namespace) -> int:
    """Carry out missing runs, then print and write the result. The exit code is 1 if a digit of a listing differs."""
    document = load(parsed.document).at(parsed.scale)
    extras = [computed(name, document, parsed) for name in document.extras if parsed.only in (None, name)]
    code = 0 if all(extra.agrees for extra in extras) else 1
    if parsed.only in document.extras:
        if parsed.json:
            print_json(extras[0].values)
        return code
    if parsed.only:
        require(not parsed.export, "reproduce: --export writes a whole document; leave out --only")
        document = document.only(parsed.only)
    planned = plan(document, parsed.scale)
    store = RunStore(parsed.runs)
    repeated: dict[str, object] = {"listing": []}
    for extra in extras:
        repeated |= extra.export
    if parsed.export and parsed.export.exists():
        read_back(store, document, planned, parsed)
    try:
        if not parsed.as_stored:
            run_missing(store, document, planned, parsed)
    finally:
        finished = results(store, planned)
        if parsed.export and finished:
            numbers = exported(document, parsed.scale, finished) | repeated
            text = json.dumps(numbers, separators=(",", ":")).replace('}]},"', '}]},\n"') + "\n"
            write_whole(parsed.export, text, "numbers")
    empty = f"reproduce: the store holds no finished run of {document.name} at scale {parsed.scale}"
    require(bool(finished) or not parsed.export, empty)
    path = write(store, document, parsed, finished)
    if parsed.json:
        print_json({**repeated, **as_json(document, parsed.scale, finished), "page": str(path)})
    else:
        print_result(document, parsed.scale, finished)
        Console().print(f"page: {path}", soft_wrap=True)
    return code


def read_back(store: RunStore, document: Document, planned: list[PlannedRun], parsed: argparse.Namespace) -> None:
    """Add the runs of the export to the store. Print how many there are, and how many belong to other experiments."""
    export, finished = read(parsed.export.read_bytes(), str(parsed.export))
    same = (export["document"], export["scale"]) == (document.name, parsed.scale)
    require(same, f"{parsed.export}: of {export['document']} at scale {export['scale']}; name another file")
    number = restore(store, planned, finished, str(parsed.export))
    others = sum(map(len, export["runs"].values())) - number
    text = f"{parsed.export}: {count(number, 'run')} read"
    if others:
        text += f"; {count(others, 'run')} left out, of other experiments or seeds than the document now has"
    Console(stderr=True).print(text, soft_wrap=True)


def run_missing(store: RunStore, document: Document, planned: list[PlannedRun], parsed: argparse.Namespace) -> None:
    """Carry out the runs that the store does not have yet."""
    console = Console(stderr=True)
    left = missing(store, planned)
    console.print(f"{document.title}, {parsed.scale}: {count(len(planned), 'run')}, {len(left)} to do")
    if not left:
        return
    jobs = min(jobs_of(parsed), len(left))
    with board_of_one("estimating") as board:
        seconds = estimate(left, jobs, board.stage)
    console.print(f"this will take about {duration(seconds)}, {jobs} runs at a time", style="dim")
    title = f"reproduce {document.name} {parsed.scale}"
    complete(store, [p.experiment for p in left], title, jobs, CommandLine())


def write(store: RunStore, document: Document, parsed: argparse.Namespace, finished: Results) -> Path:
    """Write the result as a Markdown page."""
    part = f"-{parsed.only}" if parsed.only else ""
    path: Path = parsed.output or store.folder / f"{document.name}-{parsed.scale}{part}.md"
    return write_whole(path, markdown(document, parsed.scale, finished), "result")


COLOUR = {"holds": "green", "fails": "red", "undecided": "yellow", "not run": "dim"}


def print_result(document: Document, scale: str, finished: Results) -> None:
    """Print the tables, each with the claims about it, and then the open questions."""
    console = Console()
    judged = verdicts(document, finished)
    if surrogate := document.scale(scale).surrogate:
        console.print(f"surrogate: {surrogate}", style="dim")
    for part in document.tables:
        console.print(f"\n{part.title}", style="bold")
        titles, rows, not_run = texts_of(part, finished)
        table = Table(box=None, pad_edge=False)
        table.add_column("", overflow="fold")
        for title in titles:
            table.add_column(
                title.replace("-", " "), justify="right", style="dim" if title.endswith("document") else ""
            )
        for row in rows:
            table.add_row(*row)
        console.print(table)
        for line in (f"not run: {', '.join(not_run)}" if not_run else "", part.note):
            if line:
                console.print(line, style="dim")
        for outcome in judged:
            if outcome.claim.table == part.name:
                print_claim(console, outcome)
    console.print(f"\n{tally(judged)}", style="bold")
    if document.open:
        console.print("open in the document, and chosen here:", style="dim")
        for what, choice in document.open.items():
            console.print(f"  {what}: {choice}", style="dim")


def print_claim(console: Console, judged: Judged) -> None:
    console.print(f"{judged.verdict:9} ", style=COLOUR[judged.verdict], end="")
    console.print(f"{judged.claim.text} ({judged.claim.where})")
    console.print(f"          {judged.reason}", style="dim")


def computed(name: str, document: Document, parsed: argparse.Namespace) -> Extra:
    """Compute a part that needs no store, and draw its picture. Print it, except with ``--json``."""
    with board_of_one(name) as board:
        extra = EXTRAS[name](partial(board.stage, name))
    console = Console()
    if not parsed.json:
        print_extra(console, extra)
    if extra.draw:
        output = parsed.output if parsed.only == name else None
        path: Path = output or parsed.runs / f"{document.name}-{name}.svg"
        save_figure(extra.draw(), path)
        if not parsed.json:
            console.print(f"picture: {path}", soft_wrap=True)
    return extra


def print_extra(console: Console, extra: Extra) -> None:
    table = Table(box=None, pad_edge=False)
    for i, title in enumerate(extra.columns):
        table.add_column(title, justify="right" if i and title else "left")
    for row in extra.rows:
        table.add_row(*row)
    console.print(extra.title, style="bold")
    console.print(table)
    console.print(extra.note, style="dim")

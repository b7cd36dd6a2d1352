"""``reproduce``: a document's experiments, its numbers beside ours, and a verdict on each claim."""

from __future__ import annotations

import argparse
import json
import platform
import re
from pathlib import Path

from rich.table import Table

from fedskew.claims.document import Document, load
from fedskew.claims.export import exported
from fedskew.claims.verdicts import Judged, Results, as_json, cells, interval, markdown, tally, verdicts
from fedskew.cli.output import print_json
from fedskew.cli.progress import Board, duration, stop_on_signal
from fedskew.cli.terminal import Console, transient_progress
from fedskew.cli.train import jobs_for
from fedskew.core.counting import count
from fedskew.core.errors import FedskewError, Interrupted, require
from fedskew.experiment.compare import execute_all
from fedskew.experiment.documents import EXTRAS
from fedskew.experiment.documents.extra import Extra
from fedskew.experiment.machine import cores
from fedskew.experiment.reproduce import Planned, estimate, missing, plan, registered, results
from fedskew.experiment.torchrun import on_ranks
from fedskew.report.words import figures
from fedskew.store.runs import RunStore


@on_ranks
def reproduce(parsed: argparse.Namespace) -> int:
    """Carry out what is missing, then print and write the result; exit code 1 if a digit of a listing differs."""
    document = load(parsed.document).at(parsed.scale)
    extras = [computed(name, document, parsed) for name in document.extras if parsed.only in (None, name)]
    code = 0 if all(extra.agrees for extra in extras) else 1
    if parsed.only in document.extras:
        if parsed.json:
            print_json(extras[0].values)
        return code
    if parsed.only:
        document = document.only(parsed.only)
    planned = plan(document, parsed.scale)
    store = RunStore(parsed.runs)
    if not parsed.as_stored:
        carry_out(store, document, planned, parsed)
    known = results(store, planned)
    repeated: dict[str, object] = {"listing": []}
    for extra in extras:
        repeated |= extra.export
    if parsed.export:
        require(not parsed.only, "reproduce: an export is of a whole document; leave out --only")
        made = exported(document, parsed.scale, known, hardware()) | repeated
        to_file(parsed.export, json.dumps(made, separators=(",", ":")).replace('}},"', '}},\n"') + "\n")
    path = write(store, document, parsed, known)
    if parsed.json:
        print_json({**repeated, **as_json(document, parsed.scale, known), "page": str(path)})
    else:
        print_result(document, parsed.scale, known)
        Console(highlight=False).print(f"page: {path}", soft_wrap=True)
    return code


def carry_out(store: RunStore, document: Document, planned: list[Planned], parsed: argparse.Namespace) -> None:
    """The runs that the store does not hold yet."""
    console = Console(stderr=True, highlight=False)
    left = missing(store, planned)
    console.print(f"{document.title}, {parsed.scale}: {count(len(planned), 'run')}, {len(left)} to do", markup=False)
    if not left:
        return
    jobs = jobs_for(parsed, len(left))
    with transient_progress() as progress:
        bar = progress.add_task("estimating", total=len({p.arm for p in left}))
        seconds = estimate(left, jobs, lambda: progress.advance(bar))
    console.print(f"this will take about {duration(seconds)}, {jobs} runs at a time", style="dim")
    runs = registered(store, left, f"reproduce {document.name} {parsed.scale}")
    records = [store.run(i) for i in runs]
    with stop_on_signal() as stopper, Board([r.name for r in records], [r.rounds for r in records]) as board:
        try:
            execute_all(store, runs, None, jobs, board.heard, board.ended, stopper)
        except Interrupted as error:
            raise Interrupted(f"{error}; everything finished is stored; the same command goes on") from None


def write(store: RunStore, document: Document, parsed: argparse.Namespace, known: Results) -> Path:
    """The result as a Markdown page."""
    part = f"-{parsed.only}" if parsed.only else ""
    path: Path = parsed.output or store.folder / f"{document.name}-{parsed.scale}{part}.md"
    return to_file(path, markdown(document, parsed.scale, known))


def to_file(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FedskewError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def hardware() -> dict[str, str]:
    """The processor, its cores and the memory of this machine, as far as it says."""
    names = re.findall(r"^model name\s*: (.*)$", text_of("/proc/cpuinfo"), re.M) or [platform.processor()]
    memory = re.search(r"MemTotal:\s*(\d+) kB", text_of("/proc/meminfo"))
    return {
        "processor": names[0] or platform.machine(),
        "cores": f"{cores()} cores",
        **({"memory": f"{int(memory[1]) / 2**20:.0f} GiB of memory"} if memory else {}),
    }


def text_of(path: str) -> str:
    """Nothing where there is no such file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


COLOUR = {"holds": "green", "fails": "red", "undecided": "yellow", "not run": "dim"}


def print_result(document: Document, scale: str, known: Results) -> None:
    """Tables, then claims under the table they are about, then what was left open."""
    console = Console(highlight=False)
    judged = {j.name: j for j in verdicts(document, known)}
    if surrogate := document.scale(scale).surrogate:
        console.print(f"surrogate: {surrogate}", style="dim", markup=False)
    for part in document.tables:
        console.print(f"\n{part.title}", style="bold", markup=False)
        table = Table(box=None, pad_edge=False)
        table.add_column("", overflow="fold")
        printed = [m for m in part.measures if any(m in row for row in part.printed.values())]
        for measure in part.measures:
            table.add_column(measure.replace("-", " "), justify="right")
            if measure in printed:
                table.add_column("document", justify="right", style="dim")
        for arm, row in cells(part, known).items():
            shown = []
            for measure, cell in row.items():
                shown.append(interval(cell.mean, cell.half))
                if measure in printed:
                    shown.append("" if cell.document is None else figures(cell.document))
            table.add_row(arm, *shown)
        console.print(table)
        if part.note:
            console.print(f"{part.note}", style="dim", markup=False)
        for claim in document.claims:
            if claim.table == part.name:
                print_claim(console, judged[claim.name])
    console.print(f"\n{tally(list(judged.values()))}", style="bold")
    if document.open:
        console.print("the document leaves open, and we chose:", style="dim")
        for what, chosen in document.open.items():
            console.print(f"  {what}: {chosen}", style="dim", markup=False)


def print_claim(console: Console, judged: Judged) -> None:
    console.print(f"{judged.verdict:9} ", style=COLOUR[judged.verdict], end="")
    console.print(f"{judged.text} ({judged.where})", markup=False)
    console.print(f"          {judged.reason}", style="dim", markup=False)


def computed(name: str, document: Document, parsed: argparse.Namespace) -> Extra:
    """Compute a part that needs no store, draw its picture, and print it unless JSON is wanted."""
    with transient_progress() as progress:
        bar = progress.add_task(name, total=1.0)
        extra = EXTRAS[name](lambda fraction: progress.update(bar, completed=fraction))
    console = Console(highlight=False)
    if not parsed.json:
        print_extra(console, extra)
    if extra.draw:
        chosen = parsed.output if parsed.only == name else None
        path: Path = chosen or parsed.runs / f"{document.name}-{name}.svg"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            extra.draw().savefig(path)
        except (OSError, ValueError) as error:
            raise FedskewError(f"picture {path}: cannot be written: {error}") from None
        if not parsed.json:
            console.print(f"picture: {path}", soft_wrap=True, markup=False)
    return extra


def print_extra(console: Console, extra: Extra) -> None:
    table = Table(box=None, pad_edge=False)
    for i, title in enumerate(extra.columns):
        table.add_column(title, justify="right" if i and title else "left")
    for row in extra.rows:
        table.add_row(*row)
    console.print(extra.title, style="bold", markup=False)
    console.print(table)
    console.print(extra.note, style="dim", markup=False)

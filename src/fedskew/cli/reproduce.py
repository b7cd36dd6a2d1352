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
from fedskew.experiment.drift_bound import drift_bound
from fedskew.experiment.drift_demo import Reproduced, drift_demo
from fedskew.experiment.remembered import cores
from fedskew.experiment.reproduce import Planned, estimate, missing, plan, registered, results
from fedskew.report.bounds import draw_bound
from fedskew.report.words import figures
from fedskew.store.runs import RunStore

EXERCISE = "exercise-14.4.3"
"""What ``--only`` calls the bound on drift; it needs no store."""

LISTING = "listing-14.4.1"
"""What ``--only`` calls the listing that is repeated digit by digit; it needs no store."""


def reproduce(parsed: argparse.Namespace) -> int:
    """Carry out what is missing, then print and write the result; exit code 1 if a digit of the listing differs."""
    document = load(parsed.document).at(parsed.scale)
    listing: list[Reproduced] = []
    if document.name == "drift-demo" and parsed.only in (None, LISTING):
        listing = repeat_listing(parsed)
    if parsed.only == LISTING:
        if parsed.json:
            print_json({"listing": [as_row(r) for r in listing]})
        return 0 if all(r.agrees for r in listing) else 1
    if document.name == "drift-demo" and parsed.only in (None, EXERCISE):
        draw_exercise(parsed)
    if parsed.only == EXERCISE:
        return 0
    if parsed.only:
        document = document.only(parsed.only)
    planned = plan(document, parsed.scale)
    store = RunStore(parsed.runs)
    if not parsed.as_stored:
        carry_out(store, document, planned, parsed)
    known = results(store, planned)
    if parsed.export:
        require(not parsed.only, "reproduce: an export is of a whole document; leave out --only")
        made = exported(document, parsed.scale, known, hardware()) | {"listing": [as_row(r) for r in listing]}
        to_file(parsed.export, json.dumps(made, separators=(",", ":")).replace('}},"', '}},\n"') + "\n")
    path = write(store, document, parsed, known)
    if parsed.json:
        print_json(
            {"listing": [as_row(r) for r in listing], **as_json(document, parsed.scale, known), "page": str(path)}
        )
    else:
        print_result(document, parsed.scale, known)
        Console(highlight=False).print(f"page: {path}", soft_wrap=True)
    return 0 if all(r.agrees for r in listing) else 1


def carry_out(store: RunStore, document: Document, planned: list[Planned], parsed: argparse.Namespace) -> None:
    """The runs that the store does not hold yet."""
    console = Console(stderr=True, highlight=False)
    left = missing(store, planned)
    console.print(f"{document.title}, {parsed.scale}: {count(len(planned), 'run')}, {len(left)} to do", markup=False)
    if not left:
        return
    jobs = jobs_for(parsed, len(left), workers=1)
    with transient_progress() as progress:
        bar = progress.add_task("estimating", total=len({p.arm for p in left}))
        seconds = estimate(left, jobs, lambda: progress.advance(bar))
    console.print(f"this will take about {duration(seconds)}, {jobs} runs at a time", style="dim")
    ids = registered(store, left, f"reproduce {document.name} {parsed.scale}")
    records = [store.run(i) for i in ids]
    with stop_on_signal() as stopper, Board([r.name for r in records], [r.rounds for r in records]) as board:
        try:
            execute_all(store, ids, None, jobs, board.heard, board.ended, stopper)
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


def repeat_listing(parsed: argparse.Namespace) -> list[Reproduced]:
    """Listing 14.4.1 on its own random numbers."""
    with transient_progress() as progress:
        bar = progress.add_task("listing 14.4.1", total=1.0)
        repeated = list(drift_demo(tell=lambda share: progress.update(bar, completed=share)))
    if not parsed.json:
        print_listing(repeated)
    return repeated


def draw_exercise(parsed: argparse.Namespace) -> None:
    """The bound of exercise 14.4.3 against the measured drift, as a picture."""
    rate = 0.1
    alone = parsed.only == EXERCISE
    path: Path = parsed.output if alone and parsed.output else parsed.runs / f"drift-demo-{EXERCISE}.svg"
    found = drift_bound(rate)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_bound(found, rate).savefig(path)
    except (OSError, ValueError) as error:
        raise FedskewError(f"picture {path}: cannot be written: {error}") from None
    if parsed.json and alone:
        print_json({name: {k: v.tolist() for k, v in part._asdict().items()} for name, part in found.items()})
    elif not parsed.json:
        console = Console(highlight=False)
        console.print("Exercise 14.4.3: the bound on drift, full-batch steps at rate 0.1", style="bold")
        for name, part in found.items():
            last = [float(values[-1]) for values in (part.farthest, part.convex, part.smooth)]
            text = "{}: after {} steps the farthest client is {:.3g} away; bounds {:.3g} (convex), {:.3g} (smooth)"
            console.print(text.format(name, len(part.drift), *last), markup=False)
        console.print(f"picture: {path}", soft_wrap=True, markup=False)


def as_row(r: Reproduced) -> dict[str, object]:
    return {
        "skew": r.printed.skew,
        "epochs": r.printed.epochs,
        "drift": r.drift,
        "drift_in_document": r.printed.drift,
        "accuracy": r.accuracy,
        "accuracy_in_document": r.printed.accuracy,
        "agrees": r.agrees,
    }


def print_listing(results: list[Reproduced]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("partition", "epochs", "drift", "document", "accuracy", "document", ""):
        table.add_column(title, justify="left" if title in ("partition", "") else "right")
    for r in results:
        table.add_row(
            r.printed.skew,
            str(r.printed.epochs),
            f"{r.drift:.3f}",
            f"{r.printed.drift:.3f}",
            f"{r.accuracy:.3f}",
            f"{r.printed.accuracy:.3f}",
            "same" if r.agrees else "differs",
        )
    console = Console(highlight=False)
    console.print("Listing 14.4.1 on its own random numbers", style="bold")
    console.print(table)
    console.print(
        "drift: mean over 30 rounds; accuracy: on the training rows, as the document measures it", style="dim"
    )

"""``diagnose``: how clients differ, on the terminal, as JSON, and as a page."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedskew.cli.output import print_json
from fedskew.cli.terminal import Console
from fedskew.core.errors import require
from fedskew.experiment.config import Experiment
from fedskew.experiment.diagnose import Subject, diagnosis, from_experiment, from_files
from fedskew.report.diagnosis import answer, two, write_diagnosis

BAR = 12
"""Characters of a face's bar."""

LINE_EVERY = 5.0


def diagnose(parsed: argparse.Namespace) -> int:
    require(parsed.seed >= 0, f"diagnose: seed must be at least 0, got {parsed.seed}")
    with progress() as tell:
        found = diagnosis(subject(parsed, tell), parsed.seed, tell)
    if parsed.html:
        write_diagnosis(found, parsed.html)
    if parsed.json:
        print_json(found)
    else:
        show(found, Console(highlight=False))
        if parsed.html:
            Console(highlight=False).print(f"\npage: {parsed.html}", soft_wrap=True)
    return 0


def subject(parsed: argparse.Namespace, tell: Callable[[str, float], None]) -> Subject:
    """The files, or the named data set; one of the two."""
    require(
        bool(parsed.paths) != bool(parsed.dataset),
        "diagnose: give files with --label and --client, or --dataset with --skew (one of the two)",
    )
    if parsed.paths:
        require(bool(parsed.label), "diagnose: name the column with the labels, --label COLUMN")
        require(
            parsed.skew is None and parsed.clients is None,
            "diagnose: --skew and --clients deal the rows of a --dataset; files say themselves whose rows are whose (--client)",
        )
        return from_files(parsed.paths, parsed.label, parsed.client or "", parsed.seed, tell)
    require(
        not (parsed.label or parsed.client),
        f"diagnose: --label and --client are of files; {parsed.dataset} has its own",
    )
    experiment = Experiment(dataset=parsed.dataset, **({"skew": parsed.skew} if parsed.skew else {}))
    clients = {"number": parsed.clients, "partition_seed": parsed.partition_seed}
    settings = {f"clients__{name}": value for name, value in clients.items() if value is not None}
    experiment = experiment.replace(**settings) if settings else experiment
    return from_experiment(experiment, f"{parsed.dataset}, {' + '.join(experiment.labels('skew'))}")


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal; a line every few seconds elsewhere; on standard error."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task, said = bar.add_task("reading", total=1.0), time.perf_counter()

    def tell(what: str, share: float) -> None:
        nonlocal said
        bar.update(task, description=what, completed=share)
        if not console.is_terminal and time.perf_counter() - said > LINE_EVERY:
            said = time.perf_counter()
            print(f"{what}: {100 * share:.0f} %", file=sys.stderr)

    if console.is_terminal:
        with bar:
            yield tell
    else:
        yield tell


def show(found: Mapping[str, Any], console: Console) -> None:
    """The diagnosis in 80 columns."""
    console.print(answer(found), style="bold", markup=False)
    sizes = f"{found['smallest']:,} to {found['largest']:,} rows, half of them below {found['median']:,g}"
    console.print(
        f"\n{found['data']}: {found['clients']:,} clients with {sizes}; {len(found['classes'])} classes\n", markup=False
    )
    table = Table(box=None, pad_edge=False)
    for title in ("face", "0", "interval", "chance", "p", "strength", "verdict"):
        table.add_column(
            f"0{'':{BAR - 2}}1" if title == "0" else title,
            justify="left" if title in ("face", "0", "verdict") else "right",
            no_wrap=True,
        )
    for face in found["faces"]:
        table.add_row(
            face["face"],
            bar_of(face["value"], face["chance"]),
            between(face),
            two(face["chance"]),
            "<0.01" if face["p"] < 0.01 else f"{face['p']:.2f}",
            f"{face['strength']:.2f}",
            face["verdict"],
            style="" if face["face"] == found["dominant"] or found["dominant"] is None else "dim",
        )
    console.print(table)
    console.print()
    for face in found["faces"]:
        console.print(f"{face['face']:9}{face['meaning']}", style="dim", markup=False)
    console.print(
        f"Each number is a total variation distance, 0 alike, at most {1 - 1 / found['clients']:.2f} where these "
        f"{found['clients']:,} clients have nothing in common (each is part of everybody), with its 95 % interval over resampled "
        "clients. Chance: rows dealt at random to clients of these sizes. Strength: (number - chance) / (1 - chance). p is "
        "corrected for the four tests.",
        style="dim",
        markup=False,
    )
    if found["rows_of_a_class_held_by_one_client"]:
        share = found["rows_of_a_class_held_by_one_client"] / found["measured_rows"]
        console.print(
            f"{100 * share:.0f} % of the rows are of a class that one client holds alone: whether their inputs or concepts differ "
            "cannot be told from the labels.",
            markup=False,
        )
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False)
    advice = found["advice"]
    console.print("\nWhat to try", style="bold")
    console.print(advice["because"], markup=False)
    for meaning, lines in groupby(advice["methods"], key=lambda line: line["meaning"]):
        console.print(f"Above FedAvg, {meaning}:", markup=False)
        for at, line in enumerate(lines, 1):
            shown = "; ".join(
                f"{100 * e['gain']:+.1f} ± {100 * e['half']:.1f} points on {e['data']} under {e['skew']}"
                for e in line["evidence"]
            )
            console.print(f"{at}. {line['method']}: {shown}", markup=False)
    console.print(advice["caution"], markup=False)
    console.print(advice["command"], style="bold", markup=False, soft_wrap=True)


def between(face: Mapping[str, Any]) -> str:
    if math.isnan(face["low"]):
        return two(face["value"])
    return f"{two(face['value'])} ({two(face['low'])}–{two(face['high'])})"


def bar_of(value: float, chance: float) -> str:
    """``█████·······`` with ``|`` where chance is."""
    cells = ["█" if (i + 0.5) / BAR <= value else "·" for i in range(BAR)]
    cells[min(BAR - 1, max(0, int(chance * BAR)))] = "|"
    return "".join(cells)

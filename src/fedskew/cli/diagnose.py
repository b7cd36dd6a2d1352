"""``diagnose``: measure how clients differ. The result goes to the terminal, to JSON, or to a page."""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedskew.api.diagnose import diagnose as measure
from fedskew.cli.options import keywords_of
from fedskew.cli.output import print_json
from fedskew.cli.terminal import CommandLine
from fedskew.core.text import count, percent
from fedskew.diagnosis.questions import LEAVES
from fedskew.experiment.keywords import DiagnoseKeywords
from fedskew.report.console import Console
from fedskew.report.diagnosis import answer, explained, farthest, two, write_diagnosis
from fedskew.report.experiments import name_of

SOME_CLIENTS = 6
"""The table shows only this number of clients: the largest."""

FEW_NOTES = 3
"""If there are more routine notes, only their number is printed."""

NEAREST_PRINTED = 2
"""Number of lines on the nearest measured cases; the page has all."""

WIDTH = 14
"""Maximum width of a column in the table of clients, in characters."""

BAR = 12
"""Width of a face's bar, in characters."""


def diagnose(parsed: argparse.Namespace) -> int:
    if parsed.list:
        show_leaves(Console(), parsed.json)
        return 0
    keywords = keywords_of(parsed, DiagnoseKeywords)
    present(measure(*parsed.paths, runs=parsed.runs, progress=CommandLine(), **keywords), parsed.html, parsed.json)
    return 0


def present(found: dict[str, Any], page: Path | None, as_json: bool) -> None:
    """Print a diagnosis. If ``page`` is given, also write it to this HTML file."""
    if page:
        write_diagnosis(found, page)
    if as_json:
        print_json(found)
    else:
        show(found, Console())
        if page:
            Console().print(f"\npage: {page}", soft_wrap=True)


def show_leaves(console: Console, as_json: bool) -> None:
    """Print all numbers that leave a site in a diagnosis without pooling."""
    if as_json:
        print_json([leaf._asdict() for leaf in LEAVES])
        return
    table = Table(box=None, pad_edge=False)
    for title in ("step", "number", "how many", "meaning"):
        table.add_column(title)
    for leaf in LEAVES:
        table.add_row(*map(escape, leaf))
    console.print(table)
    console.print("Rows never leave a site. Counts are 0 or at least FEWEST, which the site chooses (5 by default).")


def show(found: Mapping[str, Any], console: Console) -> None:
    """Print the diagnosis, in 80 columns."""
    console.print(answer(found), style="bold")
    sizes = f"{found['smallest']:,} to {found['largest']:,} rows, median {found['median']:,g}"
    names = found["client_names"]
    console.print(f"\n{found['data']}: {found['clients']:,} clients with {sizes}; {found['target_in_words']}")
    console.print()
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
    console.print(table_of_clients(found))
    if len(names) > SOME_CLIENTS:
        console.print(f"and {len(names) - SOME_CLIENTS:,} smaller clients: see --html or --json", style="dim")
    console.print()
    for face in found["faces"]:
        far = farthest(found, face)
        console.print(f"{face['face']:9}{face['meaning']}{f'; farthest: {escape(far)}' if far else ''}", style="dim")
    console.print(
        f"Each number is a total variation distance, 0 alike, at most {1 - 1 / found['clients']:.2f} where these "
        f"{found['clients']:,} clients have nothing in common (each is part of everybody), with its 95 % interval over resampled "
        "clients. Chance: rows dealt at random to clients of these sizes. Strength: (number - chance) / (1 - chance). p is "
        f"corrected for the {len(found['faces'])} tests.",
        style="dim",
    )
    if found["rows_of_a_class_held_by_one_client"]:
        share = found["rows_of_a_class_held_by_one_client"] / found["measured_rows"]
        console.print(
            f"{100 * share:.0f} % of the rows are of a class that one client holds alone: here a difference of inputs "
            "or concepts looks like a difference of labels.",
        )
    by_labels = explained(found)
    if found["columns"] or by_labels:
        console.print("\nWhat differs most, and for whom", style="bold")
    for column in found["columns"]:
        console.print(f"- {column['text']}")
    if by_labels:
        console.print(f"{by_labels}.")
    console.print()
    for note in found["notes"]:
        console.print(f"note: {note}")
    routine = found["column_notes"]
    for note in routine if len(routine) <= FEW_NOTES else ():
        console.print(f"note: {note}", style="dim")
    if len(routine) > FEW_NOTES:
        console.print(f"{count(len(routine), 'routine note')} on columns: see --html or --json", style="dim")
    advice = found["advice"]
    console.print("\nWhat to try", style="bold")
    for repair in found["repairs"]:
        console.print(repair)
    console.print(advice["because"])
    for line in advice["methods"]:
        console.print(
            f"Best of {line['methods']} methods {line['meaning']}: {name_of(line['method'])} removed {percent(line['gain'])} "
            f"± {100 * line['half']:.0f} of FedAvg's error{line['beyond']} (mean over {count(line['data_sets'], 'data set')})."
        )
    for near in advice["nearest"][:NEAREST_PRINTED]:
        console.print(
            f"Nearest case {near['data']}, {near['skew']}, {near['meaning']}: {name_of(near['method'])} {near['text']}, "
            f"{near['verdict']}"
        )
    for sentence in advice["checked"]:
        console.print(sentence)
    console.print(advice["caution"])
    console.print(advice["command"], style="bold", soft_wrap=True)


def table_of_clients(found: Mapping[str, Any]) -> Table:
    """Return a table of the largest clients: number of rows, and shares or means of the rows' values."""
    held, sizes = found["holdings"], found["sizes"]
    table = Table(box=None, pad_edge=False)
    table.add_column("client", max_width=WIDTH, no_wrap=True)
    for title in ("rows", *held["columns"]):
        table.add_column(escape(title), justify="right", max_width=WIDTH, no_wrap=True)
    for at in sorted(sorted(range(len(sizes)), key=lambda k: -sizes[k])[:SOME_CLIENTS]):
        values = zip(held["rows"][at], held["shares"], strict=True)
        cells = (f"{100 * value:.0f} %" if share else f"{value:,.4g}" for value, share in values)
        table.add_row(escape(found["client_names"][at]), f"{sizes[at]:,}", *cells)
    return table


def between(face: Mapping[str, Any]) -> str:
    if math.isnan(face["low"]):
        return two(face["value"])
    return f"{two(face['value'])} ({two(face['low'])}–{two(face['high'])})"


def bar_of(value: float, chance: float) -> str:
    """Return a bar such as ``█████·······`` for a value in 0..1, with ``|`` at the value expected by chance."""
    cells = ["█" if (i + 0.5) / BAR <= value else "·" for i in range(BAR)]
    cells[min(BAR - 1, max(0, int(chance * BAR)))] = "|"
    return "".join(cells)

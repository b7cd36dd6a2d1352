"""``diagnose``: measure how clients differ. The result goes to the terminal, to JSON, or to a page."""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from fedskew.api.caller import CommandLine
from fedskew.api.diagnose import diagnose as measure
from fedskew.cli.output import plain_table, print_json
from fedskew.cli.verbs import keywords_of
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

WIDTH = 14
"""Maximum width of a column in the table of clients, in characters."""

BAR = 12
"""Width of a face's bar, in characters."""


def diagnose(parsed: argparse.Namespace) -> None:
    if parsed.list:
        show_leaves(Console(), parsed.json)
        return
    keywords = keywords_of(parsed, DiagnoseKeywords)
    present(measure(*parsed.paths, runs=parsed.runs, progress=CommandLine(), **keywords), parsed.html, parsed.json)


def present(diagnosis: dict[str, Any], page: Path | None, as_json: bool) -> None:
    """Print a diagnosis. If ``page`` is given, also write it to this HTML file."""
    if page:
        write_diagnosis(diagnosis, page)
    if as_json:
        print_json(diagnosis)
    else:
        show(diagnosis, Console())
        if page:
            Console().print(f"\npage: {page}", soft_wrap=True)


def show_leaves(console: Console, as_json: bool) -> None:
    """Print all numbers that leave a site in a diagnosis without pooling, and for a harmonisation by sums of all sites."""
    if as_json:
        print_json([leaf._asdict() for leaf in LEAVES])
        return
    table = Table("step", "number", "how many", "meaning", box=None, pad_edge=False)
    for leaf in LEAVES:
        table.add_row(*leaf)
    console.print(table)
    console.print("Rows never leave a site. Counts are 0 or at least FEWEST, which the site chooses (5 by default).")


def show(diagnosis: Mapping[str, Any], console: Console) -> None:
    """Print the diagnosis, in 80 columns."""
    console.print(answer(diagnosis), style="bold")
    show_repairs(diagnosis, console)
    sizes = f"{diagnosis['smallest']:,} to {diagnosis['largest']:,} rows, median {diagnosis['median']:,g}"
    console.print(
        f"\n{diagnosis['data']}: {diagnosis['clients']:,} clients with {sizes}; {diagnosis['target_in_words']}"
    )
    console.print()
    console.print(table_of_faces(diagnosis))
    console.print()
    console.print(table_of_clients(diagnosis))
    if (others := len(diagnosis["client_names"]) - SOME_CLIENTS) > 0:
        console.print(f"and {others:,} smaller clients: see --html or --json", style="dim")
    console.print()
    show_meaning(diagnosis, console)
    by_labels = explained(diagnosis)
    if diagnosis["columns"] or by_labels:
        console.print("\nWhat differs most, and for whom", style="bold")
    for column in diagnosis["columns"]:
        console.print(f"- {column['text']}")
    if by_labels:
        console.print(f"{by_labels}.")
    console.print()
    for note in diagnosis["notes"]:
        console.print(f"note: {note}")
    routine = diagnosis["column_notes"]
    for note in routine if len(routine) <= FEW_NOTES else ():
        console.print(f"note: {note}", style="dim")
    if len(routine) > FEW_NOTES:
        console.print(f"{count(len(routine), 'routine note')} on columns: see --html or --json", style="dim")
    show_advice(diagnosis, console)


def table_of_faces(diagnosis: Mapping[str, Any]) -> Table:
    """Return a table with a row for each face. Faces other than the dominant one are grey."""
    scale = f"0{'':{BAR - 2}}1"
    titles = ("face", scale, "interval", "chance", "p", "strength", "verdict")
    table = plain_table(*titles, left=("face", scale, "verdict"), wrap=False)
    for face in diagnosis["faces"]:
        table.add_row(
            face["face"],
            bar_of(face["value"], face["chance"]),
            between(face),
            two(face["chance"]),
            "<0.01" if face["p"] < 0.01 else f"{face['p']:.2f}",
            f"{face['strength']:.2f}",
            face["verdict"],
            style="" if diagnosis["dominant"] in (face["face"], None) else "dim",
        )
    return table


def show_meaning(diagnosis: Mapping[str, Any], console: Console) -> None:
    """Print what the numbers of the faces mean, and which clients are farthest from the others."""
    for face in diagnosis["faces"]:
        far = farthest(diagnosis, face)
        console.print(f"{face['face']:9}{face['meaning']}{f'; farthest: {far}' if far else ''}", style="dim")
    clients = diagnosis["clients"]
    console.print(
        f"Each number is a total variation distance, 0 alike, at most {1 - 1 / clients:.2f} where these "
        f"{clients:,} clients have nothing in common (each is part of everybody), with its 95 % interval over resampled "
        "clients. Chance: rows dealt at random to clients of these sizes. Strength: (number - chance) / (1 - chance). p is "
        f"corrected for the {len(diagnosis['faces'])} tests.",
        style="dim",
    )
    if rows := diagnosis["rows_of_a_class_held_by_one_client"]:
        console.print(
            f"{100 * rows / diagnosis['measured_rows']:.0f} % of the rows are of a class that one client holds alone: here a "
            "difference of inputs or concepts looks like a difference of labels.",
        )


def show_repairs(diagnosis: Mapping[str, Any], console: Console) -> None:
    """Print what to mend in the data, and the lines to copy."""
    if diagnosis["repairs"]:
        console.print("\nFirst mend the data", style="bold")
    for repair in diagnosis["repairs"]:
        console.print(f"- {repair}")
    for block in diagnosis["paste"]:
        console.print(f"If so, write in {block['file']}, beside the table:")
        console.print(block["lines"].rstrip(), style="bold", soft_wrap=True)


def show_advice(diagnosis: Mapping[str, Any], console: Console) -> None:
    """Print what to try."""
    advice = diagnosis["advice"]
    console.print("\nWhat to try", style="bold")
    console.print(advice["because"])
    certain = [line for line in advice["methods"] if line["gain"] > line["half"]]
    for line in certain:
        console.print(
            f"Best of {line['methods']} methods {line['meaning']}: {name_of(line['method'])} removed {percent(line['gain'])} "
            f"± {100 * line['half']:.0f} of FedAvg's error{line['beyond']} (mean over {count(line['data_sets'], 'data set')})."
        )
    if advice["methods"] and not certain:
        console.print("No method certainly beat FedAvg, tuned, in the measured cases; --html and --json have them.")
    console.print(advice["caution"])
    console.print(advice["command"], style="bold", soft_wrap=True)


def table_of_clients(diagnosis: Mapping[str, Any]) -> Table:
    """Return a table of the largest clients: number of rows, and shares or means of the rows' values."""
    holdings, sizes = diagnosis["holdings"], diagnosis["sizes"]
    titles = ("rows", *holdings["columns"])
    columns = (Column(title, justify="right", max_width=WIDTH, no_wrap=True) for title in titles)
    table = Table(Column("client", max_width=WIDTH, no_wrap=True), *columns, box=None, pad_edge=False)
    for at in sorted(sorted(range(len(sizes)), key=lambda k: -sizes[k])[:SOME_CLIENTS]):
        values = zip(holdings["rows"][at], holdings["shares"], strict=True)
        cells = (f"{100 * value:.0f} %" if share else f"{value:,.4g}" for value, share in values)
        table.add_row(diagnosis["client_names"][at], f"{sizes[at]:,}", *cells)
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

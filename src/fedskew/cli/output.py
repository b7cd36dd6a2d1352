"""Printing results: tables on a terminal, plain text in a pipe, JSON for scripts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Table

from fedskew.cli.terminal import Console, say
from fedskew.core.errors import FedskewError
from fedskew.measure.registry import primary
from fedskew.report.budget import Budget
from fedskew.report.experiments import measured_rows
from fedskew.report.files import readable
from fedskew.report.names import names, titled
from fedskew.report.profile import measuring, profiles
from fedskew.report.ranks import caption, ranking
from fedskew.report.series import by_part, curves_by_run
from fedskew.report.signs import warnings
from fedskew.report.tables import columns, read, summary, unfinished
from fedskew.report.words import SEEDS_ONLY, listed, read_after
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CORRECTED = "verdicts: paired t tests at 5 % after Holm's correction"


def print_json(value: object) -> None:
    """Print JSON on standard output; NaN and infinity become null."""
    json.dump(clean(value), sys.stdout, indent=2)
    sys.stdout.write("\n")


def clean(value: object) -> object:
    """The value as JSON types; NaN and infinity become null."""
    if isinstance(value, dict):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summary_json(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> dict[str, object]:
    """The summary table, and the runs it was made from with their curves, also by layer and class."""
    curves, parts = curves_by_run(read(store, records, budget)), by_part(store, records)
    return {
        "methods": summary(store, records, budget).to_dict("records"),
        "runs": [
            {
                "run": r.id,
                "name": r.name,
                "seed": r.seed,
                "status": r.status,
                "rounds": r.rounds_done,
                "message": r.message,
                "curves": curves[curves["run"] == r.id].drop(columns="run").to_dict("records"),
                "parts": parts[parts["run"] == r.id].drop(columns="run").to_dict("records"),
            }
            for r in records
        ],
    }


def print_summary(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> None:
    """Print the table with one row a method."""
    spelled, records = names(records)[0], titled(records)
    frame = summary(store, records, budget)
    shown = readable(frame).drop(columns=["clients' rows", "seeds"], errors="ignore")
    headings = {"against the first": f"vs {spelled.method}", "verdict": ""}
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in map(str, shown):
        justify: Literal["left", "right"] = "left" if column in ("method", "verdict") else "right"
        table.add_column(headings.get(column, column), justify=justify, overflow="fold")
    for row in shown.itertuples(index=False):
        table.add_row(*row)
    console = Console()
    console.print(table)
    fewest, seeds = int(frame["seeds"].min()), int(frame["seeds"].max())
    what = (
        f"mean and 95 % interval over {seeds if fewest == seeds else f'{fewest} to {seeds}'} seeds; {SEEDS_ONLY}"
        if seeds > 1
        else "only one seed: no interval; add --seeds 5"
        if seeds
        else "no run has finished"
    )
    measures = columns(frame, "table")
    of_clients = [m.title for m in measures if m.of_clients]
    notes = [
        f"{primary().label} {read_after(frame, budget)}",
        what,
        CORRECTED if int(frame["comparisons"].iloc[0]) > 1 else "",
        f"{listed(of_clients)}: on each client's {measured_rows(records)}" if of_clients else "",
        *(m.remark for m in measures),
    ]
    console.print("; ".join(filter(None, notes)), style="dim")


def print_ranks(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> None:
    """Print the methods' mean ranks, if the runs use several data sets."""
    found = ranking(store, records, budget)
    if found is None:
        return
    names, blocks, ranks = found
    console = Console()
    console.print(f"\n{caption(blocks, ranks)}")
    for k in sorted(range(len(names)), key=lambda k: float(ranks.mean[k])):
        console.print(f"  {ranks.mean[k]:.2f}  {names[k]}")


def print_unfinished(records: Sequence[RunRecord]) -> None:
    """Print the runs without final numbers, and why."""
    console = Console()
    for row in unfinished(titled(records)).to_dict("records"):
        console.print(
            f"run {row['run']} ({row['method']}): {row['status']} after round {row['rounds_done']}. {row['message']}",
        )


def print_warnings(records: Sequence[RunRecord]) -> None:
    """Print the warnings of the runs, each once."""
    for line in warnings(titled(records)):
        Console().print(f"warning: {line}", style="yellow")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture and the folders above it. Raises `FedskewError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise FedskewError(f"picture {path}: cannot be written: {error}") from None


def warn(line: str) -> None:
    """Print a line on standard error."""
    say(f"fedskew: {line}", error=True)


def print_measuring(records: Sequence[RunRecord]) -> None:
    """Print the time spent on measuring, if it is known."""
    if line := measuring(records):
        Console().print(line, style="dim")


def print_profile(records: Sequence[RunRecord]) -> None:
    """Print where the time of each method's rounds went, over all its runs."""
    for method, seconds in profiles(titled(records)).items():
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for column in (f"{method}: seconds", "", "share", ""):
            table.add_column(column, justify="left" if column == "" else "right", no_wrap=True)
        total = sum(seconds.values())
        for name, value in seconds.items():
            share = value / total
            table.add_row(f"{value:.3f}", name, f"{100 * share:.0f} %", "█" * round(30 * share))
        Console().print(table)


def number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"

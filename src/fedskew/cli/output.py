"""Printing results: tables on a terminal, plain text in a pipe, JSON for scripts."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fedskew.cli.terminal import Console, say
from fedskew.measure.registry import primary
from fedskew.report.budget import Budget
from fedskew.report.experiments import measured_rows, warnings
from fedskew.report.files import readable
from fedskew.report.profile import measuring, profiles
from fedskew.report.ranks import caption, ranking
from fedskew.report.tables import columns, summary, unfinished
from fedskew.report.words import SEEDS_ONLY, listed, read_after
from fedskew.store.runs import RunRecord, RunStore

CORRECTED = "verdicts: paired t tests at 5 % after Holm's correction"


def print_json(value: Any) -> None:
    """JSON on standard output; numbers that do not exist are null."""
    json.dump(clean(value), sys.stdout, indent=2)
    sys.stdout.write("\n")


def clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summary_json(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> dict[str, Any]:
    """The summary table and the runs it was made from."""
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
            }
            for r in records
        ],
    }


def print_summary(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> None:
    """One row a method."""
    frame = summary(store, records, budget)
    shown = readable(frame).drop(columns=["clients' rows", "seeds"], errors="ignore")
    first = str(frame["method"].iloc[0])
    headings = {"against the first": f"vs {re.split('[:,]', first)[0]}", "verdict": ""}
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in map(str, shown):
        justify: Any = "left" if column in ("method", "verdict") else "right"
        table.add_column(
            headings.get(column, column), justify=justify, overflow="fold" if column == "method" else "ellipsis"
        )
    for row in shown.itertuples(index=False):
        table.add_row(*row)
    console = Console(highlight=False)
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
    """The methods' mean ranks, where the runs are on several data sets."""
    found = ranking(store, records, budget)
    if found is None:
        return
    names, blocks, ranks = found
    console = Console(highlight=False)
    console.print(f"\n{caption(blocks, ranks)}", markup=False)
    for k in sorted(range(len(names)), key=lambda k: float(ranks.mean[k])):
        console.print(f"  {ranks.mean[k]:.2f}  {names[k]}", markup=False)


def print_unfinished(records: Sequence[RunRecord]) -> None:
    """Runs that have no final numbers, and why."""
    console = Console(highlight=False)
    for row in unfinished(records).to_dict("records"):
        console.print(
            f"run {row['run']} ({row['method']}): {row['status']} after round {row['rounds_done']}. {row['message']}",
            markup=False,
        )


def print_warnings(records: Sequence[RunRecord]) -> None:
    """What went wrong while runs went, each sign once."""
    for line in warnings(records):
        Console(highlight=False).print(f"warning: {line}", style="yellow", markup=False)


def warn(line: str) -> None:
    """A line on standard error."""
    say(f"fedskew: {line}", error=True)


def print_measuring(records: Sequence[RunRecord]) -> None:
    """What it cost to measure, where that is known."""
    if line := measuring(records):
        Console(highlight=False).print(line, style="dim", markup=False)


def print_profile(records: Sequence[RunRecord]) -> None:
    """Where the time of each method's rounds went, all its runs together."""
    for method, seconds in profiles(records).items():
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for column in (f"{method}: seconds", "", "share", ""):
            table.add_column(column, justify="left" if column == "" else "right", no_wrap=True)
        total = sum(seconds.values())
        for name, value in seconds.items():
            share = value / total
            table.add_row(f"{value:.3f}", name, f"{100 * share:.0f} %", "█" * round(30 * share))
        Console(highlight=False).print(table)


def number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"

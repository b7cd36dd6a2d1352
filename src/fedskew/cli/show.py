"""``show``, ``report`` and ``cite``."""

import argparse

from rich.table import Table

from fedskew.cli.output import (
    layout_from,
    print_json,
    print_measuring,
    print_ranks,
    print_summary,
    print_unfinished,
    print_warnings,
    summary_json,
)
from fedskew.cli.terminal import Console, say
from fedskew.cli.watch import follow, going_on
from fedskew.core.errors import require
from fedskew.core.text import count
from fedskew.measure import registry
from fedskew.report.budget import Budget, budget_from
from fedskew.report.files import PLAIN, write_figures, write_tables
from fedskew.report.html import write_report
from fedskew.report.names import comparison_title, display_name, repeat_command
from fedskew.report.series import by_part, curves_by_run
from fedskew.report.tables import read
from fedskew.report.words import heading, plain
from fedskew.store.runs import RunRecord, RunStore

PAUSE = 2.0
"""Seconds between two pages of ``report --watch``."""


def show(parsed: argparse.Namespace) -> int:
    """Print the table of runs, and the curves if there is a single run. With ``--toml``, print its experiment instead."""
    budget = budget_from(parsed.budget) if parsed.budget else None
    store = RunStore(parsed.runs, read_only=True)
    records = store.select(parsed.runs_wanted)
    if parsed.toml:
        require(not parsed.json, "show: --json has the experiment, too; leave out --toml")
        say("\n".join(record.experiment for record in records))
        return 0
    if parsed.json:
        facts = {"experiment": records[0].experiment, "facts": records[0].facts} if len(records) == 1 else {}
        print_json({**summary_json(store, records, budget), **facts})
        return 0
    console, alone = Console(), records[0]
    if len(records) == 1:
        done = f"{alone.rounds_done} of {count(alone.rounds, 'round')}"
        title = f"run {alone.id}: {display_name(alone)}, {alone.status}, {done}"
    else:
        title = comparison_title(store, records)
    print_summary(store, records, budget, layout_from(parsed), title)
    print_ranks(store, records, budget)
    if len(records) == 1:
        print_curves(store, alone, budget)
    print_unfinished(records)
    print_warnings(records)
    print_measuring(records)
    toml = f"; --toml prints the {'experiment' if len(records) == 1 else 'experiments'}"
    console.print(f"repeat: {repeat_command(store, records)}{toml}", style="dim", soft_wrap=True)
    return 0


def print_curves(store: RunStore, record: RunRecord, budget: Budget | None = None) -> None:
    """Print the run's metrics at every measured round, and its newest metrics by layer and class."""
    console, frame = Console(), read(store, [record], budget, ["recovery"])
    curves = curves_by_run(frame)
    if len(curves):
        measures = [m for m in registry.shown("curve") if m.key in curves]
        table = Table(box=None, pad_edge=False)
        for title in ("round", *map(heading, measures)):
            table.add_column(title, justify="right")
        for row in curves.to_dict("records"):
            table.add_row(str(row["round"]), *(plain(m, row[m.key]) for m in measures))
        console.print(table)
    parts = by_part(store, [record])
    parts = parts[parts["round"] <= frame["round"].max()]
    for split, rows in parts[parts["round"] == parts.groupby("split")["round"].transform("max")].groupby("split"):
        table = Table(box=None, pad_edge=False)
        table.add_column(f"{split} (round {rows['round'].iloc[0]})")
        newest = rows.pivot(index="part", columns="name", values="value").reindex(rows["part"].unique())
        found = [registry.stored()[str(split), name] for name in newest]
        for measure in found:
            table.add_column(heading(measure), justify="right")
        for part, values in newest.iterrows():
            table.add_row(str(part), *(plain(m, float(values[m.name])) for m in found))
        console.print(table)
    back = frame[(frame["split"] == "test") & (frame["name"] == "recovery")]
    if len(back):
        console.print(
            f"{int(back['value'].iloc[0])} rounds after the change the accuracy is back at 95 % of its value before"
        )


def report(parsed: argparse.Namespace) -> int:
    """Write the HTML page, and figures and tables for a paper. With ``--watch``, do so again while the runs continue."""
    store = RunStore(parsed.runs, read_only=True)
    records = store.select(parsed.runs_wanted)
    comparisons = {r.comparison for r in records}
    one = comparisons.pop() if len(comparisons) == 1 else None
    name = f"c{one}" if one else "-".join(str(r.id) for r in records[:4])
    interval = f"-{parsed.interval}" if parsed.interval != PLAIN.spread else ""
    path = parsed.output or store.folder / f"{name}{interval}.html"
    budget = budget_from(parsed.budget) if parsed.budget else None
    layout = layout_from(parsed)
    if parsed.watch:
        Console(stderr=True).print(f"report: {path} follows the runs; Ctrl-C stops it", soft_wrap=True)
        for seen in follow(store, [str(record.id) for record in records], PAUSE):
            if going_on(seen):
                write_report(store, [run.record for run in seen], path, budget, layout, live=True)
        records = [store.run(record.id) for record in records]
    path = write_report(store, records, path, budget, layout)
    figures = write_figures(store, records, parsed.figures, budget, layout) if parsed.figures else []
    files = figures + (write_tables(store, records, parsed.tables, budget, layout) if parsed.tables else [])
    if parsed.json:
        print_json({"report": str(path), "files": [str(f) for f in files], "runs": [r.id for r in records]})
    else:
        for file in [f"report: {path}", *files]:
            Console().print(str(file), soft_wrap=True)
    return 0


def cite(parsed: argparse.Namespace) -> int:
    """Print BibTeX entries for all that the runs used. A comment above each entry names the part that used it."""
    from fedskew.experiment.references import bibliography, bibtex  # loads PyTorch

    records = RunStore(parsed.runs, read_only=True).select(parsed.runs_wanted)
    works, unknown = bibliography(records)
    if parsed.json:
        rows = [{"key": w.reference.key, "used_by": list(w.used_by), **w.reference.fields} for w in works]
        print_json({"references": rows, "unknown": unknown})
        return 0
    say(bibtex(works, unknown))
    return 0

"""``list``, ``show``, ``report`` and ``cite``."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

from rich.table import Table
from rich.text import Text

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
from fedskew.cli.runs import list_runs
from fedskew.cli.terminal import Console, say
from fedskew.cli.watch import follow, going_on
from fedskew.conformance.cost import LEGEND, measured
from fedskew.core.algorithm import Algorithm
from fedskew.core.component import shown
from fedskew.core.counting import count
from fedskew.core.errors import BadInput, FedskewError, require, suggestion
from fedskew.experiment.combinations import COMBINATIONS, Combination
from fedskew.experiment.config import COMPONENTS, Experiment
from fedskew.experiment.references import bibliography, bibtex
from fedskew.measure import registry
from fedskew.report.budget import Budget, budget_from
from fedskew.report.files import PLAIN, write_figures, write_tables
from fedskew.report.html import write_report
from fedskew.report.names import comparison_title, display_name
from fedskew.report.repeat import repeat_command
from fedskew.report.series import by_part, curves_by_run
from fedskew.report.tables import read
from fedskew.report.words import heading, plain
from fedskew.slots import All, ServerSgd
from fedskew.store.runs import RunRecord, RunStore

PAUSE = 2.0
"""Seconds between two pages of ``report --watch``."""

KINDS = {catalogue.kinds: section for section, catalogue in COMPONENTS.items()}


def list_(parsed: argparse.Namespace) -> int:
    """List the runs, or the components of one kind."""
    if parsed.what == "runs":
        return list_runs(parsed)
    if parsed.what not in KINDS:
        raise BadInput(f"list: unknown kind {parsed.what!r}; {suggestion(parsed.what, ['runs', *KINDS])}")
    rows = algorithm_rows() if parsed.what == "algorithms" else component_rows(COMPONENTS[KINDS[parsed.what]])
    if parsed.json:
        print_json(rows)
    else:
        print_rows(rows)
        if parsed.what == "algorithms":
            Console().print(f"\ncost: {LEGEND}", style="dim")
    return 0


Row = dict[str, str | float]


def algorithm_rows(catalogue: Mapping[str, type[Algorithm]] = COMPONENTS["algorithm"]) -> list[Row]:
    """Return one row for each algorithm and named combination, with its cost for the default options."""
    rows, methods = [], cast(dict[str, type[Algorithm] | Combination], {**catalogue, **COMBINATIONS})
    for name, method in methods.items():
        options = method if isinstance(method, type) else method.options
        row = {"name": name, "idea": method.idea, "changes": method.changes, "options": options_of(options)}
        rows.append({**row, **cost_of(method, options), "paper": method.paper})
    return rows


def cost_of(method: type[Algorithm] | Combination, options: type) -> Row:
    """Return what the method stores, sends and computes with default options. Empty if it cannot run with them."""
    if any(f.default is f.default_factory is dataclasses.MISSING for f in dataclasses.fields(options)):
        return {}
    try:
        if isinstance(method, type):
            return measured(method(), ServerSgd()).row()
        made = method.apply(Experiment(), options())
        # if a part of the model stays with the clients, the size of messages depends on the model
        return measured(made.algorithm, made.server).row() if made.sharing == All() else {}
    except FedskewError:
        return {}


def component_rows(catalogue: Mapping[str, type]) -> list[Row]:
    """Return one row for each component: name, idea and options."""
    return [
        {"name": name, "idea": getattr(cls, "idea", "") or first_sentence(cls), "options": options_of(cls)}
        for name, cls in catalogue.items()
    ]


def first_sentence(cls: type) -> str:
    return (cls.__doc__ or "").replace("``", "").strip().partition("\n")[0]


def options_of(cls: type) -> str:
    """Return all options with their defaults: ``mu=0.1 step=explicit``."""
    defaults = {f.name: f.default for f in dataclasses.fields(cls)}
    return " ".join(
        f"{name}=" + ("" if default in (dataclasses.MISSING, None) else shown(default))
        for name, default in defaults.items()
    )


def print_rows(rows: Sequence[Row]) -> None:
    """Print the idea of each entry, and its options and cost in grey."""
    console = Console()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(str(row["name"]), Text(str(row["idea"])))
        cost = (
            f"client keeps {row['client_state']}, server {row['server_state']}; down {row['down']}, up {row['up']}; "
            f"a step {row['compute']}"
            if "compute" in row
            else ""
        )
        details = {
            "changes: ": row.get("changes"),
            "options: ": row["options"],
            "cost: ": cost,
            "": row.get("paper"),
        }
        for title, text in details.items():
            if text:
                table.add_row("", Text(f"{title}{text}", style="dim"))
    console.print(table)


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
    console, frame = Console(), read(store, [record], budget)
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
    records = RunStore(parsed.runs, read_only=True).select(parsed.runs_wanted)
    works, unknown = bibliography(records)
    if parsed.json:
        rows = [{"key": w.reference.key, "used_by": list(w.used_by), **w.reference.fields} for w in works]
        print_json({"references": rows, "unknown": unknown})
        return 0
    say(bibtex(works, unknown))
    return 0

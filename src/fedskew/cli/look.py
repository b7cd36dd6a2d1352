"""``list``, ``show``, ``report`` and ``cite``."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from fedskew.cli.live import serve
from fedskew.cli.output import (
    number,
    print_json,
    print_measuring,
    print_ranks,
    print_summary,
    print_unfinished,
    print_warnings,
    summary_json,
)
from fedskew.cli.terminal import Console, say
from fedskew.conformance.cost import LEGEND, measured
from fedskew.core.component import shown
from fedskew.core.counting import count
from fedskew.core.errors import BadInput, FedskewError, require, suggestion
from fedskew.experiment.combinations import COMBINATIONS, Combination
from fedskew.experiment.config import COMPONENTS, Experiment
from fedskew.experiment.references import citations, without_code
from fedskew.measure import registry
from fedskew.report.budget import Budget, budget_from
from fedskew.report.files import write_figures, write_tables
from fedskew.report.html import write_report
from fedskew.report.tables import read, rows_of
from fedskew.slots import All, ServerSgd
from fedskew.store.runs import RunRecord, RunStore

KINDS = {
    "algorithms": "algorithm",
    "datasets": "dataset",
    "skews": "skew",
    "models": "model",
    "solvers": "solver",
    "servers": "server",
    "augmentations": "augment",
    "availabilities": "availability",
    "refines": "refine",
    "selections": "selection",
    "codecs": "codec",
    "sharings": "sharing",
    "engines": "engine",
}


def list_(parsed: argparse.Namespace) -> int:
    """What there is of one kind."""
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
            Console(highlight=False).print(f"\ncost: {LEGEND}", style="dim")
    return 0


def algorithm_rows(catalogue: Mapping[str, type] = COMPONENTS["algorithm"]) -> list[dict[str, Any]]:
    """Algorithms, then named combinations, with what each costs."""
    return [
        *(about(name, cls, cls, cost_of(cls, partial(alone, cls))) for name, cls in catalogue.items()),
        *(about(name, c, c.options, cost_of(c.options, partial(parts, c))) for name, c in COMBINATIONS.items()),
    ]


def about(name: str, method: Any, options: type, cost: Mapping[str, Any]) -> dict[str, Any]:
    told = {"name": name, "idea": method.idea, "changes": method.changes, "options": options_of(options)}
    return {**told, **cost, "paper": method.paper}


def alone(cls: type) -> tuple[Any, Any]:
    return cls(), ServerSgd()


def parts(combination: Combination) -> tuple[Any, Any]:
    """The algorithm and the server optimiser that a named combination stands for."""
    made = combination.apply(Experiment(), combination.options())
    require(made.sharing == All(), "what clients send depends on the model")
    return made.algorithm, made.server


def cost_of(options: type, make: Callable[[], tuple[Any, Any]]) -> dict[str, Any]:
    """What the method keeps, sends and computes with its default options; nothing if it cannot be made or run with them."""
    if any(f.default is f.default_factory is dataclasses.MISSING for f in dataclasses.fields(options)):
        return {}
    try:
        return measured(*make()).row()
    except FedskewError:
        return {}


def component_rows(catalogue: Mapping[str, type]) -> list[dict[str, Any]]:
    return [
        {"name": name, "idea": getattr(cls, "idea", "") or first_sentence(cls), "options": options_of(cls)}
        for name, cls in catalogue.items()
    ]


def first_sentence(cls: type) -> str:
    return (cls.__doc__ or "").replace("``", "").strip().partition("\n")[0]


def options_of(cls: type) -> str:
    """``mu=0.1 step=explicit``: every option with its default."""
    parts = []
    for f in dataclasses.fields(cls):
        default = (
            ""
            if f.default in (dataclasses.MISSING, None)
            else shown(list(f.default) if isinstance(f.default, tuple) else f.default)
        )
        parts.append(f"{f.name}={default}")
    return " ".join(parts)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Two lines an entry: what it is, and in grey how it is set."""
    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(row["name"], Text(row["idea"]))
        details = [f"changes: {row['changes']}"] if row.get("changes") else []
        details += [f"options: {row['options']}"] if row["options"] else []
        details += [cost_line(row)] if row.get("compute") else []
        details += [row["paper"]] if row.get("paper") else []
        for line in details:
            table.add_row("", Text(line, style="dim"))
    console.print(table)


def cost_line(row: Mapping[str, Any]) -> str:
    kept = f"client keeps {row['client_state']}, server {row['server_state']}"
    return f"cost: {kept}; down {row['down']}, up {row['up']}; a step {row['compute']}"


def list_runs(parsed: argparse.Namespace) -> int:
    store = RunStore(parsed.runs, read_only=True)
    records = store.runs()
    if parsed.json:
        print_json([{k: v for k, v in dataclasses.asdict(r).items() if k != "experiment"} for r in records])
        return 0
    console = Console(highlight=False)
    if not records:
        console.print(f"no runs yet in {store.folder}; `fedskew run` or `fedskew compare` makes some")
        return 0
    table = Table(box=None, pad_edge=False)
    for title in ("run", "in", "method", "data", "seed", "rounds", "status"):
        table.add_column(title, justify="right" if title in ("run", "seed", "rounds") else "left", overflow="fold")
    for r in records:
        data = r.facts.get("data", {}).get("name", "")
        group = f"c{r.comparison}" if r.comparison else ""
        table.add_row(str(r.id), group, r.name, data, str(r.seed), f"{r.rounds_done}/{r.rounds}", r.status)
    console.print(table)
    return 0


def show(parsed: argparse.Namespace) -> int:
    """A run in detail, or the table of several."""
    budget = budget_from(parsed.budget) if parsed.budget else None
    store = RunStore(parsed.runs, read_only=True)
    records = store.select(parsed.runs_wanted)
    if parsed.json:
        facts = {"experiment": records[0].experiment, "facts": records[0].facts} if len(records) == 1 else {}
        print_json({**summary_json(store, records, budget), **facts})
        return 0
    if len(records) == 1:
        show_one(store, records[0], budget)
    print_summary(store, records, budget)
    print_ranks(store, records, budget)
    print_unfinished(records)
    print_warnings(records)
    print_measuring(records)
    return 0


def show_one(store: RunStore, record: RunRecord, budget: Budget | None = None) -> None:
    """Settings, engine and curve of one run, as far as the budget goes."""
    console = Console(highlight=False)
    console.print(
        f"run {record.id}: {record.name}, {record.status}, {record.rounds_done} of {count(record.rounds, 'round')}",
        style="bold",
    )
    console.print(record.experiment.strip(), style="dim", markup=False)
    engine = record.facts.get("engine", {})
    console.print(
        f"engine: {engine.get('choice', engine.get('name', 'not chosen yet'))} {engine.get('estimated_seconds_a_round', '')}",
        markup=False,
    )
    frame = read(store, [record], budget)
    if frame.empty:
        return
    curves = {m: rows_of(frame, m).groupby("round")["value"].sum(min_count=1) for m in registry.shown("curve")}
    table = Table(box=None, pad_edge=False)
    table.add_column("round", justify="right")
    curves = {m: curve for m, curve in curves.items() if len(curve)}
    for measure in curves:
        table.add_column(measure.label if measure.split == "test" else measure.title, justify="right")
    rounds = sorted(frame["round"].unique())
    for at in rounds if len(rounds) <= 12 else [*rounds[:: -(-len(rounds) // 11)], rounds[-1]]:
        table.add_row(str(at), *(number(float(curve.get(at, math.nan)), 4) for curve in curves.values()))
    console.print(table)
    back = frame[(frame["split"] == "test") & (frame["name"] == "recovery")]
    if len(back):
        console.print(f"back at 95 % of the accuracy before the change {int(back['value'].iloc[0])} rounds after it")


def report(parsed: argparse.Namespace) -> int:
    """Write the HTML page, and figures and tables for a paper; or serve it while its runs go on."""
    store = RunStore(parsed.runs, read_only=True)
    records = store.select(parsed.runs_wanted)
    comparisons = {r.comparison for r in records}
    one = comparisons.pop() if len(comparisons) == 1 else None
    path = parsed.output or store.folder / (
        f"c{one}.html" if one else "-".join(str(r.id) for r in records[:4]) + ".html"
    )
    budget = budget_from(parsed.budget) if parsed.budget else None
    if parsed.live:
        require(
            not (parsed.output or parsed.figures or parsed.tables or parsed.json),
            "report: --live writes no file; leave out --output, --figures, --tables and --json",
        )
        return serve(store, records, parsed.port, budget)
    path = write_report(store, records, path, budget)
    figures = write_figures(store, records, parsed.figures, budget) if parsed.figures else []
    files = figures + (write_tables(store, records, parsed.tables, budget) if parsed.tables else [])
    if parsed.json:
        print_json({"report": str(path), "files": [str(f) for f in files], "runs": [r.id for r in records]})
    else:
        for file in [f"report: {path}", *files]:
            Console(highlight=False).print(str(file), soft_wrap=True, markup=False)
    return 0


def cite(parsed: argparse.Namespace) -> int:
    """BibTeX of what the runs used; what each entry is for stands above it."""
    records = RunStore(parsed.runs, read_only=True).select(parsed.runs_wanted)
    read = [without_code(r.experiment, f"run {r.id}") for r in records]
    works, unknown = citations(experiment for experiment, _ in read)
    unknown += [f"{name} (code that is gone, or that you have not run)" for _, names in read for name in names]
    if parsed.json:
        rows = [{"key": w.reference.key, "used_by": list(w.used_by), **w.reference.fields} for w in works]
        print_json({"references": rows, "unknown": unknown})
        return 0
    for name in unknown:
        say(f"% no entry for {name}")
    say("\n\n".join(f"% {', '.join(w.used_by)}\n{w.reference.bibtex}" for w in works))
    return 0

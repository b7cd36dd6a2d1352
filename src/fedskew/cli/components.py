"""``list`` of components, and ``check`` of one. Importing it loads PyTorch."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast, get_type_hints

from rich.table import Column, Table
from rich.text import Text

from fedskew.cli.output import print_json
from fedskew.conformance.cost import LEGEND, measure_cost
from fedskew.core.algorithm import Algorithm
from fedskew.core.component import compact
from fedskew.core.errors import BadInput, FedskewError, suggestion
from fedskew.core.limits import NOUNS, expected
from fedskew.experiment.combinations import COMBINATIONS, Combination
from fedskew.experiment.components import KINDS, check as check_promises, classes_of
from fedskew.experiment.config import COMPONENTS, Experiment
from fedskew.experiment.references import paper_of
from fedskew.report.console import Console
from fedskew.slots import All, ServerSgd

SECTIONS = {catalogue.kinds: section for section, catalogue in COMPONENTS.items()}

COST = "client keeps {client_state}, server {server_state}; down {down}, up {up}; a step {compute}"
"""The cost of a method in one line."""


def list_components(parsed: argparse.Namespace) -> None:
    """List the components of one kind."""
    if parsed.what not in SECTIONS:
        raise BadInput(f"list: unknown kind {parsed.what!r}; {suggestion(parsed.what, ['runs', *SECTIONS])}")
    rows = algorithm_rows() if parsed.what == "algorithms" else component_rows(COMPONENTS[SECTIONS[parsed.what]])
    if parsed.json:
        print_json(rows)
    else:
        print_rows(rows)
        if parsed.what == "algorithms":
            Console().print(f"\ncost: {LEGEND}", style="dim")


Row = dict[str, str | float]


def algorithm_rows(catalogue: Mapping[str, type[Algorithm]] = COMPONENTS["algorithm"]) -> list[Row]:
    """Return one row for each algorithm and named combination, with its cost for the default options."""
    rows, methods = [], cast(dict[str, type[Algorithm] | Combination], {**catalogue, **COMBINATIONS})
    for name, method in methods.items():
        options = method if isinstance(method, type) else method.options
        row = {"name": name, "idea": method.idea, "changes": method.changes, "options": options_of(options)}
        paper = getattr(method, "paper", "") or paper_of(method.cites)
        rows.append({**row, **cost_of(method, options), "paper": paper})
    return rows


def cost_of(method: type[Algorithm] | Combination, options: type) -> Row:
    """Return what the method stores, sends and computes with default options. Empty if it cannot run with them."""
    if any(f.default is f.default_factory is dataclasses.MISSING for f in dataclasses.fields(options)):
        return {}
    try:
        if isinstance(method, type):
            return measure_cost(method(), ServerSgd()).row()
        experiment = method.apply(Experiment(), options())
        # if a part of the model stays with the clients, the size of messages depends on the model
        return measure_cost(experiment.algorithm, experiment.server).row() if experiment.sharing == All() else {}
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
    """Return all options with their defaults, and their choices or limits: ``mu=0.1 (a finite number of at least 0)``."""
    types = get_type_hints(cls, include_extras=True)
    texts = []
    for field in dataclasses.fields(cls):
        default = "" if field.default in (dataclasses.MISSING, None) else compact(field.default)
        words = expected(types[field.name], only_limits=True)
        texts.append(f"{field.name}={default}" + f" ({words})" * (words not in NOUNS.values()))
    return " ".join(texts)


def print_rows(rows: Sequence[Row]) -> None:
    """Print the idea of each entry, and its options and cost in grey."""
    console = Console()
    table = Table(Column(style="bold", no_wrap=True), Column(), box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(str(row["name"]), Text(str(row["idea"])))
        cost = COST.format(**row) if "compute" in row else ""
        details = {"changes: ": row.get("changes"), "options: ": row["options"], "cost: ": cost, "": row.get("paper")}
        for title, text in details.items():
            if text:
                table.add_row("", Text(f"{title}{text}", style="dim"))
    console.print(table)


def check(parsed: argparse.Namespace) -> int | None:
    """Check a component's promises and print one line for each. The exit code is 1 if a promise is broken."""
    from fedskew.api.answers import Checked  # loads pandas, which lists do not need

    if parsed.component.endswith(".py"):
        list_classes(parsed)
        return None
    console, verdicts = Console(), []
    kind, promises = check_promises(parsed.component)
    for verdict in promises:
        verdicts.append(verdict)
        if not parsed.json:
            console.print("ok    " if verdict.kept else "broken", style="green" if verdict.kept else "red", end=" ")
            console.print(verdict.promise + (f": {verdict.reason}" if verdict.reason else ""), soft_wrap=True)
    checked = Checked(parsed.component, kind, tuple(verdicts))
    if parsed.json:
        rows = [dataclasses.asdict(verdict) for verdict in verdicts]
        print_json({"component": parsed.component, "kind": kind, "promises": rows})
    else:
        console.print(checked.heading, soft_wrap=True)
    return 0 if checked else 1


def list_classes(parsed: argparse.Namespace) -> None:
    """Print each class of a file with its kind and the command that checks it."""
    kinds = classes_of(parsed.component)
    if not kinds:
        raise BadInput(f"check {parsed.component}: the file defines no class; write one, such as class Mine(Algorithm)")
    if parsed.json:
        print_json(kinds)
        return
    for name, kind in kinds.items():
        command = f", fedskew check {parsed.component}::{name}" if kind in KINDS else ""
        Console().print(f"{name}: {kind}{command}", soft_wrap=True)

"""Write docs/reference.md and docs/algorithms.md from the code: python docs/generate.py. Tests hold the committed pages to it."""

import argparse
import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedskew.algorithms import ALGORITHMS
from fedskew.claims import export
from fedskew.cli.main import parser
from fedskew.cli.options import EXPERIMENT
from fedskew.cli.show import KINDS, algorithm_rows, component_rows
from fedskew.conformance.cost import LEGEND, measured
from fedskew.core.algorithm import Algorithm
from fedskew.core.component import shown
from fedskew.experiment.combinations import COMBINATIONS
from fedskew.experiment.config import COMPONENTS, SETTINGS
from fedskew.experiment.references import references
from fedskew.measure import registry

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

SERVER_HOOKS = ("server_init", "convene", "broadcast", "weights", "shares", "mean_delta", "aggregate")
NO_HOOKS = ("contract", "accepts")
CLIENT_HOOKS = tuple(
    name
    for name, value in vars(Algorithm).items()
    if inspect.isfunction(value) and not name.startswith("_") and name not in (*SERVER_HOOKS, *NO_HOOKS)
)
"""In the order of a round."""

COST = {
    "client keeps": "client_state",
    "server keeps": "server_state",
    "down": "down",
    "up": "up",
    "a local step": "compute",
}
"""Columns of what a method costs."""


def with_cost(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{**row, **{title: row.get(key, "") for title, key in COST.items()}} for row in rows]


def methods() -> list[Mapping[str, Any]]:
    return with_cost(algorithm_rows(ALGORITHMS))


def table(rows: list[Mapping[str, Any]], columns: list[str]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    for row in rows:
        cells = [f"`{row[c]}`" if c in ("name", "options") and row[c] else str(row.get(c, "")) for c in columns]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def verbs() -> str:
    top = parser()
    chosen = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    rows = [{"name": c.dest, "what": c.help} for c in chosen._choices_actions]
    return table(rows, ["name", "what"])


def command_options() -> str:
    """The options of `run`, `compare` and `tune` that change an experiment."""
    rows = [
        {"name": one.name, "sets": f"`{one.sets}`" if one.sets else "", "what": one.help}
        for options in EXPERIMENT.values()
        for one in options
    ]
    return table(rows, ["name", "sets", "what"])


def settings() -> str:
    parts = []
    for section, cls in SETTINGS.items():
        text = inspect.cleandoc(cls.__doc__ or "").replace("``", "`")
        rows = component_rows({section: cls})
        parts.append(f"**`[{section}]`** {text}\n\nOptions: `{rows[0]['options']}`")
    return "\n\n".join(parts)


def measurements() -> str:
    return table(
        [{"split": m.split, "name": m.name, "what": m.note} for m in registry.stored().values()],
        ["split", "name", "what"],
    )


def columns() -> str:
    """The measures in tables and figures of runs."""
    rows = [
        {"name": m.key, "from": f"{m.split} {' + '.join(m.of)}", "over the rounds": m.reduce, "what": m.note,
         "shown": ", ".join(view for view in get_args(registry.View) if view in m.shown)}
        for m in registry.shown()
    ]  # fmt: skip
    return table(rows, ["name", "from", "over the rounds", "what", "shown"])


def algorithms() -> str:
    """The page with one section a method."""
    parts = [
        "# Methods",
        "This page is made from the code by `python docs/generate.py`: formulas, departures and differences from the head of each "
        "method's file, hooks as they run, figures as they are measured.",
        f"In the tables: {LEGEND}.",
        table(list(overview()), ["method", "idea", "changes", *COST]),
        *(section(name, cls) for name, cls in ALGORITHMS.items()),
        "## Names for combinations",
        "Methods of the field that are FedAvg under other slots or settings; their options are those of the slot.",
        table([row for row in methods() if row["name"] in COMBINATIONS], ["name", "idea", "options", *COST]),
        "\n".join(f"- `{name}`: {cited(c.cites)}" for name, c in COMBINATIONS.items()),
    ]
    return "\n\n".join(parts) + "\n"


def overview() -> Iterator[Mapping[str, Any]]:
    for row in methods():
        if (name := row["name"]) in ALGORITHMS:
            place = anchor(f"{Head(ALGORITHMS[name]).title} ({name})")
            yield {**row, "method": f"[`{name}`](#{place})"}


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


class Head:
    """The docstring of a method's file: title, formula lines by who acts, paragraphs."""

    def __init__(self, cls: type) -> None:
        text = inspect.getdoc(inspect.getmodule(cls)) or ""
        first, *blocks = text.split("\n\n")
        self.title = first.partition(" (")[0].rstrip(".")
        self.formulas: dict[str, list[str]] = {}
        self.paragraphs: list[str] = []
        for block in blocks:
            if not all(line.startswith("    ") for line in block.splitlines()):
                self.paragraphs.append(" ".join(block.splitlines()).replace("``", "`"))
                continue
            who = ""
            for line in inspect.cleandoc(block).splitlines():
                who = line.split()[0] if line[0] != " " else who
                self.formulas.setdefault(who, []).append(line)


def section(name: str, cls: type) -> str:
    head = Head(cls)
    names = [p.partition(":")[0] for p in head.paragraphs]
    notes = [
        f"**{word}.** {sentence(p.partition(':')[2].strip())}" if word in ("Departures", "Elsewhere") else p
        for word, p in zip(names, head.paragraphs, strict=True)
    ]
    cost = table(with_cost([{**measured(cls()).row(), "changes": cls.changes}]), ["changes", *COST])
    reduces = "; ".join(f"`{own or 'as it is'}` is `{other}`" for own, other in cls.reduces_to.items())
    parts = [
        f"## {head.title} (`{name}`)",
        f"{sentence(cls.idea)}. {cited(cls.cites)}",
        beside(head, cls),
        *notes,
        options(cls),
        f"Reduces to, over whole trajectories: {reduces}." if reduces else "",
        cost,
    ]
    return "\n\n".join(part for part in parts if part)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def cited(keys: tuple[str, ...]) -> str:
    return " ".join(references()[key].line() + "." for key in keys)


def beside(head: Head, cls: type) -> str:
    """The formulas in one column, the hooks that carry them out in the other."""
    rows = []
    for who, hooks in (("client", CLIENT_HOOKS), ("server", SERVER_HOOKS)):
        lines = [
            line for key, group in head.formulas.items() if (key == "server") == (who == "server") for line in group
        ]
        code = "\n\n".join(source(cls, hook) for hook in hooks if getattr(cls, hook) is not getattr(Algorithm, hook))
        rows.append(cell("text", "\n".join(lines)) + cell("python", code or "# as FedAvg: the base class"))
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table>\n<tr><th>the paper</th><th>the hooks</th></tr>\n{body}\n</table>"


def cell(language: str, text: str) -> str:
    return f'<td valign="top">\n\n```{language}\n{text}\n```\n\n</td>'


def source(cls: type, hook: str) -> str:
    """A hook's code without its types, which are the base class's."""
    code = ast.parse(textwrap.dedent(inspect.getsource(getattr(cls, hook))))
    function = code.body[0]
    assert isinstance(function, ast.FunctionDef)
    names = ", ".join(argument.arg for argument in function.args.args)
    lines = textwrap.dedent(inspect.getsource(getattr(cls, hook))).splitlines()
    return "\n".join([f"def {hook}({names}):", *lines[function.body[0].lineno - 1 :]])


def options(cls: type) -> str:
    """The options with their defaults and what is usually tried."""
    rows = [
        {
            "name": f.name,
            "default": f"`{shown(f.default)}`",
            "usual values": cls.ranges.get(f.name, choices(cls, f.name)),
        }
        for f in dataclasses.fields(cls)
    ]
    return table(rows, ["name", "default", "usual values"])


def choices(cls: type, option: str) -> str:
    """What the type allows, where it is a list of words."""
    hint = get_type_hints(cls)[option]
    return ", ".join(str(choice) for choice in get_args(hint)) if get_origin(hint) is Literal else ""


def page() -> str:
    """The reference page."""
    parts = [
        "# Reference",
        "This page is made from the code by `python docs/generate.py`.",
        "## Verbs",
        verbs(),
        "## Options of an experiment",
        "`run`, `compare` and `tune` take these options. Each replaces the component or setting of the experiment file in the "
        "second column. `fedskew VERB --help` lists the other options.",
        command_options(),
        "## Algorithms",
        "Written `name:option=value,option=value`. The first ones are files of their own under `src/fedskew/algorithms/`; the "
        "others are names for slots and settings on the same code (`src/fedskew/experiment/combinations.py`).",
        f"What each costs is measured; {LEGEND}. [algorithms.md](algorithms.md) has each method's formulas beside its code.",
        table(methods(), ["name", "idea", "changes", "options", *COST, "paper"]),
    ]
    for kind, section in KINDS.items():
        if kind != "algorithms":
            catalogue = {k: v for k, v in COMPONENTS[section].items() if k != "own"}
            parts += [f"## {kind.capitalize()}", table(component_rows(catalogue), ["name", "idea", "options"])]
    parts += [
        "## Settings",
        "Sections of an experiment file besides the components above; `--set section.option=value` reaches each of them.",
        settings(),
        "## Measurements",
        "What a run stores, by split and name.",
        measurements(),
        "These have a column in `fedskew show --json` and `runs.table()`. They are shown in these places: `table` is the "
        "terminal, LaTeX and Markdown; `page` the table of the report; `curve` a figure; `live` progress and `fedskew watch`.",
        columns(),
    ]
    return "\n\n".join(parts) + "\n"


def performance() -> str:
    """The page of what `make bench` measured."""
    from benchmarks.rounds.page import markdown

    return markdown(json.loads((HERE / "performance.json").read_text(encoding="utf-8")))


EXPORTS = sorted((HERE / "results").glob("*.json"))
"""What the page of results is made from: `fedskew reproduce NAME --export FILE` writes one."""


def results() -> str:
    """The page of what the documents' experiments gave."""
    return export.page([json.loads(path.read_text(encoding="utf-8")) for path in EXPORTS])


PAGES = {HERE / "reference.md": page, HERE / "algorithms.md": algorithms}
if (HERE / "performance.json").is_file():
    PAGES[HERE / "performance.md"] = performance
if EXPORTS:
    PAGES[HERE / "results.md"] = results


def main() -> None:
    for path, made in PAGES.items():
        path.write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The pages of reference: command line, components, settings and measurements, and the Python interface."""

import argparse
import inspect
from typing import get_args

from builder.methods import table

import fedskew
from fedskew.cli.components import SECTIONS, component_rows
from fedskew.cli.main import parser
from fedskew.cli.verbs import EXPERIMENT
from fedskew.experiment.config import COMPONENTS, SETTINGS
from fedskew.experiment.keywords import KEYWORDS
from fedskew.measure import registry


def pages() -> dict[str, str]:
    return {
        "reference/command-line.md": command_line(),
        "reference/components.md": components(),
        "reference/settings.md": settings(),
        "reference/measurements.md": all_measurements(),
        "reference/columns.md": all_columns(),
        "python/index.md": python(),
    }


def command_line() -> str:
    parts = ["# Command line", "`fedskew VERB --help` explains a verb and all its options.", "## Verbs", verbs()]
    parts += [
        "## Options of an experiment",
        "`run`, `compare` and `tune` take these options. Each replaces the component or setting of the experiment file in the "
        "third column.",
        command_options(),
    ]
    top = parser()
    for name, verb in verb_parsers(top).items():
        shown = verb.format_help().replace("```", "")
        parts += (
            [f"## fedskew {name}", f"```text\n{shown.strip()}\n```"] if name not in ("run", "compare", "tune") else []
        )
    return "\n\n".join(parts) + "\n"


def verb_parsers(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next(a for a in top._actions if isinstance(a, argparse._SubParsersAction)).choices


def verbs() -> str:
    chosen = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return table([{"name": c.dest, "what": c.help} for c in chosen._choices_actions], ["name", "what"])


def command_options() -> str:
    """The options of `run`, `compare` and `tune` that change an experiment."""
    sets = {
        f"--{one.name.replace('_', '-')}": f"`{one.sets or one.name}`"
        for one in KEYWORDS.values()
        if one.sets is not None
    }
    rows = [
        {"name": one.name, "sets": sets.get(one.name, ""), "what": one.help}
        for options in EXPERIMENT.values()
        for one in options
    ]
    return table(rows, ["name", "what", "sets"])


def components() -> str:
    parts = [
        "# Components",
        "Every part of an experiment is a name with options, written `name:option=value,option=value`. The form is the same on "
        "the command line, in TOML and in Python. [Methods](../methods/index.md) have pages of their own. "
        "`fedskew list KIND` prints a list in the terminal.",
    ]
    for kind, section in SECTIONS.items():
        if kind != "algorithms":
            catalogue = {k: v for k, v in COMPONENTS[section].items() if k != "own"}
            parts += [f"## {kind.capitalize()}", table(component_rows(catalogue), ["name", "idea", "options"])]
    return "\n\n".join(parts) + "\n"


def settings() -> str:
    parts = [
        "# Settings in TOML",
        "An experiment file has a section for each component, with its `name` and options, and the sections below. On the command "
        "line `--set section.option=value` reaches each of them; in Python `section__option=value` does.",
    ]
    for section, cls in SETTINGS.items():
        text = inspect.cleandoc(cls.__doc__ or "").replace("``", "`")
        rows = component_rows({section: cls})
        parts.append(f"## `[{section}]`\n\n{text}\n\nOptions: `{rows[0]['options']}`")
    return "\n\n".join(parts) + "\n"


def all_measurements() -> str:
    parts = [
        "# Measurements",
        "What a run stores, by split and name.",
        "[Columns](columns.md) lists the measurements in tables and figures.",
        measurements(),
    ]
    return "\n\n".join(parts) + "\n"


def all_columns() -> str:
    parts = [
        "# Columns of tables and figures",
        "These have a column in `fedskew show --json` and `runs.table()`. They are shown in these places: `table` is the "
        "terminal, LaTeX and Markdown; `page` the table of the report; `curve` a figure; `live` progress and `fedskew watch`.",
        columns(),
    ]
    return "\n\n".join(parts) + "\n"


def measurements() -> str:
    return table(
        [{"split": m.split, "name": m.name, "what": m.note} for m in registry.Measures().stored.values()],
        ["split", "name", "what"],
    )


def columns() -> str:
    """The measures in tables and figures of runs. Those that a run stores are described above them."""
    rows = [
        {"name": m.key, "from": f"{m.split} {' + '.join(m.of)}", "over the rounds": m.reduce,
         "what": "" if (m.split, m.name) in registry.Measures().stored else m.note,
         "shown": ", ".join(view for view in get_args(registry.View) if view in m.views)}
        for m in registry.Measures().shown()
    ]  # fmt: skip
    return table(rows, ["name", "from", "over the rounds", "what", "shown"])


def python() -> str:
    """The public names of the package, each with its signature and docstring by mkdocstrings."""
    parts = ["# Python", inspect.getdoc(fedskew) or ""]
    for name in sorted(fedskew.__all__):
        thing = getattr(fedskew, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            parts.append(f"::: {thing.__module__}.{thing.__qualname__}\n    options:\n      heading_level: 2")
    return "\n\n".join(parts) + "\n"

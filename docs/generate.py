"""Write docs/reference.md from the code: python docs/generate.py. A test holds the committed page against this."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedskew.cli.look import KINDS, algorithm_rows, component_rows
from fedskew.cli.main import parser
from fedskew.experiment.config import COMPONENTS, SETTINGS
from fedskew.store.runs import MEASUREMENTS

PAGE = Path(__file__).with_name("reference.md")


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


def settings() -> str:
    parts = []
    for section, cls in SETTINGS.items():
        text = inspect.cleandoc(cls.__doc__ or "").replace("``", "`")
        rows = component_rows({section: cls})
        parts.append(f"**`[{section}]`** {text}\n\nOptions: `{rows[0]['options']}`")
    return "\n\n".join(parts)


def measurements() -> str:
    rows = [{"split": s, "name": n, "what": w} for s, names in MEASUREMENTS.items() for n, w in names.items()]
    return table(rows, ["split", "name", "what"])


def page() -> str:
    """The whole page."""
    parts = [
        "# Reference",
        "This page is made from the code by `python docs/generate.py`.",
        "## Verbs",
        verbs(),
        "## Algorithms",
        "Written `name:option=value,option=value`. The first ones are files of their own under `src/fedskew/algorithms/`; the "
        "others are names for slots and settings on the same code (`src/fedskew/experiment/combinations.py`).",
        table(algorithm_rows(), ["name", "idea", "changes", "options", "paper"]),
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
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

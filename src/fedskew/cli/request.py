"""From parsed options to an experiment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedskew.core.component import label, literal, parse, plain
from fedskew.core.counting import count
from fedskew.core.errors import BadInput, require
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import (
    COMPONENTS,
    SETTINGS,
    Evaluation,
    Experiment,
    from_table_of_sections,
    from_toml,
    read,
)
from fedskew.loop.system import System
from fedskew.store.runs import RunRecord

SECTIONS = (
    *(
        "dataset",
        "skew",
        "model",
        "solver",
        "server",
        "refine",
        "augment",
        "availability",
        "selection",
        "sharing",
        "codec",
        "engine",
    ),
)
"""Options that name a component of the section of the same name."""

OPTIONS = {
    "clients": "clients.number",
    "partition_seed": "clients.partition_seed",
    "held_out": "clients.held_out",
    "server_data": "server_data.share",
    "epochs": "local.epochs",
    "steps": "local.steps",
    "batch_size": "local.batch_size",
    "rounds": "training.rounds",
    "seed": "training.seed",
    "dtype": "training.dtype",
    "device": "training.device",
    "precision": "training.precision",
    "lr": "solver.lr",
    "momentum": "solver.momentum",
}
"""Options that set one value of a section."""


def from_file(parsed: argparse.Namespace) -> Experiment:
    """The file's experiment. Raises `BadInput` that tells how a method is named, too, where that may be what was meant."""
    try:
        return read(parsed.file)
    except BadInput as error:
        option = next((name for name in ("algorithms", "algorithm") if name in vars(parsed)), "")
        if not option or parsed.file.suffix == ".toml" or parsed.file.exists():
            raise
        raise BadInput(f"{error}; a method is named as in --{option} {parsed.file}") from None


def experiment_from(parsed: argparse.Namespace) -> Experiment:
    """The file's experiment, or the built-in one, under the options."""
    base = from_file(parsed) if parsed.file else Experiment(evaluation=Evaluation(every="auto"))
    given = vars(parsed)
    for section in SECTIONS:
        if given.get(section) is not None:
            base = base.replace(**{section: given[section]})
            if section == "dataset" and given.get("model") is None and not parsed.file:
                base = base.replace(model=base.dataset.model)
    if given.get("cohort") is not None:
        base = base.replace(selection={"name": "uniform", "clients": parsed.cohort})
    settings = [(OPTIONS[name], given[name]) for name in OPTIONS if given.get(name) is not None]
    for text in given.get("settings", []):
        key, equals, value = text.partition("=")
        require(bool(equals) and key.count(".") == 1, f"--set: cannot read {text!r}; write SECTION.OPTION=VALUE")
        settings.append((key, literal(value)))
    if given.get("system") is not None:
        settings = [
            (f"system.{key}", value) for key, value in parse(f"system:{parsed.system}", "--system")[1].items()
        ] + settings
    table = base.table()
    if base.unnamed:
        del table["name"]
    # another component first, which comes with its own options
    for key, value in sorted(settings, key=lambda setting: not setting[0].endswith(".name")):
        section, option = key.split(".")
        require(
            not isinstance(table.get(section), list),
            f"--set {key}: there are several skews; write their options with --skew NAME:OPTION=VALUE",
        )
        if section not in (*COMPONENTS, *SETTINGS):
            raise BadInput(f"--set: unknown section {section!r}; known are: {', '.join([*COMPONENTS, *SETTINGS])}")
        if option == "name" and section in COMPONENTS and value != table[section]["name"]:
            table[section] = {}
        table[section][option] = typed(section, option, value)
    base = from_table_of_sections(table, "options")
    if given.get("algorithm"):
        base = with_method(base, parsed.algorithm)
    if given.get("name"):
        base = base.replace(name=parsed.name)
    return base


def confirm(parsed: argparse.Namespace, records: Sequence[RunRecord]) -> None:
    """Raise `BadInput` if these runs name code that this person has not confirmed; ``--trust`` confirms it."""
    for record in records:
        from_toml(record.experiment, f"run {record.id}", trusted=parsed.trust)


def typed(section: str, option: str, value: Any) -> Any:
    """``--batch-size`` is a number or a word; a whole number may stand for a floating one."""
    return literal(value) if isinstance(value, str) and (section, option) == ("local", "batch_size") else value


def described(experiment: Experiment) -> str:
    """An experiment in one line, for the head of what is printed; files below this folder as seen from here."""
    table = experiment.table()

    def compact(section: str) -> str:
        return " + ".join(experiment.labels(section, with_first=section != "dataset"))

    local = plain(experiment.local)
    work = count(local["steps"], "step") if "steps" in local else count(local["epochs"], "epoch")
    named = {one["name"] for one in (table["skew"] if isinstance(table["skew"], list) else [table["skew"]])}
    clients = "" if named & {"natural", "pooled", "from-folder"} else f"{count(experiment.clients.number, 'client')}, "
    text = (
        f"{compact('dataset')}, {clients}{compact('skew')}, {compact('model')}, {compact('solver')}, {work} of batch "
        f"{local['batch_size']}, {count(experiment.training.rounds, 'round')}"
    )
    real = [label(experiment.system, {"system": System}), label(experiment.availability, COMPONENTS["availability"])]
    told = ", ".join([text, *(part for part in real if part not in ("system", "always"))])
    return told.replace(f"{Path.cwd()}{os.sep}", "")

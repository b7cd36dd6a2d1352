"""From parsed options to an experiment."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from fedskew.cli.options import SETTINGS as SETS
from fedskew.core.component import label, literal, parse, plain
from fedskew.core.counting import count
from fedskew.core.errors import BadInput, require
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import (
    COMPONENTS,
    SETTINGS,
    Evaluation,
    Experiment,
    default_skew,
    from_table_of_sections,
    from_toml,
    read,
)
from fedskew.experiment.machine import cores
from fedskew.experiment.plan import check_processes
from fedskew.experiment.torchrun import launcher
from fedskew.loop.system import System
from fedskew.skew import Natural
from fedskew.store.runs import RunRecord


def from_file(parsed: argparse.Namespace) -> Experiment:
    """Read the experiment file. Raises `BadInput` that also says how to name a method, if the file looks like one."""
    try:
        return read(parsed.file)
    except BadInput as error:
        option = next((name for name in ("algorithms", "algorithm") if name in vars(parsed)), "")
        if not option or parsed.file.suffix == ".toml" or parsed.file.exists():
            raise
        raise BadInput(f"{error}; to name a method, write --{option} {parsed.file}") from None


def experiment_from(parsed: argparse.Namespace) -> Experiment:
    """The experiment of the file, or the built-in one, with the options applied."""
    base = from_file(parsed) if parsed.file else Experiment(evaluation=Evaluation(every="auto"))
    given = {name: value for name, value in vars(parsed).items() if value is not None}
    for name, sets in SETS.items():
        if "." not in sets and name in given:
            base = base.replace(**{name: given[name]})
    if "dataset" in given and "model" not in given and not parsed.file:
        base = base.replace(model=base.dataset.model)
    if "dataset" in given and "skew" not in given and not parsed.file:
        base = base.replace(skew=default_skew(base.dataset))
        require(
            "clients" not in given or not isinstance(base.skew[0], Natural),
            f"--clients {given.get('clients')}: {parsed.dataset} has clients of its own; leave it out, or add "
            "--skew label-dirichlet:alpha=0.1 or another skew to deal its rows anew",
        )
    if "cohort" in given:
        base = base.replace(selection={"name": "uniform", "clients": given["cohort"]})
    settings = [(sets, given[name]) for name, sets in SETS.items() if "." in sets and name in given]
    if "system" in given:
        system = parse(f"system:{given['system']}", "--system")[1]
        settings = [*((f"system.{key}", value) for key, value in system.items()), *settings]
    for text in given.get("set", []):
        key, equals, value = text.partition("=")
        require(bool(equals) and key.count(".") == 1, f"--set: cannot read {text!r}; write SECTION.OPTION=VALUE")
        settings.append((key, literal(value)))
    base = changed(base, settings)
    if "algorithm" in given:
        base = with_method(base, given["algorithm"])
    return base.replace(name=given["name"]) if "name" in given else base


def changed(base: Experiment, settings: Sequence[tuple[str, object]]) -> Experiment:
    """The experiment with some options replaced, each given as ``SECTION.OPTION`` and its value."""
    table = base.table()
    if base.unnamed:
        del table["name"]
    # names first: another component comes with its own options
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
        number_or_word = key == "local.batch_size" and isinstance(value, str)
        table[section][option] = literal(str(value)) if number_or_word else value
    return from_table_of_sections(table, "options")


def confirm(parsed: argparse.Namespace, records: Sequence[RunRecord]) -> None:
    """Raise `BadInput` if these runs name code that this user has not confirmed; ``--trust`` confirms it."""
    for record in records:
        from_toml(record.experiment, f"run {record.id}", trusted=parsed.trust)


def described(experiment: Experiment) -> str:
    """An experiment in one line; paths are relative to the current folder."""

    def compact(section: str) -> str:
        return " + ".join(experiment.labels(section, with_first=section != "dataset"))

    local = plain(experiment.local)
    work = count(local["steps"], "step") if "steps" in local else count(local["epochs"], "epoch")
    own_clients = any(
        text.partition(":")[0] in ("natural", "pooled", "from-folder") for text in experiment.labels("skew")
    )
    system = [label(experiment.system, {"system": System}), label(experiment.availability, COMPONENTS["availability"])]
    parts = [
        compact("dataset"),
        "" if own_clients else count(experiment.clients.number, "client"),
        *map(compact, ("skew", "model", "solver")),
        f"{work} of batch {local['batch_size']}",
        count(experiment.training.rounds, "round"),
        *(part for part in system if part not in ("system", "always")),
    ]
    return ", ".join(filter(None, parts)).replace(f"{Path.cwd()}{os.sep}", "")


def jobs_for(parsed: argparse.Namespace, runs: int = 1 << 16) -> int:
    """How many of these runs go side by side; one after the other on the ranks of ``torchrun``."""
    if launcher()[1] > 1:
        require(parsed.jobs in (None, 1), "--jobs: under torchrun runs go one after the other; leave it out")
        return 1
    jobs = cores() if parsed.jobs is None else parsed.jobs
    require(jobs >= 1, f"--jobs must be at least 1, got {jobs}")
    check_processes(jobs)
    return max(1, min(jobs, runs))

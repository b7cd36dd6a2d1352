"""From parsed options to an experiment."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from fedskew.core.component import label, literal, plain
from fedskew.core.errors import BadInput, require
from fedskew.core.machine import cores
from fedskew.core.text import count
from fedskew.execution.plan import check_processes
from fedskew.execution.torchrun import launcher
from fedskew.experiment.combinations import experiment_from as with_keywords
from fedskew.experiment.config import COMPONENTS, Experiment, from_toml, read
from fedskew.experiment.keywords import KEYWORDS
from fedskew.loop.plan import System
from fedskew.report.experiments import display_name
from fedskew.store.runs import RunRecord


def from_file(parsed: argparse.Namespace) -> Experiment:
    """Read the experiment file. If ``file`` looks like a method's name, the `BadInput` says how to name a method."""
    try:
        return read(parsed.file)
    except BadInput as error:
        option = next((name for name in ("algorithms", "algorithm") if name in vars(parsed)), "")
        if not option or parsed.file.suffix == ".toml" or parsed.file.exists():
            raise
        raise BadInput(f"{error}; to name a method, write --{option} {parsed.file}") from None


def experiment_from(parsed: argparse.Namespace) -> Experiment:
    """Return the experiment of the file, or the built-in one, changed by the options."""
    given = {name: value for name, value in vars(parsed).items() if name in KEYWORDS and value is not None}
    if "batch_size" in given:
        given["batch_size"] = literal(given["batch_size"])
    for text in getattr(parsed, "set", []):
        key, equals, value = text.partition("=")
        require(bool(equals) and key.count(".") == 1, f"--set: cannot read {text!r}; write SECTION.OPTION=VALUE")
        given[key.replace(".", "__")] = literal(value)
    return with_keywords(from_file(parsed) if parsed.file else None, given)


def confirm(parsed: argparse.Namespace, records: Sequence[RunRecord]) -> None:
    """Raise `BadInput` if the runs name code that this user has not confirmed. ``--trust`` confirms it."""
    for record in records:
        from_toml(record.experiment, f"run {record.id}", trusted=parsed.trust)


def described(experiment: Experiment) -> str:
    """Describe an experiment in one line. Paths are relative to the current folder."""

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
    """Return the number of runs at the same time. Under ``torchrun`` it is one."""
    if launcher()[1] > 1:
        require(parsed.jobs in (None, 1), "--jobs: under torchrun runs go one after the other; leave it out")
        return 1
    jobs = cores() if parsed.jobs is None else parsed.jobs
    require(jobs >= 1, f"--jobs must be at least 1, got {jobs}")
    check_processes(jobs)
    return max(1, min(jobs, runs))


def require_one(verb: str, records: Sequence[RunRecord]) -> None:
    """Raise `BadInput`, which lists the runs by method and seed, unless exactly one is chosen."""
    choice = [f"{record.id} ({display_name(record)}, seed {record.seed})" for record in records[:12]]
    more = ", ..." if len(records) > len(choice) else ""
    require(
        len(records) == 1,
        f"{verb}: this names {count(len(records), 'run')}; name one of them: {', '.join(choice)}{more}",
    )

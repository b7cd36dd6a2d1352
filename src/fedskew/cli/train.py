"""``study``, ``run``, ``compare``, ``tune`` and ``resume``."""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedskew.api import functions
from fedskew.api.caller import CommandLine, Started
from fedskew.api.runs import Runs
from fedskew.cli import output
from fedskew.cli.request import experiment_from, settings_from
from fedskew.cli.verbs import keywords_of
from fedskew.core.component import label, plain
from fedskew.core.text import count
from fedskew.execution.plan import Plan, Trial, remarks_on
from fedskew.execution.torchrun import on_ranks
from fedskew.experiment.config import COMPONENTS, Experiment, read
from fedskew.experiment.keywords import ComparisonOptions, StudyOptions, TuningOptions
from fedskew.loop.plan import System
from fedskew.report.budgets import budget_from, check_rounds
from fedskew.report.console import Console, say
from fedskew.report.experiments import name_of
from fedskew.report.progress import Board, Part, ProgressFace, face_for
from fedskew.report.words import duration, heading, plain as plain_value, value
from fedskew.studies.tune import Tuned, space_from, words


class TrainingVerb(CommandLine):
    """The terminal of a verb that trains: it says what begins, and how long it took."""

    def __init__(self, folds: str = "") -> None:
        self.folds = folds
        self.began: float | None = None  # None: nothing to execute

    def begin(self, started: Started) -> ProgressFace:
        if plans := [plan for plan in started.waiting.values() if plan]:
            title = f"run {started.words[0]}"
            if started.runs.records[0].comparison:
                seeds = {plan.experiment.training.seed for plan in plans}
                partitions = {plan.experiment.clients.partition_seed for plan in plans}
                of = f" (folds {self.folds})" if self.folds else ""
                of += f" on each of {count(len(partitions), 'partition')}" if partitions != seeds else ""
                title = f"comparison {started.words[0]}: {count(len(seeds), 'seed')}{of}, {started.jobs} at a time"
            self.print_head(plans, title)
        self.began = time.perf_counter()
        return super().begin(started)

    def tuned(self, methods: Mapping[str, Tuned]) -> None:
        for tuned in methods.values():
            print_choice(tuned)

    def print_head(self, plans: Sequence[Plan], title: str) -> None:
        """Print what is about to run, on standard error."""
        console = Console(stderr=True)
        console.print(title, style="bold")
        console.print(described(plans[0].experiment))
        if plans[0].notes:
            console.print(f"data: {plans[0].notes}")
        for line in remarks_on(plans):
            self.warn(line)
        engines = {plan.experiment.name: plan.trial for plan in plans if plan.trial}
        for choice in dict.fromkeys(trial["choice"] for trial in engines.values()):
            trials = [trial for trial in engines.values() if trial["choice"] == choice]
            names = [name for name, trial in engines.items() if trial["choice"] == choice]
            of = "" if len(names) == len(engines) else f" for {', '.join(names)}"
            console.print(f"engine: {choice}{of} ({trial_times(trials)})", style="dim")


def study(parsed: argparse.Namespace) -> None:
    """Carry out a study, write its page, and print what it found."""
    from fedskew.api.study import study as decide  # loads libraries that the other verbs do not need
    from fedskew.report.study import printed, title_of, values

    options = {**settings_from(parsed), **keywords_of(parsed, StudyOptions)}
    experiment = read(parsed.path) if parsed.path and parsed.path.suffix == ".toml" else None
    path = None if experiment else parsed.path
    decided = decide(path, experiment=experiment, runs=parsed.runs, jobs=parsed.jobs, progress=CommandLine(), **options)
    page = decided.report(parsed.report or decided.runs.store.folder / "study.html")
    if parsed.json:
        output.print_json({**values(decided.findings), "report": str(page)})
        return
    for line in printed(decided.findings):
        say(line)
    if decided.final:
        [record] = decided.final.records
        rows = record.facts["final"].get("rows", "all rows")  # an older version did not store it
        say(f"Run {record.id} is trained on {rows}: {title_of(decided.findings.used)}")
    say(f"Page: {page}")
    say(f"Next: {decided.findings.commands[0].removeprefix('# ')}")


@on_ranks
def run(parsed: argparse.Namespace) -> int:
    """Carry out one experiment."""
    caller = TrainingVerb()
    return present(functions.run(experiment_from(parsed), runs=parsed.runs, progress=caller), parsed, caller)


@on_ranks
def compare(parsed: argparse.Namespace) -> int:
    """Carry out several methods on the same partitions and seeds."""
    base = experiment_from(parsed)
    if parsed.budget:
        check_rounds(budget_from(parsed.budget), base.training.rounds)
    options = {**tuning_of(parsed), **keywords_of(parsed, ComparisonOptions), "baselines": not parsed.no_baselines}
    for name in ("seeds", "partitions"):
        if len(options.get(name) or ()) == 1:
            [options[name]] = options[name]
    caller = TrainingVerb(parsed.folds)
    runs = functions.compare(base, parsed.algorithms or (), progress=caller, **execution_of(parsed), **options)
    return present(runs, parsed, caller)


@on_ranks
def tune(parsed: argparse.Namespace) -> None:
    """Tune methods and print the best settings."""
    methods, base = parsed.algorithms or ["fedavg"], experiment_from(parsed)
    options = {**execution_of(parsed), **tuning_of(parsed)}
    tuning = functions.tune(methods, experiment=base, progress=TrainingVerb(), **options)
    if parsed.json:
        output.print_json([as_row(tuned) for tuned in tuning.methods.values()])
    else:
        for tuned in tuning.methods.values():
            print_tuned(tuned)


def execution_of(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords on the execution of runs: the folder of their store, and how many at a time."""
    return {"runs": parsed.runs, "jobs": parsed.jobs}


def tuning_of(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of `fedskew.tune` that the command line has."""
    options = keywords_of(parsed, TuningOptions)
    return options | ({"grid": space_from(parsed.grid)} if "grid" in options else {})


@on_ranks
def resume(parsed: argparse.Namespace) -> int:
    """Continue unfinished runs."""
    caller = TrainingVerb()
    options = {**execution_of(parsed), "trust": parsed.trust, "rounds": parsed.rounds}
    runs = functions.resume(parsed.runs_wanted, progress=caller, **options)
    if caller.began is None:
        states = ", ".join(sorted({record.status for record in runs.records}))
        Console(stderr=True).print(f"nothing to resume: {count(len(runs), 'run')}, {states}")
        return 0
    return present(runs, parsed, caller)


def present(runs: Runs, parsed: argparse.Namespace, caller: TrainingVerb) -> int:
    """Write the report of runs that were executed, and print their table. Return the exit code."""
    from fedskew.report.html import write_report  # loads libraries that training does not need

    assert caller.began
    seconds = time.perf_counter() - caller.began
    store, records = runs.store, runs.records
    options, results = vars(parsed), output.results_from(store, records, parsed)
    comparison = records[0].comparison
    path = options.get("report") or store.folder / (f"c{comparison}.html" if comparison else f"{records[0].id}.html")
    with Board({"": Part("writing the report", 0)}, face_for(lines=False)):
        path = write_report(results, path)
    if parsed.json:
        output.print_json({**output.summary_json(results), "report": str(path), "seconds": round(seconds, 3)})
    else:
        output.print_summary(results)
        output.print_notices(records)
        if options.get("profile"):
            output.print_profile(records)
        Console().print(f"{duration(seconds)} of training; report: {path}", soft_wrap=True)
    return caller.failure.exit_code if caller.failure else 0


def described(experiment: Experiment) -> str:
    """Describe an experiment in one line. Paths are relative to the current folder."""

    def compact(section: str) -> str:
        return " + ".join(experiment.labels(section, with_first=section != "dataset"))

    local = plain(experiment.local)
    work = count(local["steps"], "step") if "steps" in local else count(local["epochs"], "epoch")
    own_clients = {"natural", "pooled", "from-folder"} & {text.partition(":")[0] for text in experiment.labels("skew")}
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


def trial_times(trials: Sequence[Trial]) -> str:
    """What the trials of engines measured, in seconds a round; a range over several trials."""
    tables = [trial["estimated_seconds_a_round"] for trial in trials]
    options = dict.fromkeys(option for table in tables for option in table)
    times = ", ".join(f"{option} {value_range([t[option] for t in tables if option in t])}" for option in options)
    return f"trial, s a round: {times}"


def value_range(values: Sequence[float]) -> str:
    """``0.28 to 0.34``, or one number."""
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


def as_row(tuned: Tuned) -> dict[str, object]:
    name = tuned.measure.name
    tried = [
        {"setting": t.setting, name: tuned.reached(t), "seconds": t.seconds, "ended": t.ended, "runs": t.runs}
        for t in tuned.tried
    ]
    return {"method": tuned.method, **tuned.facts(), name: tuned.reached(tuned.best), "settings": tried}


def print_tuned(tuned: Tuned) -> None:
    """Print all tried settings, and mark the best."""
    console = Console()
    console.print(f"\n{name_of(tuned.method)}", style="bold")
    titles = ("setting", f"held-out {heading(tuned.measure)}", "s", "runs", "")
    table = output.plain_table(*titles, left=("setting", ""))
    best = tuned.best
    for t in tuned.tried:
        mark = "best" if t is best else "as good" if t in tuned.equal else "" if t.ended == "finished" else t.ended
        reached, runs = plain_value(tuned.measure, tuned.reached(t)), " ".join(map(str, t.runs))
        table.add_row(words(t.setting), reached, output.number(t.seconds, 1), runs, mark)
    console.print(table)
    if tuned.edges:
        edges = ", ".join(tuned.edges)
        console.print(f"{edges}: the best is at the edge of the grid; a wider grid may hold a better setting")


def print_choice(tuned: Tuned) -> None:
    """Print the best setting on standard error, in one line."""
    edge = f"; {', '.join(tuned.edges)} at the edge of the grid" if tuned.edges else ""
    others = f", as good as {count(len(tuned.equal) - 1, 'other')}" if len(tuned.equal) > 1 else ""
    Console(stderr=True).print(
        f"tuned {tuned.method}: {words(tuned.best.setting)}, {value(tuned.measure, tuned.reached(tuned.best))} on held-out rows, "
        f"best of {len(tuned.tried)}{others} ({duration(tuned.seconds)} of training){edge}",
        style="dim",
    )

"""``run``, ``compare``, ``tune`` and ``resume``."""

import argparse
import time
from collections.abc import Mapping, Sequence

from rich.table import Table

from fedskew.cli.output import (
    layout_from,
    number,
    print_json,
    print_measuring,
    print_profile,
    print_summary,
    print_unfinished,
    print_warnings,
    summary_json,
    warn,
)
from fedskew.cli.request import confirm, described, experiment_from, jobs_for
from fedskew.cli.terminal import Console
from fedskew.core.errors import Interrupted, require
from fedskew.core.text import count
from fedskew.data.dataset import Dataset
from fedskew.execution.plan import Plan, Trial, prepare, remarks_on
from fedskew.execution.run import Ended, Progress, register
from fedskew.execution.torchrun import on_ranks
from fedskew.experiment.config import Experiment
from fedskew.report.experiments import display_name, name_of
from fedskew.report.progress import Board, Part, face_for
from fedskew.report.series import Budget, budget_from
from fedskew.report.words import duration, heading, plain, value
from fedskew.store.runs import RunStore
from fedskew.studies.compare import cross, seeds_from, with_baselines
from fedskew.studies.progress import play, stop_on_signal, tuning_text
from fedskew.studies.runner import register_all, to_resume, unfinished, worst_error
from fedskew.studies.tune import Search, Tuned, at_best, space_from, tuned_methods, tuning_partition_note, words
from fedskew.studies.tune import tune as tune_one


@on_ranks
def tune(parsed: argparse.Namespace) -> int:
    """Tune methods and print the best settings."""
    store = RunStore(parsed.runs)
    found = tune_all(parsed, store, experiment_from(parsed), (), jobs_for(parsed))
    if line := tuning_partition_note(store, found):
        warn(line)
    if parsed.json:
        print_json([as_row(tuned) for tuned in found.values()])
    else:
        for tuned in found.values():
            print_tuned(tuned)
    return 0


def tune_all(
    parsed: argparse.Namespace, store: RunStore, base: Experiment, seeds: Sequence[int], jobs: int
) -> dict[str, Tuned]:
    """Tune all methods, with progress on standard error. Return their results."""
    search = Search(space=space_from(parsed.grid), seeds=tuple(parsed.tuning_seeds), trials=parsed.trials, by=parsed.by)
    face = face_for()
    with stop_on_signal() as stopper, Board({"": Part("tuning", 0)}, face) as board:

        def on_progress(p: Progress) -> None:
            board.advance("", 0, tuning_text(p))

        def on_end(result: Ended) -> None:
            record = store.run(result.run)
            face.print(f"{display_name(record)}, seed {record.seed}: {record.status}", "dim")

        def one(method: str) -> Tuned:
            return tune_one(store, base, method, search, jobs=jobs, listener=on_progress, ended=on_end, stop=stopper)

        try:
            return tuned_methods(parsed.algorithms, seeds, search, one)
        except Interrupted as error:
            raise Interrupted(f"{error}; everything finished is stored; the same command continues") from None


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
    table = Table(box=None, pad_edge=False)
    for title in ("setting", f"held-out {heading(tuned.measure)}", "s", "runs", ""):
        table.add_column(title, justify="left" if title in ("setting", "") else "right")
    best = tuned.best
    for t in tuned.tried:
        mark = "best" if t is best else "" if t.ended == "finished" else t.ended
        table.add_row(
            words(t.setting),
            plain(tuned.measure, tuned.reached(t)),
            number(t.seconds, 1),
            " ".join(map(str, t.runs)),
            mark,
        )
    console.print(table)
    if tuned.edges:
        edges = ", ".join(tuned.edges)
        console.print(f"{edges}: the best is at the edge of the grid; a wider grid may hold a better setting")


def print_choice(tuned: Tuned) -> None:
    """Print the best setting on standard error, in one line."""
    facts = tuned.facts()
    edge = f"; {', '.join(tuned.edges)} at the edge of the grid" if tuned.edges else ""
    Console(stderr=True).print(
        f"tuned {tuned.method}: {words(tuned.best.setting)}, {value(tuned.measure, tuned.reached(tuned.best))} on held-out rows, "
        f"best of {facts['tried']} ({duration(facts['seconds'])} of training){edge}",
        style="dim",
    )


@on_ranks
def run(parsed: argparse.Namespace) -> int:
    """Carry out one experiment."""
    [plan], dataset = prepare([experiment_from(parsed)], None, jobs=1)
    store = RunStore(parsed.runs)
    number = register(store, plan.experiment, plan.trial)
    head([plan], f"run {number}")
    return carry_out(store, {number: plan}, dataset, 1, parsed, store.resume_command(number))


@on_ranks
def compare(parsed: argparse.Namespace) -> int:
    """Carry out several methods on the same partitions and seeds."""
    base = experiment_from(parsed)
    requested_budget(parsed)
    given = parsed.seeds[0] if parsed.seeds and len(parsed.seeds) == 1 else parsed.seeds
    seeds = seeds_from(given, base.training.seed, parsed.folds)
    require(
        not (parsed.folds and parsed.tuned),
        "compare: --tuned chooses settings on rows that the folds test; leave out --tuned or --folds",
    )
    if not parsed.no_baselines:
        parsed.algorithms, line = with_baselines(base, parsed.algorithms)
        if line:
            warn(f"{line} (--no-baselines leaves them out)")
    planned = cross(base, parsed.algorithms, seeds, parsed.folds)
    jobs = jobs_for(parsed, len(planned))
    store = RunStore(parsed.runs)
    tuned: dict[str, Tuned] = {}
    if parsed.tuned:
        tuned = tune_all(parsed, store, base, seeds, jobs)
        planned = at_best(base, tuned, planned)
        for found in tuned.values():
            print_choice(found)
    plans, dataset = prepare(planned, None, jobs)
    runs = register_all(store, plans, " vs ".join(parsed.algorithms))
    for run_number, plan in runs.items():
        if plan.experiment.name in tuned:
            store.add_facts(run_number, {"tuned": tuned[plan.experiment.name].facts()})
    comparison = f"c{store.run(min(runs)).comparison}"
    of = f" (folds {parsed.folds})" if parsed.folds else ""
    head(plans, f"comparison {comparison}: {count(len(seeds), 'seed')}{of}, {jobs} at a time")
    return carry_out(store, runs, dataset, jobs, parsed, store.resume_command(comparison))


@on_ranks
def resume(parsed: argparse.Namespace) -> int:
    """Continue unfinished runs."""
    store = RunStore(parsed.runs)
    chosen = store.select(parsed.runs_wanted) if parsed.runs_wanted else unfinished(store)
    ids = to_resume(store, chosen)
    confirm(parsed, [record for record in chosen if record.id in ids])
    if not ids:
        states = ", ".join(sorted({r.status for r in chosen}))
        Console(stderr=True).print(f"nothing to resume: {count(len(chosen), 'run')}, {states}")
        return 0
    jobs = jobs_for(parsed, len(ids))
    again = store.resume_command(*parsed.runs_wanted)
    return carry_out(store, dict.fromkeys(ids), None, jobs, parsed, again, shown=[r.id for r in chosen])


def requested_budget(parsed: argparse.Namespace) -> Budget | None:
    text = getattr(parsed, "budget", None)
    return budget_from(text) if text else None


def head(plans: Sequence[Plan], title: str) -> None:
    """Print what is about to run, on standard error."""
    console = Console(stderr=True)
    console.print(title, style="bold")
    console.print(described(plans[0].experiment))
    engines = {plan.experiment.name: plan.trial for plan in plans if plan.trial}
    if plans[0].notes:
        console.print(f"data: {plans[0].notes}")
    for line in remarks_on(plans):
        warn(line)
    for chosen in dict.fromkeys(trial["choice"] for trial in engines.values()):
        trials = [t for t in engines.values() if t["choice"] == chosen]
        names = [name for name, t in engines.items() if t["choice"] == chosen]
        of = "" if len(names) == len(engines) else f" for {', '.join(names)}"
        console.print(f"engine: {chosen}{of} ({trial_times(trials)})", style="dim")


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


def carry_out(
    store: RunStore,
    runs: Mapping[int, Plan | None],
    dataset: Dataset | None,
    jobs: int,
    parsed: argparse.Namespace,
    again: str,
    shown: Sequence[int] = (),
) -> int:
    """Carry out runs, print the table, write the report; the exit code. ``shown`` are the runs of table and report, if others."""
    from fedskew.report.html import write_report

    began = time.perf_counter()
    results = play(store, runs, dataset, jobs, face_for(), f"`{again}`")
    seconds = time.perf_counter() - began
    records = [store.run(i) for i in shown or runs]
    budget = requested_budget(parsed)
    layout = layout_from(parsed)
    comparison = records[0].comparison
    path = getattr(parsed, "report", None) or store.folder / (
        f"c{comparison}.html" if comparison else f"{records[0].id}.html"
    )
    with Board({"": Part("writing the report", 0)}, face_for(lines=False)):
        path = write_report(store, records, path, budget, layout)
    if parsed.json:
        print_json({**summary_json(store, records, budget), "report": str(path), "seconds": round(seconds, 3)})
    else:
        print_summary(store, records, budget, layout)
        print_unfinished(records)
        print_warnings(records)
        if getattr(parsed, "profile", False):
            print_profile(records)
        print_measuring(records)
        Console().print(f"{duration(seconds)} of training; report: {path}", soft_wrap=True)
    failure = worst_error(results)
    return failure.exit_code if failure else 0

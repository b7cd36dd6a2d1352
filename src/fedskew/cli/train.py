"""``run``, ``compare`` and ``resume``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence

from fedskew.cli.output import (
    print_json,
    print_measuring,
    print_profile,
    print_summary,
    print_unfinished,
    print_warnings,
    summary_json,
)
from fedskew.cli.progress import Board, duration, stop_on_signal
from fedskew.cli.request import confirm, described, experiment_from
from fedskew.cli.terminal import Console
from fedskew.cli.tune import print_choice, tune_all
from fedskew.core.counting import count
from fedskew.core.errors import Interrupted, require
from fedskew.data.dataset import Dataset
from fedskew.experiment.compare import cross, execute_all, register_all, seeds_from, worst_error
from fedskew.experiment.machine import cores
from fedskew.experiment.plan import Plan, Trial, check_processes, prepare
from fedskew.experiment.run import register
from fedskew.experiment.torchrun import launcher, on_ranks
from fedskew.experiment.tune import Tuned, at_best
from fedskew.report.budget import Budget, budget_from
from fedskew.store.lease import busy
from fedskew.store.runs import RunStore


@on_ranks
def run(parsed: argparse.Namespace) -> int:
    """One experiment."""
    [plan], dataset = prepare([experiment_from(parsed)], None, jobs=1)
    store = RunStore(parsed.runs)
    number = register(store, plan.experiment, plan.trial)
    head([plan], dataset, f"run {number}")
    return carry_out(store, {number: plan}, dataset, 1, parsed, f"fedskew resume {number}")


@on_ranks
def compare(parsed: argparse.Namespace) -> int:
    """Several methods on the same partitions and seeds."""
    base = experiment_from(parsed)
    asked_budget(parsed)
    seeds = parsed.seeds if len(parsed.seeds) > 1 else seeds_from(parsed.seeds[0], base.training.seed)
    planned = cross(base, parsed.algorithms, seeds)
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
    for number, plan in runs.items():
        if plan.experiment.name in tuned:
            store.add_facts(number, {"tuned": tuned[plan.experiment.name].facts()})
    comparison = f"c{store.run(min(runs)).comparison}"
    head(plans, dataset, f"comparison {comparison}: {count(len(seeds), 'seed')}, {jobs} at a time")
    return carry_out(store, runs, dataset, jobs, parsed, f"fedskew resume {comparison}")


@on_ranks
def resume(parsed: argparse.Namespace) -> int:
    """Runs that are not finished."""
    store = RunStore(parsed.runs)
    chosen = store.select(parsed.runs_wanted)
    confirm(parsed, chosen)
    ids = [r.id for r in chosen if r.status in ("planned", "running", "interrupted", "failed")]
    if not ids:
        states = ", ".join(sorted({r.status for r in chosen}))
        Console(stderr=True).print(f"nothing to resume: {count(len(chosen), 'run')}, {states}", highlight=False)
        return 0
    reasons = [busy(store, run) for run in ids]
    require(not all(reasons), reasons[0])
    jobs = jobs_for(parsed, len(ids))
    again = "fedskew resume " + " ".join(parsed.runs_wanted or ["latest"])
    return carry_out(store, dict.fromkeys(ids), None, jobs, parsed, again, shown=[r.id for r in chosen])


def asked_budget(parsed: argparse.Namespace) -> Budget | None:
    text = getattr(parsed, "budget", None)
    return budget_from(text) if text else None


def jobs_for(parsed: argparse.Namespace, runs: int) -> int:
    """Runs side by side; one after the other on the ranks of ``torchrun``."""
    if launcher()[1] > 1:
        require(parsed.jobs in (None, 1), "--jobs: under torchrun runs come one after the other; leave it out")
        return 1
    jobs = cores() if parsed.jobs is None else parsed.jobs
    require(jobs >= 1, f"--jobs must be at least 1, got {jobs}")
    check_processes(jobs)
    return max(1, min(jobs, runs))


def head(plans: Sequence[Plan], dataset: Dataset, title: str) -> None:
    """Print what is about to run, on standard error."""
    console = Console(stderr=True, highlight=False)
    console.print(title, style="bold")
    console.print(described(plans[0].experiment), markup=False)
    engines = {plan.experiment.name: plan.trial for plan in plans if plan.trial}
    if dataset.notes:
        console.print(f"data: {dataset.notes}", style="dim", markup=False)
    for chosen in dict.fromkeys(trial["choice"] for trial in engines.values()):
        trials = [t for t in engines.values() if t["choice"] == chosen]
        names = [name for name, t in engines.items() if t["choice"] == chosen]
        of = "" if len(names) == len(engines) else f" for {', '.join(names)}"
        console.print(f"engine: {chosen}{of} ({told(trials)})", style="dim", markup=False)


def told(trials: Sequence[Trial]) -> str:
    """What trials of engines measured."""
    tables = [trial["estimated_seconds_a_round"] for trial in trials]
    options = dict.fromkeys(option for table in tables for option in table)
    times = ", ".join(f"{option} {spread([t[option] for t in tables if option in t])}" for option in options)
    return f"trial, s a round: {times}"


def spread(values: Sequence[float]) -> str:
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
    """Execute with live progress, then print the table and write the report."""
    from fedskew.report.html import write_report

    records = [store.run(i) for i in runs]
    began = time.perf_counter()
    with stop_on_signal() as stopper, Board([r.name for r in records], [r.rounds for r in records]) as board:
        try:
            results = execute_all(store, runs, dataset, jobs, board.heard, board.ended, stopper)
        except Interrupted as error:
            raise Interrupted(f"{error}; everything finished is stored; `{again}` goes on") from None
    seconds = time.perf_counter() - began
    records = [store.run(i) for i in shown or runs]
    budget = asked_budget(parsed)
    comparison = records[0].comparison
    path = getattr(parsed, "report", None) or store.folder / (
        f"c{comparison}.html" if comparison else f"{records[0].id}.html"
    )
    with Console(stderr=True).status("writing the report"):
        path = write_report(store, records, path, budget)
    if parsed.json:
        print_json({**summary_json(store, records, budget), "report": str(path), "seconds": round(seconds, 3)})
    else:
        print_summary(store, records, budget)
        print_unfinished(records)
        print_warnings(records)
        if getattr(parsed, "profile", False):
            print_profile(records)
        print_measuring(records)
        Console(highlight=False).print(f"{duration(seconds)} of training; report: {path}", soft_wrap=True)
    failure = worst_error(results)
    return failure.exit_code if failure else 0

"""``run``, ``compare`` and ``resume``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

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
from fedskew.cli.request import described, experiment_from
from fedskew.cli.terminal import Console
from fedskew.cli.tune import print_choice, tune_all
from fedskew.core.counting import count
from fedskew.core.errors import Interrupted, require
from fedskew.data.dataset import Dataset
from fedskew.experiment.compare import (
    check_processes,
    execute_all,
    plan,
    prepare,
    register_all,
    seeds_from,
    worst_error,
)
from fedskew.experiment.config import Experiment, from_toml
from fedskew.experiment.processes import by_launcher, follow_launcher, launched
from fedskew.experiment.remembered import cores, place
from fedskew.experiment.run import register
from fedskew.experiment.tune import Tuned, at_best
from fedskew.report.budget import Budget, budget_from
from fedskew.store.runs import RunStore


def run(parsed: argparse.Namespace) -> int:
    """One experiment."""
    if by_launcher()[0]:
        follow()
    experiments, dataset, engines = prepare([experiment_from(parsed)], None, jobs=1)
    store = RunStore(parsed.runs)
    ids = [register(store, experiments[0], engines.get(experiments[0].name))]
    head(experiments, engines, dataset, f"run {ids[0]}")
    return carry_out(store, ids, dataset, 1, parsed, f"fedskew resume {ids[0]}")


def compare(parsed: argparse.Namespace) -> int:
    """Several methods on the same partitions and seeds."""
    if by_launcher()[0]:
        follow()
    base = experiment_from(parsed)
    asked_budget(parsed)
    seeds = parsed.seeds if len(parsed.seeds) > 1 else seeds_from(parsed.seeds[0], base.training.seed)
    planned = plan(base, parsed.algorithms, seeds)
    jobs = jobs_for(parsed, len(planned), base.training.workers)
    store = RunStore(parsed.runs)
    tuned: dict[str, Tuned] = {}
    if parsed.tuned:
        tuned = tune_all(parsed, store, base, seeds, jobs)
        planned = at_best(base, tuned, planned)
        for found in tuned.values():
            print_choice(found)
    experiments, dataset, engines = prepare(planned, None, jobs)
    ids = register_all(store, experiments, engines, " vs ".join(parsed.algorithms))
    for number, experiment in zip(ids, experiments, strict=True):
        if experiment.name in tuned:
            store.add_facts(number, {"tuned": tuned[experiment.name].facts()})
    comparison = f"c{store.run(ids[0]).comparison}"
    head(experiments, engines, dataset, f"comparison {comparison}: {count(len(seeds), 'seed')}, {jobs} at a time")
    return carry_out(store, ids, dataset, jobs, parsed, f"fedskew resume {comparison}")


def resume(parsed: argparse.Namespace) -> int:
    """Runs that are not finished."""
    if by_launcher()[0]:
        follow()
    store = RunStore(parsed.runs)
    chosen = store.select(parsed.runs_wanted)
    ids = [r.id for r in chosen if r.status in ("planned", "running", "interrupted", "failed")]
    if not ids:
        states = ", ".join(sorted({r.status for r in chosen}))
        Console(stderr=True).print(f"nothing to resume: {count(len(chosen), 'run')}, {states}", highlight=False)
        return 0
    workers = max(from_toml(r.experiment).training.workers for r in chosen if r.id in ids)
    jobs = jobs_for(parsed, len(ids), workers)
    again = "fedskew resume " + " ".join(parsed.runs_wanted or ["latest"])
    return carry_out(store, ids, None, jobs, parsed, again, shown=[r.id for r in chosen])


def follow() -> NoReturn:
    """As a process of ``torchrun`` that is not the first: work for it.

    It has nothing to put away, and ends without the clearing up in which PyTorch's threads may abort it (seen under load), for
    which the launcher would stop the first process.
    """
    follow_launcher()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def asked_budget(parsed: argparse.Namespace) -> Budget | None:
    text = getattr(parsed, "budget", None)
    return budget_from(text) if text else None


def jobs_for(parsed: argparse.Namespace, runs: int, workers: int) -> int:
    """Runs side by side; one after the other where each has several processes of its own."""
    check_processes(max(parsed.jobs or 1, workers))
    if parsed.jobs is None and (workers > 1 or by_launcher()[1] > 1):
        return 1
    jobs = cores() if parsed.jobs is None else parsed.jobs
    require(jobs >= 1, f"--jobs must be at least 1, got {jobs}")
    return max(1, min(jobs, runs))


def head(experiments: Sequence[Experiment], engines: dict[str, dict[str, Any]], dataset: Dataset, title: str) -> None:
    """What is about to run, on standard error."""
    console = Console(stderr=True, highlight=False)
    console.print(title, style="bold")
    console.print(described(experiments[0]), markup=False)
    if dataset.notes:
        console.print(f"data: {dataset.notes}", style="dim", markup=False)
    for chosen in dict.fromkeys(trial["choice"] for trial in engines.values()):
        trials = [t for t in engines.values() if t["choice"] == chosen]
        names = [name for name, t in engines.items() if t["choice"] == chosen]
        of = "" if len(names) == len(engines) else f" for {', '.join(names)}"
        console.print(f"engine: {chosen}{of} ({told(trials)})", style="dim", markup=False)


def told(trials: Sequence[dict[str, Any]]) -> str:
    """What trials of engines measured, and whether any of them just now."""
    tables = [trial["estimated_seconds_a_round"] for trial in trials]
    options = dict.fromkeys(option for table in tables for option in table)
    times = ", ".join(f"{option} {spread([t[option] for t in tables if option in t])}" for option in options)
    source = f"remembered in {place()}" if all(trial["remembered"] for trial in trials) else "trial"
    notes = "".join(f"; {trial['note']}" for trial in trials if "note" in trial)
    return f"{source}, s a round: {times}{notes}"


def spread(values: Sequence[float]) -> str:
    """``0.28 to 0.34``, or one number."""
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


def carry_out(
    store: RunStore,
    ids: Sequence[int],
    dataset: Any,
    jobs: int,
    parsed: argparse.Namespace,
    again: str,
    shown: Sequence[int] = (),
) -> int:
    """Execute with live progress, then print the table and write the report."""
    from fedskew.report.html import write_report

    records = [store.run(i) for i in ids]
    began = time.perf_counter()
    with stop_on_signal() as stopper, Board([r.name for r in records], [r.rounds for r in records]) as board:
        try:
            with launched():
                results = execute_all(store, ids, dataset, jobs, board.heard, board.ended, stopper)
        except Interrupted as error:
            raise Interrupted(f"{error}; everything finished is stored; `{again}` goes on") from None
    seconds = time.perf_counter() - began
    records = [store.run(i) for i in shown or ids]
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

"""Reproduce a document: plan its runs, estimate their time, and read their results. All arms use the same seeds."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from fedskew.claims.document import Document
from fedskew.claims.quantities import read_run
from fedskew.claims.verdicts import Results
from fedskew.core.component import parse
from fedskew.core.groups import grouped
from fedskew.data.dataset import Dataset
from fedskew.engine.choose import EngineChoice, estimate_seconds, next_work, on_threads
from fedskew.execution.build import assemble
from fedskew.execution.run import register
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment, from_table_of_sections
from fedskew.loop.evaluate import evaluate
from fedskew.loop.round import start
from fedskew.loop.work import overrides
from fedskew.store.runs import RunStore
from fedskew.studies.runner import DONE, stored_runs

SCORED, SLOW = (8, 64, 512), 0.1
"""Numbers of rows that are scored to estimate the time for all rows: the next one if this one takes less than `SLOW` seconds."""

PATIENCE = 2.0
"""Seconds, with those for loading data, after which an estimate times no further arm of a data set and model."""


@dataclass(frozen=True)
class PlannedRun:
    """One planned run of a document."""

    arm: str
    seed: int
    experiment: Experiment


def plan(document: Document, scale: str) -> list[PlannedRun]:
    """Return all runs of a document at a scale. Raises `BadInput` for wrong settings.

    The order is seed by seed, so that an unfinished reproduction has all arms on its first seeds.
    """
    at_scale = document.scale(scale)
    return [
        PlannedRun(arm, seed, experiment_of(document, scale, arm, seed))
        for seed in range(at_scale.first_seed, at_scale.first_seed + at_scale.seeds)
        for arm in document.arms
    ]


def experiment_of(document: Document, scale: str, arm: str, seed: int) -> Experiment:
    """Return the experiment of an arm: the scale's settings, changed by the arm's, with this seed."""
    at_scale = document.scale(scale)
    changes: dict[str, Any] = {**document.arms[arm], **at_scale.arms.get(arm, {})}
    if part := changes.pop("part", None):
        changes = {**at_scale.parts[part], **changes}
    method = changes.pop("algorithm", None)
    table: dict[str, Any] = deepcopy(at_scale.base)
    for key, value in [*changes.items(), *((key, seed) for key in at_scale.seeded or document.seeded)]:
        section, dot, option = key.partition(".")
        if not dot:
            table[section] = value
            continue
        if isinstance(table.get(section), str):
            name, options = parse(table[section], section)
            table[section] = {"name": name, **options}
        table.setdefault(section, {})[option] = value
    experiment = from_table_of_sections({**table, "name": arm}, f"document {document.name}, {arm}")
    return experiment if method is None else with_method(experiment, method).replace(name=arm)


def missing(store: RunStore, planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the planned runs that the store does not have as finished or diverged."""
    stored = stored_runs(store, [p.experiment for p in planned])
    return [p for p in planned if (key := p.experiment.hash()) not in stored or stored[key].status not in DONE]


def restore(store: RunStore, planned: Sequence[PlannedRun], exported: Results, title: str) -> int:
    """Add the done runs of an export that the store lacks; return the number of planned runs that the export has.

    A run counts if its experiment has the same hash as the planned one.
    """
    done = [
        (p, run)
        for p in planned
        if (run := exported.get(p.arm, {}).get(p.seed))
        and run.record.status in DONE
        and run.record.experiment_hash == p.experiment.hash()
    ]
    absent = missing(store, [p for p, _ in done])
    comparison = store.add_comparison(title) if absent else None
    for p, run in done:
        if p in absent:
            rows = (
                (int(round_), (client, split, name, value))
                for (split, name, client), (rounds, values) in run.series.items()
                for round_, value in zip(rounds, values.tolist(), strict=True)
            )
            number = register(store, p.experiment, comparison=comparison)
            store.copy_run(number, run.record, rows)
            store.set_partition(number, run.dealt)
    return len(done)


def estimate(
    planned: Sequence[PlannedRun], jobs: int, on_progress: Callable[[str, float], None] = lambda stage, fraction: None
) -> float:
    """Estimate the seconds of all runs, roughly, from a few timed steps and scored rows of each arm.

    After `PATIENCE` seconds it times only the first arm of each data set and model. The others count by their rounds and epochs,
    and so do those whose method surveys the clients before they train: this may take minutes.
    """
    first = {p.arm: p.experiment for p in reversed(planned)}

    def surveys(arm: str) -> bool:
        return overrides(first[arm].algorithm, "before")

    began = time.perf_counter()
    sources = {repr(e.dataset): e.dataset for e in first.values()}
    with ThreadPoolExecutor() as pool:  # NumPy and Pillow compute on several cores
        data = dict(zip(sources, pool.map(lambda source: source.load(), sources.values()), strict=True))
    seconds: dict[str, float] = {}
    an_epoch: dict[str, float] = {}  # by data set and model, of the arm timed last
    for number, arm in enumerate(sorted(first, key=surveys), 1):
        experiment = first[arm]
        kind = repr((experiment.dataset, experiment.model))
        epochs = experiment.training.rounds * experiment.local.epochs
        if kind not in an_epoch or (not surveys(arm) and time.perf_counter() - began < PATIENCE):
            seconds[arm] = experiment.training.rounds * a_round(experiment, data[repr(experiment.dataset)])
            an_epoch[kind] = seconds[arm] / max(epochs, 1)
        seconds.setdefault(arm, an_epoch[kind] * epochs)
        on_progress("estimating", number / len(first))
    return sum(seconds[p.arm] for p in planned) / jobs


def a_round(experiment: Experiment, dataset: Dataset) -> float:
    """Estimate the seconds of a round: local training, and evaluation on the test set and on the clients' rows.

    A round that takes clearly more than `PATIENCE` seconds is estimated from its first step. The results of frozen layers, which a
    run computes once, do not count.
    """
    assembly = assemble(experiment, dataset, timing=True)
    fed, option = assembly.federation, EngineChoice(assembly.engine, experiment.training.threads or 1)
    work = next_work(fed, start(fed, assembly.cold))
    training = 0.0 if work is None else estimate_seconds(fed, work, option, limit=PATIENCE)
    with on_threads(option.threads):
        for rows in SCORED:
            x, y = assembly.x_test[:rows], assembly.y_test[:rows]
            began = time.perf_counter()
            evaluate(fed.task, assembly.x0, x, y)
            seconds = time.perf_counter() - began
            if seconds > SLOW:
                break
    return training + seconds / len(x) * (len(assembly.x_test) + len(fed.x))


def results(store: RunStore, planned: Sequence[PlannedRun]) -> Results:
    """Read the results of the planned runs that are done, by arm and seed."""
    stored = stored_runs(store, [p.experiment for p in planned])
    runs = [(p, stored[key]) for p in planned if (key := p.experiment.hash()) in stored]
    done = ((p.arm, (p.seed, read_run(store, r))) for p, r in runs if r.status in DONE and r.rounds_done > 0)
    return {arm: dict(of_seeds) for arm, of_seeds in grouped(done).items()}

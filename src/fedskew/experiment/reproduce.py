"""Carry out a document's experiments, each arm on the same seeds, and read what the store then holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedskew.claims.document import Document
from fedskew.claims.quantities import Measured, measured
from fedskew.claims.verdicts import Results
from fedskew.core.component import parse
from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.engine.choose import Option, next_work, on_threads
from fedskew.engine.choose import measured as measured_seconds
from fedskew.experiment.build import assemble
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment, from_table_of_sections, from_toml
from fedskew.experiment.plan import Plan
from fedskew.experiment.run import register
from fedskew.loop.evaluate import evaluate
from fedskew.loop.federation import Federation
from fedskew.loop.round import start
from fedskew.store.runs import RunRecord, RunStore

SCORED = 512
"""Rows that are scored to estimate how long all take."""

DONE = ("finished", "diverged")
"""States of a run whose numbers will not change: what diverges once diverges again."""


@dataclass(frozen=True)
class Planned:
    """One run of a document."""

    arm: str
    seed: int
    experiment: Experiment


def plan(document: Document, scale: str) -> list[Planned]:
    """All runs, seed by seed, so that an unfinished reproduction is still paired. Raises `BadInput` for wrong settings."""
    chosen = document.scale(scale)
    return [
        Planned(arm, seed, experiment_of(document, scale, arm, seed))
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds)
        for arm in document.arms
    ]


def experiment_of(document: Document, scale: str, arm: str, seed: int) -> Experiment:
    """The scale's settings, changed by the arm, on one seed."""
    chosen = document.scale(scale)
    own = {**document.arms[arm], **chosen.arms.get(arm, {})}
    part = own.pop("part", None)
    changes = {**chosen.parts[part], **own} if part else own
    method = changes.pop("algorithm", None)
    table: dict[str, Any] = deepcopy(chosen.base)
    for key, value in [*changes.items(), *((key, seed) for key in chosen.seeded or document.seeded)]:
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


def missing(store: RunStore, planned: Sequence[Planned]) -> list[Planned]:
    """The runs that the store does not hold to their end."""
    return [p for p in planned if not (r := found(store, p.experiment)) or store.run(r).status not in DONE]


def found(store: RunStore, experiment: Experiment) -> int | None:
    """The run of exactly this experiment, the finished before the unfinished.

    A run that was stored when experiments had fewer settings is the same if those have their defaults.
    """
    records = store.runs("experiment_hash=?", (experiment.hash(),))
    if not records:
        alike = store.runs(
            "name=? AND seed=? AND rounds=?", (experiment.name, experiment.training.seed, experiment.training.rounds)
        )
        records = [record for record in alike if stored(record, experiment) == experiment]
    return max(records, key=lambda r: (r.status in DONE, -r.id)).id if records else None


def stored(record: RunRecord, experiment: Experiment) -> Experiment | None:
    """The experiment of a run before it settled its engine and threads; those of ``experiment`` take their place."""
    try:
        known = from_toml(record.experiment)
    except BadInput:
        return None
    return known.replace(engine=experiment.engine, training__threads=experiment.training.threads)


def registered(store: RunStore, planned: Sequence[Planned], title: str) -> dict[int, Plan | None]:
    """The runs to carry out, by number. An unfinished run goes on as stored; new ones form a comparison, with a plan each."""
    comparison = None
    runs: dict[int, Plan | None] = {}
    for p in planned:
        number = found(store, p.experiment)
        if number is not None:
            runs[number] = None
            continue
        comparison = comparison or store.add_comparison(title)
        number = register(store, p.experiment, {"name": p.experiment.table()["engine"]["name"]}, comparison)
        runs[number] = Plan(p.experiment)
    return runs


def estimate(planned: Sequence[Planned], jobs: int, tell: Callable[[], None] = lambda: None) -> float:
    """Seconds that the runs will take, from a few timed steps and scored rows of each arm; rough."""
    first = {p.arm: p.experiment for p in reversed(planned)}
    data: dict[str, Dataset] = {}
    seconds: dict[str, float] = {}
    for arm, experiment in first.items():
        key = repr(experiment.dataset)
        data[key] = data.get(key) or experiment.dataset.load()
        seconds[arm] = experiment.training.rounds * a_round(experiment, data[key])
        tell()
    return sum(seconds[p.arm] for p in planned) / jobs


def a_round(experiment: Experiment, dataset: Dataset) -> float:
    """Seconds of a round's local training, with an evaluation on the test set and on the clients' rows."""
    assembly = assemble(experiment, dataset)
    fed, option = assembly.federation, Option(experiment.engine, experiment.training.threads or 1)
    work = next_work(fed, start(fed, assembly.cold))
    training = 0.0 if work is None else measured_seconds(fed, work, option)
    with on_threads(option.threads):
        parts = ((assembly.x_test, assembly.y_test), (fed.x, fed.y))
        return training + sum(scoring(fed, assembly.x0, x, y) for x, y in parts)


def scoring(fed: Federation, model: Tensor, x: Tensor, y: Tensor) -> float:
    """Seconds of scoring all rows, from some."""
    rows = min(len(x), SCORED)
    began = time.perf_counter()
    evaluate(fed.task, model, x[:rows], y[:rows])
    return (time.perf_counter() - began) * len(x) / rows


def results(store: RunStore, planned: Sequence[Planned]) -> Results:
    """What the store holds of the planned runs that are done."""
    known: dict[str, dict[int, Measured]] = {}
    for p in planned:
        number = found(store, p.experiment)
        record = None if number is None else store.run(number)
        if record is not None and record.status in DONE and record.rounds_done > 0:
            known.setdefault(p.arm, {})[p.seed] = measured(store, record)
    return known

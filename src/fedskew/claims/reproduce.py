"""Reproduce a document: plan its runs, and read their results. All arms use the same seeds."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from fedskew.claims.document import Document
from fedskew.claims.quantities import Measured, measured
from fedskew.claims.verdicts import Results
from fedskew.core.component import parse
from fedskew.execution.run import register
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment, from_table_of_sections
from fedskew.store.runs import RunStore
from fedskew.studies.runner import DONE, stored_runs


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
        and run.status in DONE
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
            store.copy_run(register(store, p.experiment, comparison=comparison), run.record, rows)
    return len(done)


def results(store: RunStore, planned: Sequence[PlannedRun]) -> Results:
    """Read the results of the planned runs that are done, by arm and seed."""
    stored = stored_runs(store, [p.experiment for p in planned])
    by_arm: dict[str, dict[int, Measured]] = {}
    for p in planned:
        record = stored.get(p.experiment.hash())
        if record is not None and record.status in DONE and record.rounds_done > 0:
            by_arm.setdefault(p.arm, {})[p.seed] = measured(store, record)
    return by_arm

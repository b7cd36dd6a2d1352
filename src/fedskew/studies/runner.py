"""The runner of planned experiments: what the store lacks is run, and the rest is read."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fedskew.core.errors import Diverged, FedskewError, Interrupted, require
from fedskew.data.dataset import Dataset
from fedskew.engine.group import Lost
from fedskew.execution.plan import Latest, Plan
from fedskew.execution.run import Ended, Listener, Stop, begin, execute, register
from fedskew.experiment.config import Experiment
from fedskew.store.lock import busy
from fedskew.store.runs import RunRecord, RunStore

EndListener = Callable[[Ended], None]

DONE = ("finished", "diverged")
"""Final statuses. A run that diverged is not repeated, because it would diverge again."""

REQUESTED = "coalesce(json_extract(CASE WHEN json_valid(facts) THEN facts ELSE '{}' END, '$.asked'), experiment_hash)"
"""SQL: the hash of the experiment that was requested, before its engine was chosen."""


def stored_runs(store: RunStore, experiments: Sequence[Experiment]) -> dict[str, RunRecord]:
    """Return the stored runs of these experiments, by hash: of several one that is done, else the oldest."""
    hashes = [experiment.hash() for experiment in experiments]
    runs: dict[str, RunRecord] = {}
    for record in store.runs(f"{REQUESTED} IN (SELECT value FROM json_each(?))", [json.dumps(hashes)]):
        key = record.facts.get("asked", record.experiment_hash)
        if key not in runs or (record.status in DONE and runs[key].status not in DONE):
            runs[key] = record
    return runs


Planner = Callable[[Sequence[Experiment]], Sequence[Plan]]


def plan_later(experiments: Sequence[Experiment]) -> list[Plan]:
    """Return plans that deal rows and choose an engine only when a run begins."""
    return [Plan(experiment) for experiment in experiments]


def to_execute(
    store: RunStore,
    experiments: Sequence[Experiment],
    title: str,
    planner: Planner = plan_later,
    facts: Callable[[Experiment], Mapping[str, object]] = lambda _: {},
) -> dict[int, Plan | None]:
    """Return the runs to execute, by number, until all experiments are done.

    A stored run has no plan and continues. What the store lacks becomes a new comparison, with these ``facts``.
    """
    stored = stored_runs(store, experiments)
    runs: dict[int, Plan | None] = {r.id: None for r in stored.values() if r.status not in DONE}
    new = list({key: e for e in experiments if (key := e.hash()) not in stored}.values())
    if new:
        added = register_all(store, planner(new), title)
        for experiment, (number, plan) in zip(new, added.items(), strict=True):
            requested = experiment.hash()
            asked = {} if plan.experiment.hash() == requested else {"asked": requested}
            if more := {**asked, **facts(experiment)}:
                store.add_facts(number, more)
        runs |= added
    return runs


def register_all(store: RunStore, plans: Sequence[Plan], title: str) -> dict[int, Plan]:
    """Store the runs of a new comparison with status planned. Return the plans by run number."""
    comparison = store.add_comparison(title)
    return {register(store, plan.experiment, plan.trial, comparison): plan for plan in plans}


def execute_all(
    store: RunStore,
    runs: Mapping[int, Plan | None],
    dataset: Dataset | None,
    jobs: int,
    listener: Listener,
    ended: EndListener,
    stop: Stop,
) -> list[Ended]:
    """Execute the runs, ``jobs`` at a time; a run that fails does not stop the others. Return how each run ended.

    A run without a plan is executed as stored. Raises `Interrupted` once ``stop`` returns True.
    """
    results: list[Ended] = []

    def note(result: Ended) -> None:
        results.append(result)
        ended(result)

    if jobs == 1 or len(runs) < 2:
        load = Latest()
        for run, plan in runs.items():
            if stop():
                break
            try:
                execute(store, run, dataset, listener, stop, partial(begin, store, run, dataset or load, plan))
                note(Ended(run, None))
            except Interrupted:
                break
            except Lost as error:
                # a process of torchrun is lost, so no other run can begin
                note(Ended(run, error))
                break
            except FedskewError as error:
                note(Ended(run, error))
    else:
        from fedskew.studies.workers import side_by_side

        side_by_side(store.folder, runs, dataset, jobs, listener, note, stop)
    missing = len(runs) - len(results)
    if missing and stop():
        raise Interrupted(f"stopped with {missing} of {len(runs)} runs unfinished")
    return results


def unfinished(store: RunStore) -> list[RunRecord]:
    """Return the newest run that can be resumed, with all runs of its comparison; if there is none, the latest runs."""
    waiting = [
        r for r in store.runs("status IN ('planned', 'running', 'interrupted', 'failed')") if not busy(store, r.id)
    ]
    if not waiting:
        return store.select([])
    newest = max(waiting, key=lambda r: r.id)
    return store.select([f"c{newest.comparison}" if newest.comparison else str(newest.id)])


def to_resume(store: RunStore, chosen: Sequence[RunRecord]) -> list[int]:
    """Return the numbers of the unfinished runs. Raises `BadInput` if other processes execute all of them."""
    ids = [r.id for r in chosen if r.status in ("planned", "running", "interrupted", "failed")]
    reasons = [busy(store, run) for run in ids]
    require(not reasons or not all(reasons), reasons[0] if reasons else "")
    return ids


def worst_error(results: Sequence[Ended]) -> FedskewError | None:
    """Return the error that decides the exit code; None without errors. Any other error comes before a divergence."""
    errors = [r.error for r in results if r.error]
    return next((e for e in errors if not isinstance(e, Diverged)), errors[0] if errors else None)

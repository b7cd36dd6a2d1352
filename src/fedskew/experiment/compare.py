"""Several methods on the same partitions and seeds: planned, checked, stored, then carried out one by one or side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedskew.core.errors import Diverged, FedskewError, Interrupted, require
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.own import Own
from fedskew.engine.group import Lost
from fedskew.experiment.build import assemble, check_clients, check_needs, with_engine
from fedskew.experiment.choice import settled
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.experiment.deal import partition_of
from fedskew.experiment.machine import cores
from fedskew.experiment.run import Listener, Stop, execute, register
from fedskew.store.runs import RunStore

PER_CORE = 8
"""Processes for each core at most: each holds PyTorch and the data, and of a typing error's many memory would run out."""


MOST_RUNS = 10_000
"""Of one comparison: all of them are dealt, checked and stored before the first begins."""


@dataclass(frozen=True)
class Ended:
    """How a run of several came out."""

    run: int
    error: FedskewError | None  # None: finished


EndListener = Callable[[Ended], None]


def plan(base: Experiment, methods: Sequence[str], seeds: Sequence[int]) -> list[Experiment]:
    """One experiment for each method and seed, seed by seed, so that unfinished comparisons are still paired.

    Partition and training use the same number, so both vary; equal numbers across methods make the pairs.
    """
    require(bool(methods), "compare: name at least one algorithm")
    require(
        len(methods) * len(seeds) <= MOST_RUNS,
        f"compare: {len(methods)} methods x {len(seeds)} seeds are {len(methods) * len(seeds)} runs, and one comparison "
        f"takes at most {MOST_RUNS}; name fewer seeds, or make several comparisons",
    )
    require(len(set(methods)) == len(methods), "compare: an algorithm is named twice")
    require(bool(seeds) and len(set(seeds)) == len(seeds), "compare: seeds must be different numbers, at least one")
    return [
        with_method(base, method).replace(training__seed=seed, clients__partition_seed=seed)
        for seed in seeds
        for method in methods
    ]


def prepare(
    experiments: Sequence[Experiment], dataset: Dataset | None, jobs: int
) -> tuple[list[Experiment], Dataset, dict[str, dict[str, Any]]]:
    """Find everything that is wrong before any work, and choose each method's engine by a trial on its first seed.

    Returns the experiments with what was left open filled in, the data, and what is known of each method's engine by name.
    """
    first = experiments[0]
    if dataset is None:
        dataset = first.dataset.load()
    else:
        own = Own(fingerprint=dataset.fingerprint())
        experiments = [e.replace(dataset=own) for e in experiments]
    for experiment in experiments:
        check_needs(experiment)
        check_clients(experiment, len(partition_of(experiment, dataset)))
    check_processes(jobs)
    made: dict[str, Experiment] = {}
    engines: dict[str, dict[str, Any]] = {}
    for experiment in experiments:
        if experiment.name not in made:
            made[experiment.name], facts = settled(experiment, dataset, jobs, assemble(experiment, dataset))
            engines |= {experiment.name: facts} if facts else {}
    return [alike(experiment, made[experiment.name]) for experiment in experiments], dataset, engines


def check_processes(count: int) -> None:
    """Raise `BadInput` for so many processes side by side that a typing error is likely."""
    most = PER_CORE * cores()
    require(
        count <= most,
        f"{count} processes side by side are too many here; take at most {most}, {PER_CORE} for each core",
    )


def alike(experiment: Experiment, first: Experiment) -> Experiment:
    """Carried out as another one of the same method."""
    return with_engine(experiment, first.engine, first.training.threads)


def register_all(
    store: RunStore, experiments: Sequence[Experiment], engines: dict[str, dict[str, Any]], title: str
) -> list[int]:
    """Put all runs of a comparison into the store as planned; their numbers."""
    comparison = store.add_comparison(title)
    return [register(store, experiment, engines.get(experiment.name), comparison) for experiment in experiments]


def execute_all(
    store: RunStore,
    runs: Sequence[int],
    dataset: Dataset | None,
    jobs: int,
    listener: Listener,
    ended: EndListener,
    stop: Stop,
) -> list[Ended]:
    """Carry out the runs; one that fails does not stop the others. Raises `Interrupted` when ``stop`` asked for it."""
    results: list[Ended] = []

    def note(result: Ended) -> None:
        results.append(result)
        ended(result)

    if jobs == 1 or len(runs) == 1:
        for run in runs:
            if stop():
                break
            try:
                execute(store, run, dataset, listener, stop)
                note(Ended(run, None))
            except Interrupted:
                break
            except Lost as error:
                # without that rank no other run can begin
                note(Ended(run, error))
                break
            except FedskewError as error:
                note(Ended(run, error))
    else:
        from fedskew.experiment.workers import side_by_side

        side_by_side(store.folder, runs, dataset, jobs, listener, note, stop)
    missing = len(runs) - len(results)
    if missing and stop():
        raise Interrupted(f"stopped with {missing} of {len(runs)} runs unfinished")
    return results


def worst_error(results: Sequence[Ended]) -> FedskewError | None:
    """The error that decides the exit code: any other failure before divergence."""
    errors = [r.error for r in results if r.error]
    return next((e for e in errors if not isinstance(e, Diverged)), errors[0] if errors else None)


def seeds_from(text: Sequence[int] | int, first: int = 0) -> list[int]:
    """``5`` is the seeds first .. first+4; a list is taken as it is."""
    if isinstance(text, int):
        require(1 <= text <= MOST_RUNS, f"seeds: at least 1 and at most {MOST_RUNS} are possible, got {text}")
        return list(range(first, first + text))
    return list(text)

"""Compare methods on the same partitions and seeds. Runs execute one after the other, or several at a time."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fedskew.core.errors import Diverged, FedskewError, Interrupted, require
from fedskew.core.folds import parse_folds
from fedskew.data.dataset import Dataset
from fedskew.data.splits import with_splits
from fedskew.engine.group import Lost
from fedskew.experiment.combinations import has_own_models, with_method
from fedskew.experiment.config import Experiment
from fedskew.experiment.plan import Latest, Plan
from fedskew.experiment.run import Ended, Listener, Stop, begin, execute, register
from fedskew.models import Mixed
from fedskew.store.lease import busy
from fedskew.store.runs import RunRecord, RunStore

MOST_RUNS = 10_000
"""Maximum number of runs in a comparison. All are dealt, checked and stored before the first one begins."""


EndListener = Callable[[Ended], None]


def cross(base: Experiment, methods: Sequence[object], seeds: Sequence[int], folds: str = "") -> list[Experiment]:
    """Return one experiment for each method and seed. Partition, training and drawn test rows use the same seed.

    The order is seed by seed, so that an unfinished comparison has all methods on its first seeds. With ``folds``, such as ``5``
    or ``4:clients``, each seed tests another fold.
    """
    require(bool(methods), "compare: name at least one algorithm")
    require(
        len(methods) * len(seeds) <= MOST_RUNS,
        f"compare: {len(methods)} methods x {len(seeds)} seeds are {len(methods) * len(seeds)} runs, but one comparison "
        f"takes at most {MOST_RUNS}; name fewer seeds, or make several comparisons",
    )
    require(bool(seeds) and len(set(seeds)) == len(seeds), "compare: seeds must be different numbers, at least one")
    made = [with_method(base, method) for method in methods]
    require(len({one.name for one in made}) == len(made), "compare: an algorithm is named twice")
    splits = with_splits(base.dataset, seeds, folds)
    return [
        one.replace(training__seed=seed, clients__partition_seed=seed, dataset=splits[seed])
        for seed in seeds
        for one in made
    ]


def with_baselines(base: Experiment, methods: Sequence[object]) -> tuple[list[object], str]:
    """Return the methods with baselines added, and a line that names them.

    Baselines are added if a method gives each client its own model: fine-tuned FedAvg, and clients that train alone.
    """
    made = [with_method(base, method) for method in methods]
    names = [one.name.partition(":")[0] for one in made]
    tuned = "fedavg" if base.evaluation.adapt_steps else "fedavg-ft"
    baselines = ["local-only"] if isinstance(base.model, Mixed) else [tuned, "local-only"]
    personal = [n for n, one in zip(names, made, strict=True) if n != "local-only" and has_own_models(one)]
    added = [name for name in baselines if name not in names] if personal else []
    line = f"beside {personal[0]}, a method with a model for each client: {' and '.join(added)}" if added else ""
    return [*methods, *added], line


def register_all(store: RunStore, plans: Sequence[Plan], title: str) -> dict[int, Plan]:
    """Store all runs of a comparison with status planned. Return the plans by run number."""
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

    if jobs == 1 or len(runs) == 1:
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
        from fedskew.experiment.workers import side_by_side

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


def seeds_from(given: Sequence[int] | int | None, first: int = 0, folds: str = "") -> list[int]:
    """Return seeds. A list is returned unchanged. A number ``n`` gives first, ..., first + n - 1, or n x K seeds with K ``folds``.

    The default is 5 seeds, or one repetition of the folds.
    """
    if given is None:
        given = 1 if folds else 5
    if isinstance(given, int):
        number = given * parse_folds(folds).number if folds else given
        require(1 <= number <= MOST_RUNS, f"seeds: at least 1 and at most {MOST_RUNS} are possible, got {number}")
        return list(range(first, first + number))
    return list(given)

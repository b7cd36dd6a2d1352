"""The experiments of a comparison: methods on the same partitions and seeds, with baselines."""

from collections.abc import Iterable, Sequence
from numbers import Integral

from fedskew.core.errors import BadInput, require
from fedskew.core.text import parse_folds
from fedskew.data.splits import with_splits
from fedskew.experiment.combinations import has_own_models, with_method
from fedskew.experiment.config import Experiment
from fedskew.models import Mixed

MOST_RUNS = 10_000
"""Maximum number of runs in a comparison. All are dealt, checked and stored before the first one begins."""


def cross(
    base: Experiment, methods: Sequence[object], seeds: Sequence[int], folds: str = "", partitions: Sequence[int] = ()
) -> list[Experiment]:
    """Return one experiment for each method and seed. Partition, training and drawn test rows use the same seed.

    The order is seed by seed, so that an unfinished comparison has all methods on its first seeds. With ``folds``, such as ``5``
    or ``4:clients``, each seed tests another fold. With ``partitions``, these seeds draw partition and test rows, and all training
    ``seeds`` run on each.
    """
    require(bool(methods), "compare: name at least one algorithm")
    pairs = [(partition, seed) for partition in partitions or seeds for seed in (seeds if partitions else [partition])]
    if len(methods) * len(pairs) > MOST_RUNS:
        raise BadInput(
            f"compare: {len(methods)} methods x {len(pairs)} seeds are {len(methods) * len(pairs)} runs, but one comparison "
            f"takes at most {MOST_RUNS}; name fewer seeds, or make several comparisons"
        )
    require(bool(seeds) and len(set(seeds)) == len(seeds), "compare: seeds must be different numbers, at least one")
    require(len(set(partitions)) == len(partitions), "compare: partitions must be different numbers")
    require(not (folds and partitions), "compare: each fold is a partition of its own; leave out partitions or folds")
    experiments = [with_method(base, method) for method in methods]
    require(len({e.name for e in experiments}) == len(methods), "compare: an algorithm is named twice")
    splits = with_splits(base.dataset, partitions or seeds, folds)
    return [
        experiment.replace(training__seed=seed, clients__partition_seed=partition, dataset=splits[partition])
        for partition, seed in pairs
        for experiment in experiments
    ]


def with_baselines(base: Experiment, methods: Sequence[object]) -> tuple[list[object], str]:
    """Return the methods with baselines added, and a line that names them.

    Baselines are added if a method gives each client its own model: fine-tuned FedAvg, and clients that train alone.
    """
    experiments = [with_method(base, method) for method in methods]
    names = [experiment.name.partition(":")[0] for experiment in experiments]
    tuned = "fedavg" if base.evaluation.adapt_steps else "fedavg-ft"
    baselines = ["local-only"] if isinstance(base.model, Mixed) else [tuned, "local-only"]
    personal = [name for name, e in zip(names, experiments, strict=True) if name != "local-only" and has_own_models(e)]
    added = [name for name in baselines if name not in names] if personal else []
    line = f"beside {personal[0]}, a method with a model for each client: {' and '.join(added)}" if added else ""
    return [*methods, *added], line


def seeds_from(seeds: Sequence[int] | int | None, first: int = 0, folds: str = "", what: str = "seeds") -> list[int]:
    """Return seeds. A list is returned unchanged. A number ``n`` gives first, ..., first + n - 1, or n x K seeds with K ``folds``.

    The default is 5 seeds, or one repetition of the folds.
    """
    if seeds is None:
        seeds = 1 if folds else 5
    if isinstance(seeds, Integral):
        number = int(seeds) * parse_folds(folds).number if folds else int(seeds)
        require(1 <= number <= MOST_RUNS, f"{what}: at least 1 and at most {MOST_RUNS} are possible, got {number}")
        return list(range(first, first + number))
    numbers = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    if not all(isinstance(number, Integral) for number in numbers):
        raise BadInput(f"{what}: write their number, or a list of whole numbers, not {seeds!r}")
    return [int(number) for number in numbers]

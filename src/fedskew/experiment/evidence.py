"""Execute the protocol of `fedskew.advice.protocol`: plan, tune, measure. After an interruption it continues."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from fedskew.advice.evidence import Case, add_case, read_file
from fedskew.advice.protocol import PASSES, RATES, REFERENCE, SEEDS, TUNING_SEED, Planned
from fedskew.core.errors import BadInput, FedskewError
from fedskew.data.dataset import Dataset
from fedskew.experiment.build import assemble
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.experiment.gains import case_of, values_of
from fedskew.experiment.given import suited
from fedskew.experiment.run import Stop
from fedskew.experiment.runner import DONE, execute_all, stored_runs, to_execute
from fedskew.measure.registry import primary
from fedskew.store.runs import RunStore

Say = Callable[[str], None]


def experiment_of(case: Planned, method: str, rate: float, seed: int) -> Experiment:
    """Return one run of the protocol. Its name is the method."""
    made = with_method(Experiment(**case.settings()), method)
    return made.replace(name=method, solver__lr=rate, training__seed=seed, clients__partition_seed=seed)


def able(case: Planned, methods: Sequence[str], data: Dataset) -> Iterator[str]:
    """Yield the methods that can run on this case."""
    for method in methods:
        try:
            assemble(experiment_of(case, method, RATES[0], 0), data)
        except BadInput:
            continue
        yield method


def complete(store: RunStore, experiments: Sequence[Experiment], title: str, data: Dataset, stop: Stop) -> None:
    """Execute the runs that are not in the store, or not done. Errors of single runs are only stored."""
    if runs := to_execute(store, experiments, title):
        execute_all(store, runs, data, 1, lambda _: None, lambda _: None, stop)


def tuned(store: RunStore, case: Planned, method: str) -> float | None:
    """Return the learning rate with the best value on the clients' held-out rows; None until all tuning runs are done.

    A run that diverged has the worst value.
    """
    wanted = [experiment_of(case, method, rate, TUNING_SEED) for rate in RATES]
    records = stored_runs(store, wanted)
    if any(one.hash() not in records or records[one.hash()].status not in DONE for one in wanted):
        return None
    scores: dict[float, float] = {}
    for rate, one in zip(RATES, wanted, strict=True):
        record = records[one.hash()]
        measure = primary(record.facts["primary"])
        value = values_of(store, record, measure.name).get("own", math.nan) * (-1 if measure.better == "lower" else 1)
        scores[rate] = -math.inf if record.status != "finished" or math.isnan(value) else value
    return max(RATES, key=lambda rate: scores[rate])


def gathered(store: RunStore, case: Planned, methods: Sequence[str], data: Dataset, file: Path) -> Case | None:
    """Return the case with the methods measured so far; None until FedAvg has two seeds.

    If ``file`` already has this case, its faces are not measured again.
    """
    rates = {method: rate for method in methods if (rate := tuned(store, case, method)) is not None}
    wanted = {method: [experiment_of(case, method, rate, seed) for seed in SEEDS] for method, rate in rates.items()}
    stored = stored_runs(store, [one for own in wanted.values() for one in own])
    runs = {method: [stored[h] for one in own if (h := one.hash()) in stored] for method, own in wanted.items()}
    if sum(record.status in DONE for record in runs.get(REFERENCE, [])) < 2:
        return None
    before = next((one for one in read_file(file).cases if one.title == case.title), None)
    experiment = suited(wanted[REFERENCE][0], data)
    found = case_of(store, runs, experiment, data, (before.dominant, before.strengths) if before else None)
    return replace(found, data=case.data, skew=" + ".join(case.skew))


def run_protocol(
    store: RunStore,
    cases: Sequence[Planned],
    methods: Sequence[str],
    file: Path,
    seeds: Sequence[int] = SEEDS,
    say: Say = lambda _: None,
    stop: Stop = lambda: False,
) -> None:
    """Execute the runs that are not in the store: all cases on the first seeds, then all on the others.

    Each measured case is written to ``file``.
    """
    methods = list(dict.fromkeys([REFERENCE, *methods]))
    for number, part in enumerate(PASSES, 1):
        for at, case in enumerate(cases, 1):
            say(f"pass {number} of {len(PASSES)}, case {at} of {len(cases)}: {case.title}")
            try:
                data = Experiment(**case.settings()).dataset.load()
            except FedskewError as error:
                say(f"left out: {error}")
                continue
            fit = list(able(case, methods, data))
            tuning = [experiment_of(case, method, rate, TUNING_SEED) for method in fit for rate in RATES]
            complete(store, tuning, f"tuning: {case.title}", data, stop)
            rates = {method: rate for method in fit if (rate := tuned(store, case, method)) is not None}
            measured = [
                experiment_of(case, method, rate, seed)
                for seed in part
                if seed in seeds
                for method, rate in rates.items()
            ]
            complete(store, measured, case.title, data, stop)
            if found := gathered(store, case, fit, data, file):
                add_case(file, found)


def gather(store: RunStore, cases: Sequence[Planned], methods: Sequence[str], file: Path) -> None:
    """Write the cases whose runs are in the store to ``file``. Nothing is executed."""
    for case in cases:
        data = Experiment(**case.settings()).dataset.load()
        if found := gathered(store, case, methods, data, file):
            add_case(file, found)

"""Execute the protocol of `fedskew.advice.protocol`: plan, tune, measure. A killed protocol goes on where it was."""

import math
from collections.abc import Callable, Iterator, Sequence

from fedskew.advice.protocol import PASSES, RATES, TUNING_SEED, Planned
from fedskew.core.errors import BadInput, FedskewError
from fedskew.data.dataset import Dataset
from fedskew.experiment.build import assemble
from fedskew.experiment.combinations import with_method
from fedskew.experiment.compare import execute_all
from fedskew.experiment.config import Experiment
from fedskew.experiment.plan import Plan
from fedskew.experiment.reproduce import DONE
from fedskew.experiment.run import Stop, register
from fedskew.measure.registry import primary
from fedskew.store.runs import RunRecord, RunStore

Say = Callable[[str], None]


def experiment_of(case: Planned, method: str, rate: float, seed: int) -> Experiment:
    """One run of the protocol; its name is the method."""
    made = with_method(Experiment(**case.settings()), method)
    return made.replace(name=method, solver__lr=rate, training__seed=seed, clients__partition_seed=seed)


def able(case: Planned, methods: Sequence[str], data: Dataset) -> Iterator[str]:
    """The methods whose contracts the case fits."""
    for method in methods:
        try:
            assemble(experiment_of(case, method, RATES[0], 0), data)
        except BadInput:
            continue
        yield method


def known(store: RunStore, wanted: Sequence[Experiment]) -> dict[str, RunRecord]:
    """The stored runs of these experiments by hash; a finished one where there are several."""
    found: dict[str, RunRecord] = {}
    hashes = [one.hash() for one in wanted]
    for record in store.runs(f"experiment_hash IN ({','.join('?' * len(hashes))})", hashes):
        if record.status in DONE or record.experiment_hash not in found:
            found[record.experiment_hash] = record
    return found


def carry_out(store: RunStore, wanted: Sequence[Experiment], title: str, data: Dataset, jobs: int, stop: Stop) -> None:
    """Execute the runs that the store does not hold. Raises the first error other than a divergence or a failure."""
    stored, runs, comparison = known(store, wanted), dict[int, Plan | None](), None
    for one in wanted:
        record = stored.get(one.hash())
        if record is None:
            comparison = comparison or store.add_comparison(title)
            runs[register(store, one, {"name": "stacked"}, comparison)] = Plan(one)
        elif record.status not in DONE:
            runs[record.id] = None
    if runs:
        execute_all(store, runs, data, jobs, lambda _: None, lambda _: None, stop)


def last(store: RunStore, record: RunRecord, split: str, name: str) -> float:
    """A measurement of the last round, NaN if there is none. A run that diverged counts as its untrained model."""
    at = record.rounds if record.status == "finished" else 0
    query = "SELECT value FROM measurements WHERE run=? AND round=? AND client IS NULL AND split=? AND name=?"
    found = store.query(query, (record.id, at, split, name))
    return float(found[0][0]) if found else math.nan


def own_value(store: RunStore, record: RunRecord, metric: str) -> float:
    """The metric's mean over the clients on their held-out rows, each with the model that it would use."""
    personal = last(store, record, "personal", f"{metric}_mean")
    return last(store, record, "clients", f"{metric}_mean") if math.isnan(personal) else personal


def tuned(store: RunStore, case: Planned, method: str) -> float | None:
    """The rate with the best value on the clients' held-out rows; one that diverges does not count. None before it is tuned."""
    wanted = [experiment_of(case, method, rate, TUNING_SEED) for rate in RATES]
    records = known(store, wanted)
    if any(one.hash() not in records or records[one.hash()].status not in DONE for one in wanted):
        return None
    scores: dict[float, float] = {}
    for rate, one in zip(RATES, wanted, strict=True):
        record = records[one.hash()]
        measure = primary(record.facts["primary"])
        value = own_value(store, record, measure.name) * (-1 if measure.better == "lower" else 1)
        scores[rate] = -math.inf if record.status != "finished" or math.isnan(value) else value
    return max(RATES, key=lambda rate: scores[rate])


def run_protocol(
    store: RunStore,
    cases: Sequence[Planned],
    methods: Sequence[str],
    jobs: int = 1,
    say: Say = lambda _: None,
    stop: Stop = lambda: False,
) -> None:
    """Execute what the store does not hold: all cases on the first seeds, then on the others."""
    for number, seeds in enumerate(PASSES, 1):
        for at, case in enumerate(cases, 1):
            say(f"pass {number} of {len(PASSES)}, case {at} of {len(cases)}: {case.title}")
            try:
                data = Experiment(**case.settings()).dataset.load()
            except FedskewError as error:
                say(f"left out: {error}")
                continue
            fit = list(able(case, methods, data))
            tuning = [experiment_of(case, method, rate, TUNING_SEED) for method in fit for rate in RATES]
            carry_out(store, tuning, f"tuning: {case.title}", data, jobs, stop)
            rates = {method: rate for method in fit if (rate := tuned(store, case, method)) is not None}
            measured = [experiment_of(case, method, rate, seed) for seed in seeds for method, rate in rates.items()]
            carry_out(store, measured, case.title, data, jobs, stop)

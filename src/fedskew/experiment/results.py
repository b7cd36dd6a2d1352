"""The Python API of runs: run, compare, table, data frame, plots, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast, overload

from fedskew.core.errors import FedskewError, require
from fedskew.data.dataset import Dataset
from fedskew.experiment.compare import cross, execute_all, register_all, seeds_from, worst_error
from fedskew.experiment.config import Experiment
from fedskew.experiment.given import experiment_from
from fedskew.experiment.keywords import DEFAULT_METHODS, Settings
from fedskew.experiment.plan import Plan, prepare
from fedskew.experiment.run import Listener, register
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Runs:
    """Some runs of a store."""

    store: RunStore
    ids: tuple[int, ...]

    @property
    def records(self) -> list[RunRecord]:
        """What the store knows of each run."""
        return [self.store.run(i) for i in self.ids]

    def table(self) -> pd.DataFrame:
        """One row a method: accuracy with its 95 % interval over seeds, worst client, drift, megabytes, difference to the first."""
        from fedskew.report.tables import summary

        return summary(self.store, self.records)

    def measurements(self) -> pd.DataFrame:
        """Every stored number: run, round, client, split, name, value."""
        return self.store.measurements(self.ids)

    def plot(self, what: str = "accuracy") -> Figure:
        """A matplotlib figure: ``accuracy``, ``loss``, ``drift``, ``divergence``, ``clients``, ``partition`` or ``ranks``."""
        from fedskew.report.plots import plot

        return plot(self.store, self.records, what)

    def report(self, path: str | Path) -> Path:
        """Write the self-contained HTML report."""
        from fedskew.report.html import write_report

        return write_report(self.store, self.records, Path(path))


def run(
    experiment: Experiment | None = None,
    *,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    listener: Listener = lambda _: None,
    **keywords: Unpack[Settings],
) -> Runs:
    """Run one experiment and keep its numbers in the store under the folder ``runs``.

    The experiment is an `Experiment`, keywords, or both: ``run(dataset="digits", algorithm="scaffold", rounds=20)``. ``data`` or
    ``dataset`` may be arrays of your own, a `Dataset`. Raises `fedskew.FedskewError` with one clear line.
    """
    made, data = asked("run", experiment, data, keywords)
    [plan], dataset = prepare([made], data, jobs=1)
    store = RunStore(runs)
    number = register(store, plan.experiment, plan.trial)
    return finish(store, {number: plan}, dataset, 1, listener)


@overload
def compare(
    experiment: Experiment,
    algorithms: Sequence[object],
    *,
    seeds: int | Sequence[int] = 5,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    jobs: int = 1,
    listener: Listener = ...,
    **keywords: Unpack[Settings],
) -> Runs: ...
@overload
def compare(
    experiment: Sequence[object] = ...,
    /,
    *,
    seeds: int | Sequence[int] = 5,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    jobs: int = 1,
    listener: Listener = ...,
    **keywords: Unpack[Settings],
) -> Runs: ...
def compare(
    experiment: Experiment | Sequence[object] | None = None,
    algorithms: Sequence[object] = (),
    *,
    seeds: int | Sequence[int] = 5,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    jobs: int = 1,
    listener: Listener = lambda _: None,
    **keywords: Unpack[Settings],
) -> Runs:
    """Run several methods on the same partitions and seeds: ``compare(["fedavg", "scaffold"], dataset="heart", seeds=5)``.

    An `Experiment` may stand before the methods. Without methods it compares those of `fedskew compare`. ``jobs`` processes work
    side by side; with more than 1 the calling script needs ``if __name__ == "__main__":``. Other keywords are those of `run`.
    """
    base = experiment if isinstance(experiment, Experiment) else None
    if experiment is not None and base is None:
        require(not algorithms, "compare: the methods are named twice")
        algorithms = cast(Sequence[object], experiment)
    made, data = asked("compare", base, data, keywords)
    require(not isinstance(algorithms, str), f"compare: write the methods as a list, [{algorithms!r}]")
    planned = cross(made, algorithms or DEFAULT_METHODS, seeds_from(seeds, made.training.seed))
    plans, dataset = prepare(planned, data, jobs)
    store = RunStore(runs)
    title = " vs ".join(dict.fromkeys(plan.experiment.name for plan in plans))
    return finish(store, register_all(store, plans, title), dataset, jobs, listener)


def asked(
    verb: str, experiment: Experiment | None, data: Dataset | None, keywords: Settings
) -> tuple[Experiment, Dataset | None]:
    """The experiment of a call, and its data if they are arrays."""
    require(
        isinstance(experiment, Experiment | None),
        f"{verb}: give an Experiment, or keywords such as dataset='digits', not {experiment!r}",
    )
    if isinstance(keywords.get("dataset"), Dataset):
        require(data is None, f"{verb}: the data are given twice; write data= or dataset=")
        data = cast(Dataset, keywords.pop("dataset"))
    return experiment_from(experiment, keywords), data


def finish(store: RunStore, runs: Mapping[int, Plan], dataset: Dataset, jobs: int, listener: Listener) -> Runs:
    """Carry out the runs. Raises the error of a single run; of several, the store has them."""
    results = execute_all(store, runs, dataset, jobs, listener, lambda _: None, lambda: False)
    error: FedskewError | None = worst_error(results)
    if error and len(runs) == 1:
        raise error
    return Runs(store, tuple(runs))

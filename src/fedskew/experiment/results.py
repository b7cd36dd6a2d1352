"""The Python API of runs: run, compare, table, data frame, plots, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset
from fedskew.experiment.compare import cross, execute_all, register_all, seeds_from, worst_error
from fedskew.experiment.config import Experiment
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
    experiment: Experiment,
    data: Dataset | None = None,
    folder: str | Path = "runs",
    listener: Listener = lambda _: None,
) -> Runs:
    """Run one experiment and keep its numbers in the store under ``folder``.

    ``data`` replaces the experiment's data set by arrays of your own. Raises `fedskew.FedskewError` with one clear line.
    """
    [plan], dataset = prepare([experiment], data, jobs=1)
    store = RunStore(folder)
    number = register(store, plan.experiment, plan.trial)
    return finish(store, {number: plan}, dataset, 1, listener)


def compare(
    experiment: Experiment,
    algorithms: Sequence[str],
    seeds: int | Sequence[int] = 5,
    data: Dataset | None = None,
    folder: str | Path = "runs",
    jobs: int = 1,
    listener: Listener = lambda _: None,
) -> Runs:
    """Run several methods on the same partitions and seeds.

    ``jobs`` processes work side by side; with more than 1 the calling script needs ``if __name__ == "__main__":``.
    """
    planned = cross(experiment, algorithms, seeds_from(seeds, experiment.training.seed))
    plans, dataset = prepare(planned, data, jobs)
    store = RunStore(folder)
    return finish(store, register_all(store, plans, " vs ".join(algorithms)), dataset, jobs, listener)


def finish(store: RunStore, runs: Mapping[int, Plan], dataset: Dataset, jobs: int, listener: Listener) -> Runs:
    """Carry out the runs. Raises the error of a single run; of several, the store has them."""
    results = execute_all(store, runs, dataset, jobs, listener, lambda _: None, lambda: False)
    error: FedskewError | None = worst_error(results)
    if error and len(runs) == 1:
        raise error
    return Runs(store, tuple(runs))

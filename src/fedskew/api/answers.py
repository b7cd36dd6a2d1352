"""Results of the Python functions, except runs. They print as text, and as tables in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedskew.api.caller import ShowProgress, Started, caller_of
from fedskew.api.execute import execute, start
from fedskew.api.runs import Runs, Shown
from fedskew.conformance.promises import Verdict
from fedskew.data.dataset import Dataset
from fedskew.experiment.config import Experiment
from fedskew.measure.registry import Measure
from fedskew.report.console import self_showing
from fedskew.skew.partition import Partition
from fedskew.store.runs import RunStore
from fedskew.studies.compare import cross, seeds_from
from fedskew.studies.tune import Setting, Tuned, at_best, check_seeds, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Checked(Shown):
    """The result of `fedskew.check`: a verdict on each promise of a component."""

    name: str
    kind: str
    promises: tuple[Verdict, ...]

    @property
    def kept(self) -> bool:
        """True if the component keeps all promises."""
        return all(v.kept for v in self.promises)

    def __bool__(self) -> bool:
        return self.kept

    @property
    def heading(self) -> str:  # type: ignore[override]
        if broken := sum(not v.kept for v in self.promises):
            return f"{self.name}: {broken} of {len(self.promises)} promises broken"
        return f"{self.name}: keeps its promises ({self.kind})"

    def __repr__(self) -> str:
        lines = [
            f"{'ok' if v.kept else 'broken':8}{v.promise}{f': {v.reason}' * bool(v.reason)}" for v in self.promises
        ]
        return "\n".join([*lines, self.heading])

    def table(self) -> pd.DataFrame:
        """Return one row for each promise, with columns kept, promise, reason."""
        return pd.DataFrame([{"kept": v.kept, "promise": v.promise, "reason": v.reason or ""} for v in self.promises])


@dataclass(frozen=True, repr=False)
class Tuning(Shown):
    """The result of `fedskew.tune`: all settings that were tried, and the best of each method."""

    base: Experiment
    methods: Mapping[str, Tuned]
    data: Dataset | None
    folder: Path

    @property
    def measure(self) -> Measure:
        """The primary measure, by which settings are chosen."""
        return next(iter(self.methods.values())).measure

    @property
    def heading(self) -> str:  # type: ignore[override]
        return f"held-out {self.measure.title} of each setting, the best first"

    @property
    def best(self) -> dict[str, Setting]:
        """The best setting of each method, by method."""
        return {name: tuned.best.setting for name, tuned in self.methods.items()}

    def table(self) -> pd.DataFrame:
        """Return one row for each setting, the best of each method first.

        Columns are method, setting, the primary measure (such as accuracy), seconds, ended.
        """
        rows = [
            (name, words(t.setting), tuned.reached(t), t.seconds, t.ended)
            for name, tuned in self.methods.items()
            for t in sorted(tuned.tried, key=lambda t: -t.score)
        ]
        return pd.DataFrame(rows, columns=["method", "setting", self.measure.name, "seconds", "ended"])

    def start(self, seeds: Sequence[int], jobs: int | None = None, partitions: Sequence[int] = ()) -> Started:
        """Plan and store the comparison of the methods at their best settings."""
        store, tried = RunStore(self.folder), [t for tuned in self.methods.values() for t in tuned.tried]
        check_seeds([*seeds, *partitions], (store.run(run).seed for t in tried for run in t.runs))
        planned = cross(self.base, list(self.methods), seeds, partitions=partitions)
        started = start(at_best(self.base, self.methods, planned), self.data, self.folder, jobs)
        for number, plan in started.waiting.items():
            if plan:
                started.runs.store.add_facts(number, {"tuned": self.methods[plan.experiment.name].facts()})
        return started

    def compare(self, seeds: int | Sequence[int] = 5, jobs: int | None = None, progress: ShowProgress = True) -> Runs:
        """Compare the methods on new seeds, each at its best setting."""
        return execute(self.start(seeds_from(seeds, self.base.training.seed), jobs), caller_of(progress))


@dataclass(frozen=True, repr=False, eq=False)
class Dealt(Shown):
    """The result of `fedskew.clients`: a data set and its partition."""

    data: Dataset
    partition: Partition

    @property
    def heading(self) -> str:  # type: ignore[override]
        sizes = self.partition.sizes
        return f"{self.data.name}: {len(sizes)} clients with {sizes.min():,} to {sizes.max():,} rows"

    def table(self) -> pd.DataFrame:
        """Return the number of rows of each client by class; without classes, by stratum (`Dataset.strata`)."""
        strata, names = self.data.strata
        frame = pd.DataFrame(self.partition.label_counts(strata, len(names)), columns=list(names))
        frame.insert(0, "client", list(self.partition.names))
        return frame.assign(rows=self.partition.sizes)

    def plot(self) -> Figure:
        """Draw clients (down) by classes (across); a darker cell has more rows."""
        from fedskew.report.draw import draw_partition

        rows = self.table().drop(columns="rows").reset_index(names="number")
        long = rows.melt(id_vars=["number", "client"], var_name="label", value_name="rows")
        columns = {"number": "client", "client": "client_name"}
        return self_showing(draw_partition(long.rename(columns=columns), len(self.partition)))

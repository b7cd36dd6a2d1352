"""Numbers of one stored run that claims are about: ``accuracy``, ``rounds-to:0.8``, ``relative-drift`` and so on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.measure import registry
from fedskew.measure.registry import OF_MODELS, Measure, primary
from fedskew.measure.statistics import Floats
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd

NAN = math.nan
SETTLED = 5
"""Rounds after which clients' losses are compared (From IID to Non-IID, Figure 12)."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The measurements of one run, as far as it came."""

    record: RunRecord
    frame: pd.DataFrame  # round, split, name, value, of no client
    clients: (
        pd.DataFrame
    )  # round, client, name, value, of the clients' local models; of layers, whose number is the client's

    @property
    def status(self) -> str:
        return self.record.status

    def curve(self, split: str, *names: str) -> Floats:
        """The values in order of rounds; several names are added up."""
        found = self.frame[(self.frame["split"] == split) & self.frame["name"].isin(names)]
        values: Floats = found.groupby("round")["value"].sum(min_count=1).to_numpy(dtype=float)
        return values

    def values(self, measure: Measure) -> Floats:
        """The measure after each round; models before training do not count."""
        return self.curve(measure.split, *measure.of)[1 if measure.split in OF_MODELS else 0 :] * measure.factor

    def layer(self, last: bool) -> Floats:
        """The first or the last layer's mean cosine over all pairs of updates, in order of rounds."""
        rows = self.clients[self.clients["name"] == "cosine"]
        chosen = rows[rows["client"] == (rows["client"].max() if last else 0)]
        values: Floats = chosen.sort_values("round")["value"].to_numpy(dtype=float)
        return values


@dataclass(frozen=True)
class Numbers:
    """What an export holds of one run: quantities and curves by name, NaN where they do not exist."""

    status: str
    rounds: int
    seconds: float
    values: Mapping[str, float]
    curves: Mapping[str, Floats]

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Numbers:
        """From plain values, where null is NaN."""

        def number(value: float | None) -> float:
            return NAN if value is None else float(value)

        return cls(
            status=table["status"],
            rounds=table["rounds"],
            seconds=number(table["seconds"]),
            values={name: number(value) for name, value in table["values"].items()},
            curves={name: np.array([number(value) for value in row]) for name, row in table["curves"].items()},
        )


Run = Measured | Numbers


def measured(store: RunStore, record: RunRecord) -> Measured:
    """Read a run."""
    import pandas as pd

    frame = store.measurements([record.id], per_client=False)
    query = "SELECT round, client, name, value FROM measurements WHERE run=? AND split IN ('local-model', 'layer')"
    return Measured(record, frame, pd.read_sql_query(query, store.db, params=[record.id]))


def last(values: Floats) -> float:
    return float(values[-1]) if len(values) else NAN


def mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else NAN


def least(values: Floats) -> float:
    return float(values.min()) if len(values) else NAN


def later_half(values: Floats) -> Floats:
    return values[len(values) // 2 :]


def deviation(values: Floats) -> float:
    return float(values.std()) if len(values) > 1 else NAN


def overfitting(values: Floats) -> float:
    return last(values) / least(values) - 1 if len(values) else NAN


def rises(values: Floats) -> float:
    """Share of the steps that go up."""
    return float((np.diff(values) > 0).mean()) if len(values) > 1 else NAN


def roughness(values: Floats) -> float:
    """Sum of absolute second differences over the range; 0 for a straight line."""
    width = float(np.ptp(values)) if len(values) > 2 else 0.0
    return float(np.abs(np.diff(values, 2)).sum()) / width if width > 0 else NAN


def trend(values: Floats) -> float:
    """Spearman's rank correlation with the round."""
    from scipy import stats

    return float(stats.spearmanr(np.arange(len(values)), values).statistic) if len(values) > 2 else NAN


def client_spread(run: Measured) -> float:
    """Standard deviation over the clients of their local models' losses, mean over the rounds after the fifth."""
    rows = run.clients[(run.clients["name"] == "loss") & (run.clients["round"] > SETTLED)]
    return float(rows.groupby("round")["value"].std(ddof=0).mean()) if len(rows) else NAN


def local_loss(run: Measured, early: bool) -> float:
    """Mean over the clients of their local models' losses on their own rows, in the first ten rounds or in the last one."""
    rows = run.clients[run.clients["name"] == "loss"]
    chosen = rows["round"] <= 10 if early else rows["round"] == rows["round"].max()
    return float(rows.loc[chosen, "value"].mean()) if len(rows) else NAN


def losses(run: Measured) -> Floats:
    return run.values(measures()["loss"])


def variance_fall(run: Measured) -> float:
    """The variance of accuracy over the clients after the last round over that after the first five."""
    deviations = run.curve("clients", "accuracy_std")[1:]
    return last(deviations) ** 2 / float(deviations[:5].mean()) ** 2 if len(deviations) else NAN


def partition(run: Measured, name: str) -> float:
    facts: dict[str, Any] = run.record.facts.get("partition", {})
    return float(facts.get(name, NAN))


QUANTITIES: dict[str, Callable[[Measured], float]] = {
    "fluctuation": lambda run: deviation(later_half(run.values(primary()))),
    "round-of-lowest-loss": lambda run: float(losses(run).argmin() + 1) if len(losses(run)) else NAN,
    "overfitting": lambda run: overfitting(losses(run)),
    "training-loss-rises": lambda run: rises(run.curve("clients", "loss_mean")),
    "test-loss-roughness": lambda run: roughness(losses(run)),
    "early-local-loss": lambda run: local_loss(run, early=True),
    "late-local-loss": lambda run: local_loss(run, early=False),
    "client-loss-spread": client_spread,
    "first-layer-cosine": lambda run: mean(run.layer(last=False)),
    "last-layer-cosine": lambda run: mean(run.layer(last=True)),
    "client-variance": lambda run: last(run.curve("clients", "accuracy_std")) ** 2,
    "early-client-variance": lambda run: mean(run.curve("clients", "accuracy_std")[1:][:5]) ** 2,
    "variance-fall": variance_fall,
    "label-distance": lambda run: partition(run, "label_distance"),
    "smallest-client": lambda run: partition(run, "smallest") / partition(run, "rows"),
}
"""Quantities that are no measure, nor a statistic of one."""

REDUCTIONS: dict[str, Callable[[Floats], float]] = {
    "last": last,
    "mean": mean,
    "max": lambda values: float(values.max()) if len(values) else NAN,
    "sum": lambda values: float(values.sum()),
}

STATISTICS: dict[str, Callable[[Floats], float]] = {
    "first": lambda values: float(values[0]) if len(values) else NAN,
    "last": last,
    "mean": mean,
    "lowest": least,
}
"""Statistics over the rounds, before the name of a measure: ``first-drift``. After it: ``drift-trend``."""

CURVES: dict[str, Callable[[Measured], Floats]] = {
    "first-layer-cosine": lambda run: run.layer(last=False),
    "last-layer-cosine": lambda run: run.layer(last=True),
}
"""Curves that are no measure."""


def measures() -> dict[str, Measure]:
    """The measures of a round by their names in claims: ``worst-client``."""
    named: dict[str, Measure] = {}
    for measure in registry.MEASURES:
        if measure.split in (*OF_MODELS, "round"):
            named.setdefault(measure.figure, measure)
    return named


def counted() -> set[str]:
    """Quantities that follow from the settings: the same in every seed, not by chance."""
    return {name for name, measure in measures().items() if measure.counted}


def reader(name: str) -> Callable[[Measured], float]:
    """Computes the quantity of that name from a run.

    ``rounds-to:0.8`` is the first round with that test accuracy, or one more than there are. Raises `BadInput` for an unknown name.
    """
    if name in QUANTITIES:
        return QUANTITIES[name]
    known = measures()
    if measure := known.get(name):
        return lambda run: REDUCTIONS[measure.reduce](run.values(measure))
    if name.startswith("rounds-to:"):
        return lambda run: rounds_to(run, float(name.partition(":")[2]))
    statistic, _, rest = name.partition("-")
    if statistic in STATISTICS and rest in known:
        return lambda run: STATISTICS[statistic](run.values(known[rest]))
    rest = name.removesuffix("-trend")
    if rest in known:
        return lambda run: trend(run.values(known[rest]))
    raise BadInput(f"claim: unknown quantity {name!r}; {suggestion(name, [*known, *QUANTITIES])}")


def rounds_to(run: Measured, level: float) -> float:
    reached = np.flatnonzero(run.values(primary()) >= level)
    return float(reached[0] + 1 if len(reached) else run.record.rounds + 1)


def quantity(name: str, run: Run) -> float:
    """The number of that name; raises `BadInput` for an unknown name, and for one that an export does not hold."""
    if not isinstance(run, Numbers):
        return reader(name)(run)
    require(name in run.values, f"claim: the export has no {name}; write it again with `fedskew reproduce --export`")
    return run.values[name]


def curve(name: str, run: Run) -> Floats:
    """A measure after each round; raises as `quantity` does."""
    if isinstance(run, Numbers):
        require(
            name in run.curves, f"claim: the export has no {name}; write it again with `fedskew reproduce --export`"
        )
        return run.curves[name]
    if name in CURVES:
        return CURVES[name](run)
    known = measures()
    require(name in known, f"claim: unknown curve {name!r}; {suggestion(name, [*known, *CURVES])}")
    return run.values(known[name])

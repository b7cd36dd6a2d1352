"""Numbers of one stored run that claims are about: ``accuracy``, ``rounds-to:0.8``, ``relative-drift`` and so on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.core.errors import BadInput, require, suggestion
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

    def curve(self, split: str, name: str) -> Floats:
        """The values in order of rounds."""
        found = self.frame[(self.frame["split"] == split) & (self.frame["name"] == name)]
        values: Floats = found.sort_values("round")["value"].to_numpy(dtype=float)
        return values

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


def accuracy(run: Measured) -> Floats:
    """Test accuracy after each round from the first on; the model before training does not count."""
    return run.curve("test", "accuracy")[1:]


def losses(run: Measured) -> Floats:
    return run.curve("test", "loss")[1:]


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


def variance_fall(run: Measured) -> float:
    """The variance of accuracy over the clients after the last round over that after the first five."""
    deviations = run.curve("clients", "accuracy_std")[1:]
    return last(deviations) ** 2 / float(deviations[:5].mean()) ** 2 if len(deviations) else NAN


def partition(run: Measured, name: str) -> float:
    facts: dict[str, Any] = run.record.facts.get("partition", {})
    return float(facts.get(name, NAN))


QUANTITIES: dict[str, Callable[[Measured], float]] = {
    "accuracy": lambda run: last(accuracy(run)),
    "best-accuracy": lambda run: float(accuracy(run).max()) if len(accuracy(run)) else NAN,
    "mean-accuracy": lambda run: mean(accuracy(run)),
    "fluctuation": lambda run: deviation(later_half(accuracy(run))),
    "loss": lambda run: last(losses(run)),
    "lowest-loss": lambda run: least(losses(run)),
    "round-of-lowest-loss": lambda run: float(losses(run).argmin() + 1) if len(losses(run)) else NAN,
    "overfitting": lambda run: overfitting(losses(run)),
    "training-loss-rises": lambda run: rises(run.curve("clients", "loss_mean")),
    "test-loss-roughness": lambda run: roughness(losses(run)),
    "early-local-loss": lambda run: local_loss(run, early=True),
    "late-local-loss": lambda run: local_loss(run, early=False),
    "client-loss-spread": client_spread,
    "drift": lambda run: mean(run.curve("round", "drift")),
    "first-drift": lambda run: float(run.curve("round", "drift")[0]),
    "last-drift": lambda run: last(run.curve("round", "drift")),
    "drift-trend": lambda run: trend(run.curve("round", "drift")),
    "divergence": lambda run: mean(run.curve("round", "divergence")),
    "first-divergence": lambda run: float(run.curve("round", "divergence")[0]),
    "last-divergence": lambda run: last(run.curve("round", "divergence")),
    "divergence-trend": lambda run: trend(run.curve("round", "divergence")),
    "relative-drift": lambda run: mean(run.curve("round", "relative_drift")),
    "cosine": lambda run: mean(run.curve("round", "cosine")),
    "first-layer-cosine": lambda run: mean(run.layer(last=False)),
    "last-layer-cosine": lambda run: mean(run.layer(last=True)),
    "update-norm": lambda run: mean(run.curve("round", "update_norm")),
    "update-amount": lambda run: float(run.curve("round", "update_amount").sum()),
    "megabytes": lambda run: float(
        (run.curve("round", "bytes_up").sum() + run.curve("round", "bytes_down").sum()) / 1e6
    ),
    "worst-client": lambda run: last(run.curve("clients", "accuracy_worst")),
    "client-variance": lambda run: last(run.curve("clients", "accuracy_std")) ** 2,
    "early-client-variance": lambda run: mean(run.curve("clients", "accuracy_std")[1:][:5]) ** 2,
    "variance-fall": variance_fall,
    "label-distance": lambda run: partition(run, "label_distance"),
    "smallest-client": lambda run: partition(run, "smallest") / partition(run, "rows"),
}
"""What a claim may be about. Means are over the rounds; what belongs to the end is after the last round."""

COUNTED = frozenset({"megabytes", "update-amount"})
"""Quantities that are counted: the same in every seed because of the settings, not by chance."""

CURVES: dict[str, Callable[[Measured], Floats]] = {
    "accuracy": accuracy,
    "loss": losses,
    "drift": lambda run: run.curve("round", "drift"),
    "divergence": lambda run: run.curve("round", "divergence"),
    "first-layer-cosine": lambda run: run.layer(last=False),
    "last-layer-cosine": lambda run: run.layer(last=True),
}
"""What a claim about every round may be about."""


def quantity(name: str, run: Run) -> float:
    """The number of that name; ``rounds-to:0.8`` is the first round of that test accuracy, or one more than there are.

    Raises `BadInput` for an unknown name, and for one that an export does not hold.
    """
    if isinstance(run, Numbers):
        require(
            name in run.values, f"claim: the export holds no {name}; write it again with `fedskew reproduce --export`"
        )
        return run.values[name]
    if name.startswith("rounds-to:"):
        reached = np.flatnonzero(accuracy(run) >= float(name.partition(":")[2]))
        return float(reached[0] + 1 if len(reached) else run.record.rounds + 1)
    if name not in QUANTITIES:
        raise BadInput(f"claim: unknown quantity {name!r}; {suggestion(name, QUANTITIES)}")
    return QUANTITIES[name](run)


def curve(name: str, run: Run) -> Floats:
    """As `quantity`."""
    if isinstance(run, Numbers):
        require(
            name in run.curves, f"claim: the export holds no {name}; write it again with `fedskew reproduce --export`"
        )
        return run.curves[name]
    if name not in CURVES:
        raise BadInput(f"claim: unknown curve {name!r}; {suggestion(name, CURVES)}")
    return CURVES[name](run)

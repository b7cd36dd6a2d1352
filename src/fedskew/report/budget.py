"""Comparisons at equal budgets: each run counts up to its last round within the budget.

Models are not measured after every round. If the last round within the budget has no measured model, an earlier model would
stand for the run, and the run would look too bad. Therefore the budget is lowered until the last round of every finished run
has a measured model. If no amount does this, the comparison is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.measure.registry import OF_MODELS, budgets

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Budget:
    """A budget: the ``amount`` of a cost (``of``). None stands for the smallest total of the finished runs."""

    of: str
    amount: float | None = None

    def __str__(self) -> str:
        return self.of if self.amount is None else f"{self.of}={self.amount:g}"


def budget_from(text: str) -> Budget:
    """Parse ``bytes`` or ``bytes=5e6``; raises `BadInput` for anything else."""
    of, equals, amount = text.partition("=")
    require(of in budgets(), f"budget: unknown {of!r}; {suggestion(of, budgets())}")
    if not equals:
        return Budget(of)
    try:
        value = float(amount)
    except ValueError:
        raise BadInput(f"budget: {amount!r} is not a number; write {of}=100") from None
    require(0 < value < math.inf, f"budget: {of} must be a finite number above 0, got {amount}")
    return Budget(of, value)


ROUNDING = 1 + 1e-9
"""Factor on budgets. With it, a sum that equals the budget except for rounding is within it."""


def within_budget(frame: pd.DataFrame, budget: Budget) -> pd.DataFrame:
    """Return the measurements of the rounds within the budget. The head of this module says how the budget is lowered.

    Raises `BadInput` if a finished run spent less than the budget, or if lowering it finds no measured models.
    """
    spent = spending(frame, budget)
    finished = frame.loc[frame["status"] == "finished", "run"].unique()
    own = spent[spent.index.get_level_values("run").isin(finished)]
    least = float(own.groupby("run").last().min())
    amount = least if budget.amount is None else budget.amount
    require(
        not least * ROUNDING < amount,
        f"budget: a run spent only {exact(least)} of {exact(amount)} {budget.of}; "
        f"write {budget.of}={exact(least)} or less",
    )
    possible = measured_everywhere(frame, own, least)
    lowered = possible[possible <= amount * ROUNDING]
    if not len(lowered):
        more = f"write {budget.of}={exact(possible[0])} or more, or " if len(possible) else ""
        raise BadInput(
            f"budget: at no amount up to {budget.of}={exact(amount)} has every run a measured model; "
            f"{more}run again with --set evaluation.every=1"
        )
    last = spent[spent <= lowered[-1] * ROUNDING].reset_index().groupby("run")["round"].max()
    return frame[frame["round"] <= frame["run"].map(last).fillna(0)]


def exact(value: float) -> str:
    """Format the number with six digits; with all digits if six are not exact."""
    return f"{value:g}" if float(f"{value:g}") == value else f"{value:.15g}"


def spending(frame: pd.DataFrame, budget: Budget) -> pd.Series[float]:
    """Return the amount that each run has spent up to and including each round, indexed by (run, round)."""
    costs = frame[(frame["split"] == "round") & frame["name"].isin(budgets()[budget.of])]
    require(len(costs) > 0, f"budget: these runs have not measured {budget.of}")
    spent = costs.groupby(["run", "round"])["value"].sum()
    if budget.of == "rounds":
        spent = spent * 0 + 1
    return spent.groupby("run").cumsum()


def measured_everywhere(frame: pd.DataFrame, spent: pd.Series[float], most: float) -> NDArray[np.floating]:
    """Return all amounts, up to ``most``, at which each run's last round within the amount has a measured model.

    ``spent`` comes from `spending`. The amounts are ascending, one for each such set of last rounds.
    """
    import pandas as pd

    models = frame.loc[frame["split"].isin(OF_MODELS), ["run", "round"]]
    measured = pd.Series(spent.index.isin(pd.MultiIndex.from_frame(models)), index=spent.index)
    amounts = np.unique(spent[measured & (spent <= most * ROUNDING)].to_numpy())
    everywhere = np.ones(len(amounts), dtype=bool)
    for run, own in spent.groupby("run"):
        last = np.searchsorted(own.to_numpy(), amounts * ROUNDING, side="right")
        everywhere &= np.concatenate([[False], measured[run].to_numpy()])[last]
    return amounts[everywhere]

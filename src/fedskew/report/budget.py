"""Equal terms by choice: every run is read at the last round at which a common budget is not yet overspent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedskew.core.errors import BadInput, require, suggestion

if TYPE_CHECKING:
    import pandas as pd

COSTS: dict[str, tuple[str, ...]] = {
    "rounds": ("local_steps",),
    "steps": ("local_steps",),
    "u": ("update_amount",),
    "bytes": ("bytes_up", "bytes_down"),
    "seconds": ("seconds",),
}
"""What a budget may be of -> the round's measurements that are added up; ``rounds`` are counted instead."""


@dataclass(frozen=True)
class Budget:
    """So much of ``of``; without an ``amount``, the least that any finished run spent in all."""

    of: str
    amount: float | None = None

    def __str__(self) -> str:
        return self.of if self.amount is None else f"{self.of}={self.amount:g}"


def budget_from(text: str) -> Budget:
    """``bytes`` or ``bytes=5e6``; raises `BadInput` for anything else."""
    of, equals, amount = text.partition("=")
    require(of in COSTS, f"budget: unknown {of!r}; {suggestion(of, COSTS)}")
    if not equals:
        return Budget(of)
    try:
        value = float(amount)
    except ValueError:
        raise BadInput(f"budget: {amount!r} is not a number; write {of}=100") from None
    require(0 < value < math.inf, f"budget: {of} must be a finite number above 0, got {amount}")
    return Budget(of, value)


def within(frame: pd.DataFrame, budget: Budget) -> pd.DataFrame:
    """The measurements of the rounds within the budget. Raises `BadInput` where a finished run cannot spend that much."""
    costs = frame[(frame["split"] == "round") & frame["name"].isin(COSTS[budget.of])]
    require(len(costs) > 0, f"budget: these runs have not measured {budget.of}")
    spent = costs.groupby(["run", "round"])["value"].sum()
    if budget.of == "rounds":
        spent = spent * 0 + 1
    spent = spent.groupby("run").cumsum()
    finished = frame.loc[frame["status"] == "finished", "run"].unique()
    totals = spent.groupby("run").last()
    least = float(totals[totals.index.isin(finished)].min())
    amount = least if budget.amount is None else budget.amount
    # sums of rounded numbers may miss a budget that they meet exactly
    enough = amount * (1 + 1e-9)
    require(
        not least < amount * (1 - 1e-9),
        f"budget: a run ended after {least:g} {budget.of}, before {amount:g} were spent; write {budget.of}={least:g} or less",
    )
    last = spent[spent <= enough].reset_index().groupby("run")["round"].max()
    return frame[frame["round"] <= frame["run"].map(last).fillna(0)]

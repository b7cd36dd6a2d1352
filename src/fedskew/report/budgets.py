"""Costs of runs: comparison at equal budgets, and what a run spends until it reaches a target."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.measure.registry import OF_MODELS, Measure, Measures, budgets

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
    if ("test", of) in Measures().stored:
        raise BadInput(
            f"budget: {of} is reached, not spent; --columns rounds_to_70,bytes_to_70 shows what each method spends to reach 70"
        )
    require(of in budgets(), f"budget: unknown {of!r}; {suggestion(of, budgets())}")
    if not equals:
        return Budget(of)
    try:
        value = float(amount)
    except ValueError:
        raise BadInput(f"budget: {amount!r} is not a number; write {of}=100") from None
    require(0 < value < math.inf, f"budget: {of} must be a finite number above 0, got {amount}")
    return Budget(of, value)


def check_rounds(budget: Budget | None, rounds: int) -> None:
    """Raise `BadInput` if runs of this number of rounds cannot spend the budget. Other costs are known only after training."""
    if budget and budget.of == "rounds" and budget.amount is not None and budget.amount > rounds:
        raise BadInput(
            f"budget: these runs have only {rounds} of {budget.amount:g} rounds; write rounds={rounds} or less"
        )


ROUNDING = 1 + 1e-9
"""Factor on budgets. With it, a sum that equals the budget except for rounding is within it."""


def within_budget(frame: pd.DataFrame, budget: Budget) -> pd.DataFrame:
    """Return the measurements of the rounds within the budget, which is lowered until each run's last round has a measured model.

    Raises `BadInput` if a finished run spent less than the budget, or if lowering it finds no measured models.
    """
    spent = spending(frame, budget)
    finished = frame.loc[frame["status"] == "finished", "run"].unique()
    of_finished = spent[spent.index.get_level_values("run").isin(finished)]
    least = float(of_finished.groupby("run").last().min())
    amount = least if budget.amount is None else budget.amount
    if least * ROUNDING < amount:
        raise BadInput(
            f"budget: a run spent only {exact(least)} of {exact(amount)} {budget.of}; "
            f"write {budget.of}={exact(least)} or less"
        )
    possible = measured_everywhere(frame, of_finished, least)
    lowered = possible[possible <= amount * ROUNDING]
    if not len(lowered):
        more = f"write {budget.of}={exact(possible[0])} or more, or " if len(possible) else ""
        raise BadInput(
            f"budget: up to {budget.of}={exact(amount)} there is no amount at which every run has a measured model; "
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
    require(len(costs) > 0, f"these runs have not measured {budget.of}")
    spent = costs.groupby(["run", "round"])["value"].sum()
    if budget.of == "rounds":
        spent = spent * 0 + 1
    return spent.groupby("run").cumsum()


def unit_of(cost: str) -> tuple[str, float]:
    """Return the unit in which views show a cost, and the factor on its amounts."""
    return ("MB", 1e-6) if cost == "bytes" else (cost, 1.0)


@dataclass(frozen=True)
class TargetCost:
    """A column such as ``bytes_to_70``: the cost (``of``, as in a `Budget`) until the model first reaches a ``level``.

    Shares (0..1) are reached in percent: 70 is 0.7. ``primary`` is the measure that reaches it, at rounds in which it was measured.
    """

    of: str
    level: float
    primary: Measure

    @cached_property
    def measure(self) -> Measure:
        """The column. It has one value for each run: infinity if the run never reaches the level."""
        level = f"{self.level:g} {self.primary.unit}".strip()
        title, factor = unit_of(self.of)
        edge = "most" if self.primary.better == "lower" else "least"
        return Measure(
            "target", f"{self.of}_to_{self.level:g}", f"{self.of} until {self.primary.label} is {level}", factor=factor,
            title=f"{title} to {level}", reduce="max", better="lower",
            remark=f"to {level}: until the first measured round with a {self.primary.label} of at {edge} {level}; "
            "a seed that never reaches it leaves no mean; costs before an --init do not count",
        )  # fmt: skip

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the column's value of each run whose models and costs were measured, as rows of a ``frame``."""
        models = self.primary.rows_in(frame)
        level = self.level / 100 if self.primary.unit == "%" else self.level
        reached = models[self.primary.sign * models["value"] >= self.primary.sign * level - abs(level) * (ROUNDING - 1)]
        met = reached.groupby("run")["round"].min()
        spent = spending(frame, Budget(self.of)).reset_index()
        before = spent[spent["round"] <= spent["run"].map(met)].groupby("run")["value"].max()
        # a model that reaches the level before it is trained has spent nothing
        values = before.reindex(spent["run"].unique(), fill_value=0.0).mask(
            lambda v: ~v.index.isin(met.index), math.inf
        )
        runs = models[models["run"].isin(values.index)].drop_duplicates("run")
        return runs.assign(split="target", name=self.measure.name, value=runs["run"].map(values))


TARGET = re.compile(r"([a-z]+)[_\- ]to[_\- ](-?\d+(?:\.\d+)?)")


def target_from(column: str, primary: Measure) -> TargetCost | None:
    """Parse ``bytes_to_70``; None for other columns. Raises `BadInput` for a share that is no percentage above 1."""
    parts = TARGET.fullmatch(column.lower())
    if not parts or parts[1] not in budgets():
        return None
    level = float(parts[2])
    if primary.unit == "%" and not 1 < level <= 100:
        raise BadInput(f"columns: {column}: {primary.title} is in percent here; write {parts[1]}_to_70")
    return TargetCost(parts[1], level, primary)


def measured_everywhere(frame: pd.DataFrame, spent: pd.Series[float], most: float) -> NDArray[np.floating]:
    """Return all amounts, up to ``most``, at which each run's last round within the amount has a measured model.

    ``spent`` comes from `spending`. The amounts are ascending, one for each such set of last rounds.
    """
    import pandas as pd

    models = frame.loc[frame["split"].isin(OF_MODELS), ["run", "round"]]
    measured = pd.Series(spent.index.isin(pd.MultiIndex.from_frame(models)), index=spent.index)
    amounts = np.unique(spent[measured & (spent <= most * ROUNDING)].to_numpy())
    everywhere = np.ones(len(amounts), dtype=bool)
    for run, spent_by_run in spent.groupby("run"):
        last = np.searchsorted(spent_by_run.to_numpy(), amounts * ROUNDING, side="right")
        everywhere &= np.concatenate([[False], measured[run].to_numpy()])[last]
    return amounts[everywhere]

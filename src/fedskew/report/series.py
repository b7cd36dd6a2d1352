"""Stored measurements as data frames: over rounds, seeds, clients and parts, and up to a budget."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.measure.registry import OF_MODELS, Measure, budgets, by_primary_metric, measures, primary, shown
from fedskew.measure.statistics import t_quantile
from fedskew.report.experiments import distinct, own_clients, parsed, pooled, shares_no_model
from fedskew.report.words import MISSING, listed
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray
    from pandas.core.groupby import SeriesGroupBy


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


def check_rounds(budget: Budget | None, rounds: int) -> None:
    """Raise `BadInput` if runs of this number of rounds cannot spend the budget. Other costs are known only after training."""
    if budget and budget.of == "rounds" and budget.amount is not None:
        require(
            budget.amount <= rounds,
            f"budget: these runs have only {rounds} of {budget.amount:g} rounds; write rounds={rounds} or less",
        )


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


def read_after(table: pd.DataFrame, budget: Budget | None) -> str:
    """Say after which rounds the methods of the summary ``table`` are read."""
    if not budget:
        return "after the last round"
    rounds = dict(zip(table["method"], table["after_round"], strict=True))
    if len(set(rounds.values())) == 1:
        return f"after round {next(iter(rounds.values()))}, the last within the budget {budget} with measured models"
    own = listed([f"{method} after round {rounds_ or MISSING}" for method, rounds_ in rounds.items()])
    return f"within the budget {budget}, where all models were measured: {own}"


NAN = float("nan")
STOPPED = ("diverged", "interrupted", "failed")
"""Statuses of a run that ended before its last round."""


OBSERVATION = ["method", "partition_seed", "seed"]
"""Columns that name an independent observation."""


def methods(records: Sequence[RunRecord]) -> list[str]:
    """The methods in order of first appearance."""
    return list(dict.fromkeys(record.name for record in records))


def read(
    store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None, columns: Sequence[str] = ()
) -> pd.DataFrame:
    """The measurements that a view shows and that belong to no client, in one query; under a budget, only from rounds within it.

    With ``columns``, all measurements that belong to no client, because a column may name any (`named`).

    Numbers of clients are left out where one client holds all rows: its worst client compares with no other run's. Numbers of
    the server's model are left out where clients share no model: it is the initial one.

    Columns run, round, split, name, value, method, partition_seed, seed, status. Raises `BadInput` without records.
    """
    import pandas as pd

    require(bool(records), "there are no runs to report on")
    known = {r.id: (r.id, r.name, r.partition_seed, r.seed, r.status) for r in records}
    about = pd.DataFrame(list(known.values()), columns=["run", *OBSERVATION, "status"])
    viewed = [] if columns else sorted({name for m in measures() if m.shown or m.budget for name in m.of})
    frame = store.measurements(list(known), per_client=False, names=viewed).drop(columns="client")
    frame = frame.merge(about, on="run")
    frame = frame.astype({"split": "category", "name": "category"})  # several comparisons of each follow
    for without, parts in ((pooled, ["clients", "personal"]), (shares_no_model, ["test", "clients"])):
        runs = frame["run"].isin([record.id for record in records if without(record)])
        frame = frame[~(runs & frame["split"].isin(parts))]
    return within_budget(frame, budget) if budget else frame


def per_seed(frame: pd.DataFrame, measures: Sequence[Measure] = ()) -> pd.DataFrame:
    """The ``measures``, or those in the summary, for each observation among the finished runs; indexed by `OBSERVATION`."""
    import pandas as pd

    finished = frame[frame["status"] == "finished"]
    about = finished[["run", *OBSERVATION]].drop_duplicates().set_index("run")
    known = set(finished[["split", "name"]].drop_duplicates().itertuples(index=False, name=None))
    # pandas takes as long over nothing, which most measures have
    columns = {
        measure.key: per_run(finished, measure) if any((measure.split, name) in known for name in measure.of) else NAN
        for measure in measures or shown()
    }
    return about.join(pd.DataFrame(columns, index=about.index)).groupby(OBSERVATION).mean()


def per_run(frame: pd.DataFrame, measure: Measure) -> pd.Series[float]:
    """The measure of each run, its rounds reduced to one number."""
    runs = rows_with(frame, measure).sort_values("round", kind="stable").groupby("run")
    if measure.reduce == "last":
        return runs.tail(1).set_index("run")["value"] * measure.factor
    if measure.reduce == "sum":
        return runs["value"].sum(min_count=1) * measure.factor
    return runs["value"].agg(measure.reduce) * measure.factor


def rows_with(frame: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The rows of ``frame`` that hold the measure."""
    return frame[(frame["split"] == measure.split) & frame["name"].isin(measure.of)]


def last_rounds(frame: pd.DataFrame) -> dict[str, list[int]]:
    """By method: the last round of each finished run whose models were measured."""
    models = frame[(frame["status"] == "finished") & frame["split"].isin(OF_MODELS)]
    last = models.groupby(["method", "run"])["round"].max()
    return {str(method): own.tolist() for method, own in last.groupby("method")}


def curves(
    store: RunStore,
    records: Sequence[RunRecord],
    measure: Measure,
    budget: Budget | None = None,
    spread: str = "ci95",
) -> pd.DataFrame:
    """Return a measure over the rounds, with unfinished runs up to their last round.

    Columns are method, round, mean, low and high (ends of the ``spread`` over seeds; NaN for one seed), runs (number of seeds
    that reached the round), stopped (number of runs that ended early at this round). Methods are in order of first appearance.
    """
    records = distinct(records)
    return curves_of(read(store, records, budget), records, measure, spread)


def over_seeds(groups: SeriesGroupBy[float, tuple[Hashable, ...]], spread: str) -> pd.DataFrame:
    """Return ``mean``, ``count`` and ``half`` of each group of values.

    ``half`` is the half-width of the ``spread``, a key of `words.SPREADS`; NaN for one value.
    """
    with np.errstate(invalid="ignore"):
        table = groups.agg(["mean", "sem", "std", "count"])
    wide = {"ci95": table["sem"] * t_quantile(np.maximum(table["count"] - 1, 1))}
    return table.assign(half=wide.get(spread, table.get(spread)))


def curves_of(
    frame: pd.DataFrame, records: Sequence[RunRecord], measure: Measure, spread: str = "ci95"
) -> pd.DataFrame:
    """`curves` from measurements that are already read."""
    import pandas as pd

    found = rows_with(frame, measure).dropna(subset="value")
    if found.empty:  # most measures have no values, and the code below would take long all the same
        return pd.DataFrame(columns=["method", "round", "mean", "low", "high", "runs", "stopped"])
    ordered = found.assign(method=pd.Categorical(found["method"], categories=methods(records)))
    seeds = ordered.groupby([*OBSERVATION, "round"], observed=True)["value"].mean()
    table = over_seeds(seeds.groupby(["method", "round"], observed=True), spread)
    ends = ordered[ordered["status"].isin(STOPPED)].groupby(["run", "method"], observed=True)["round"].max()
    stopped = ends.reset_index().groupby(["method", "round"], observed=True).size()
    result = pd.DataFrame(
        {
            "mean": table["mean"],
            "low": table["mean"] - table["half"],
            "high": table["mean"] + table["half"],
            "runs": table["count"],
            "stopped": stopped.reindex(table.index, fill_value=0),
        }
    ).reset_index()
    return result.assign(method=result["method"].astype(str))


def curves_by_run(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the values of all curves for each run, with columns run, round, and one for each measure.

    ``frame`` comes from `tables.read`. Only rounds with measured models count, or all rounds if no run measured models.
    """
    import pandas as pd

    found = {m.key: rows_with(frame, m).groupby(["run", "round"])["value"].sum(min_count=1) for m in shown("curve")}
    table = pd.DataFrame({key: values for key, values in found.items() if len(values)})
    models = frame.loc[frame["split"].isin(OF_MODELS), ["run", "round"]].drop_duplicates()
    return (table[table.index.isin(pd.MultiIndex.from_frame(models))] if len(models) else table).reset_index()


OF_PARTS = """
SELECT run, round, split, client, name, value FROM measurements
WHERE run IN (SELECT value FROM json_each(?)) AND split IN ('layer', 'class', 'adaptation') ORDER BY run, round, split, client
"""
PARTS: dict[str, Literal["layers", "classes", "adaptation"]] = {
    "layer": "layers",
    "class": "classes",
    "adaptation": "adaptation",
}
"""By split: the key of the run's facts that lists the names of its parts."""


def by_part(store: RunStore, records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return the measurements of layers, classes, and numbers of rows to adapt on.

    Columns are run, round, split, part (its name), name, value.
    """
    import pandas as pd

    rows = store.query(OF_PARTS, [json.dumps([record.id for record in records])])
    table = pd.DataFrame(rows, columns=["run", "round", "split", "part", "name", "value"])
    names = {
        (r.id, split, k): part
        for r in records
        for split in PARTS
        for k, part in enumerate(r.facts.get(PARTS[split], []))
    }
    keys = zip(table["run"], table["split"], table["part"], strict=True)
    table["part"] = [names.get(key, str(key[2])) for key in keys]
    return table


LAST_OF_CLIENTS = """
SELECT runs.id AS run, m.client, m.value
FROM json_each(:rounds) wanted JOIN runs ON runs.id = CAST(wanted.key AS INTEGER)
JOIN measurements m ON m.run = runs.id AND m.round = (
  SELECT last.round FROM measurements last
  WHERE last.run = runs.id AND last.split = 'global-model' AND last.name = :name AND last.round <= wanted.value
  ORDER BY last.round DESC LIMIT 1
)
WHERE runs.status = 'finished' AND m.split = 'global-model' AND m.name = :name AND m.client IS NOT NULL
  AND m.value IS NOT NULL
"""
"""Values of the clients at each run's last measured round. ``rounds`` is a JSON object from run to the last allowed round."""


@by_primary_metric
def per_client(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> pd.DataFrame:
    """Return the global model's primary measure on each client's rows, at the last measured round of the finished runs.

    Runs with different partition seeds have different clients. Therefore clients are ranked within each run, from worst (1) to
    best, and each rank is averaged over the runs. Runs in which one client holds all rows, or clients share no model, are left out.
    Columns are method, rank, the measure, runs (number of runs with this rank), and client_name: the client that has the rank
    in all runs of the method, or an empty text.
    """
    import pandas as pd

    records = [record for record in distinct(records) if not (pooled(record) or shares_no_model(record))]
    score = primary().name
    ids = list(dict.fromkeys(record.id for record in records))
    marks = ",".join("?" * len(ids))
    last = pd.Series(sys.maxsize, index=ids)
    if budget:
        last = read(store, records, budget).groupby("run")["round"].max()
    with store.reading():
        table = pd.read_sql_query(LAST_OF_CLIENTS, store.db, params={"rounds": last.to_json(), "name": score})
        names = pd.read_sql_query(
            f"SELECT DISTINCT run, client, client_name FROM partitions WHERE run IN ({marks})", store.db, params=ids
        )
    table = table.merge(names, on=["run", "client"], how="left")
    table["client_name"] = table["client_name"].fillna(table["client"].astype(str))
    table["dealing"] = table["run"].map({record.id: dealing(record) for record in records})
    table["method"] = table["run"].map({record.id: record.name for record in records})
    table = table.sort_values(["run", "value", "client"], ascending=[True, primary().better != "lower", True])
    table["rank"] = table.groupby("run").cumcount() + 1
    table["method"] = pd.Categorical(table["method"], categories=methods(records))
    ranks = table.groupby(["method", "rank"], observed=True)
    result = ranks.agg(
        value=("value", "mean"),
        runs=("run", "size"),
        names=("client_name", "nunique"),
        dealings=("dealing", "nunique"),
        client_name=("client_name", "first"),
    ).reset_index()
    result["client_name"] = result["client_name"].where((result["names"] == 1) & (result["dealings"] == 1), "")
    return (
        result.drop(columns=["names", "dealings"])
        .rename(columns={"value": score})
        .assign(method=result["method"].astype(str))
    )


def dealing(record: RunRecord) -> str:
    """Return a text that is equal for runs with the same clients: data set, skews, and the partition seed if it matters."""
    table = parsed(record)
    seed = None if own_clients(record) else record.partition_seed
    return json.dumps([table.get("dataset"), table.get("skew", []), seed])

"""Data frames for figures: a measure over the rounds, over the clients, and over layers or classes."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedskew.measure.registry import OF_MODELS, Measure, by_primary_metric, primary, shown
from fedskew.measure.statistics import t_quantile
from fedskew.report.budget import Budget
from fedskew.report.experiments import distinct, own_clients, parsed, pooled, shares_no_model
from fedskew.report.tables import OBSERVATION, methods, read, rows_of
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd
    from pandas.core.groupby import SeriesGroupBy

STOPPED = ("diverged", "interrupted", "failed")
"""Statuses of a run that ended before its last round."""


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

    found = rows_of(frame, measure).dropna(subset="value")
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

    found = {m.key: rows_of(frame, m).groupby(["run", "round"])["value"].sum(min_count=1) for m in shown("curve")}
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

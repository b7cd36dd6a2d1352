"""Stored measurements as tables: the summary of methods, and the runs that did not finish.

Runs of one method with the same (partition seed, seed) are one observation, their mean, so that a repeated run does
not make an interval narrower than the evidence allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedskew.core.errors import require
from fedskew.measure.intervals import mean_interval
from fedskew.measure.registry import OF_MODELS, Measure, View, primary, shown
from fedskew.measure.statistics import alike, cliffs_delta, decided, hedges_g, holm, paired_p
from fedskew.report import words
from fedskew.report.budget import Budget, within
from fedskew.report.experiments import client_rows, distinct
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")
OBSERVATION = ["method", "partition_seed", "seed"]
"""Columns that name an independent observation."""


def methods(records: Sequence[RunRecord]) -> list[str]:
    """The methods in order of first appearance."""
    return list(dict.fromkeys(record.name for record in records))


def read(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> pd.DataFrame:
    """All measurements that belong to no client, in one query; under a budget, those of the rounds within it.

    Columns run, round, split, name, value, method, partition_seed, seed, status. Raises `BadInput` without records.
    """
    import pandas as pd

    require(bool(records), "there are no runs to report on")
    known = {r.id: (r.id, r.name, r.partition_seed, r.seed, r.status) for r in records}
    about = pd.DataFrame(list(known.values()), columns=["run", *OBSERVATION, "status"])
    frame = store.measurements(list(known), per_client=False).drop(columns="client").merge(about, on="run")
    return within(frame, budget) if budget else frame


def summary(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> pd.DataFrame:
    """One row a method, in order of first appearance; measures are taken over finished runs only.

    Runs of one method that differ in more than their seeds are several methods, named by what differs (`distinct`). A column for
    each measure that `fedskew.measure.registry` shows: its mean over seeds; with ``_half`` the half-width of the 95 % interval.

    ========================================  ==========================================================================
    column                                    meaning
    ========================================  ==========================================================================
    ``method``                                its name
    ``runs``, ``finished``, ``unfinished``    numbers of runs
    ``seeds``                                 distinct (partition seed, seed) among the finished
    ``after_round``                           the round, or rounds, after which its finished runs are read, as text
    ``client_rows``                           ``training`` or ``held-out``: the rows on which its clients are measured
    ``pairs``                                 (partition seed, seed) that this and the first method both finished
    ``difference``, ``difference_half``       primary measure minus the first method's over these pairs; no half-width where
                                              they do not vary
    ``effect``                                the differences' Hedges's g: their mean in standard deviations
    ``cliffs_delta``                          share of pairs of seeds that it wins minus share that it loses, -1..1
    ``p``, ``comparisons``                    p of the t test of these differences, after Holm's correction over ``comparisons``
    ``verdict``                               higher or lower if ``p`` is below 0.05, else undecided; empty for the first
    ========================================  ==========================================================================

    A number that does not exist is NaN.
    """
    records = distinct(records)
    return summarise(read(store, records, budget), records)


def summarise(frame: pd.DataFrame, records: Sequence[RunRecord]) -> pd.DataFrame:
    """`summary` from measurements that are already read."""
    import pandas as pd

    seeds = per_seed(frame)
    order = methods(records)
    read_after = last_rounds(frame)
    rows = []
    for method in order:
        runs = [record for record in records if record.name == method]
        statuses = [record.status for record in runs]
        own = of_method(seeds, method)
        row: words.Row = {
            "method": method,
            "runs": len(statuses),
            "finished": statuses.count("finished"),
            "unfinished": len(statuses) - statuses.count("finished"),
            "seeds": len(own),
            "client_rows": client_rows(runs[0]),
            "after_round": words.ranges(read_after.get(method, [])),
        }
        for measure in shown():
            row[measure.key], half = interval(own[measure.key])
            if measure.interval:
                row[f"{measure.key}_half"] = half
        row |= {
            "pairs": len(own),
            "difference": NAN,
            "difference_half": NAN,
            "effect": NAN,
            "cliffs_delta": NAN,
            "p": NAN,
        }
        if method != order[0]:
            own_values, first = own[primary().key], of_method(seeds, order[0])[primary().key]
            paired = (own_values - first).dropna()
            row["pairs"] = len(paired)
            row["difference"], row["difference_half"] = interval(paired)
            if row["pairs"] > 1 and row["difference"] != 0 and alike(paired.to_numpy()):
                row["difference_half"] = NAN
            row["effect"], row["p"] = hedges_g(paired.tolist()), paired_p(paired.tolist())
            row["cliffs_delta"] = cliffs_delta(*(part.loc[paired.index].tolist() for part in (own_values, first)))
        rows.append(row)
    table = pd.DataFrame(rows)
    table["comparisons"] = int(table["p"].notna().sum())
    table["p"] = holm(table["p"].tolist())
    table["verdict"] = [
        "" if method == order[0] else decided(p, difference)
        for method, p, difference in zip(table["method"], table["p"], table["difference"], strict=True)
    ]
    return table


def per_seed(frame: pd.DataFrame) -> pd.DataFrame:
    """The measures in the summary for each observation among the finished runs; indexed by `OBSERVATION`."""
    import pandas as pd

    finished = frame[frame["status"] == "finished"]
    columns = {measure.key: per_run(finished, measure) for measure in shown()}
    about = finished[["run", *OBSERVATION]].drop_duplicates().set_index("run")
    return about.join(pd.DataFrame(columns)).groupby(OBSERVATION).mean()


def per_run(frame: pd.DataFrame, measure: Measure) -> pd.Series[float]:
    """The measure of each run, its rounds reduced to one number."""
    runs = rows_of(frame, measure).sort_values("round", kind="stable").groupby("run")
    if measure.reduce == "last":
        return runs.tail(1).set_index("run")["value"] * measure.factor
    if measure.reduce == "sum":
        return runs["value"].sum(min_count=1) * measure.factor
    return runs["value"].agg(measure.reduce) * measure.factor


def rows_of(frame: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The rows of ``frame`` that hold the measure."""
    return frame[(frame["split"] == measure.split) & frame["name"].isin(measure.of)]


def columns(table: pd.DataFrame, view: View) -> list[Measure]:
    """The measures in a ``view`` of a summary: the primary one, and those that a method has a number of."""
    return [m for m in shown() if m == primary() or (view in m.shown and table[m.key].notna().any())]


def last_rounds(frame: pd.DataFrame) -> dict[str, list[int]]:
    """By method: the last round of each finished run whose models were measured."""
    models = frame[(frame["status"] == "finished") & frame["split"].isin(OF_MODELS)]
    last = models.groupby(["method", "run"])["round"].max()
    return {str(method): own.tolist() for method, own in last.groupby("method")}


def of_method(seeds: pd.DataFrame, method: str) -> pd.DataFrame:
    """The rows of one method, indexed by (partition_seed, seed)."""
    return seeds[seeds.index.get_level_values("method") == method].droplevel("method")


def interval(values: pd.Series[float]) -> tuple[float, float]:
    """`mean_interval` of the numbers that exist; (NaN, NaN) if none does."""
    existing = values.dropna()
    return mean_interval(existing.tolist()) if len(existing) else (NAN, NAN)


def unfinished(records: Sequence[RunRecord]) -> pd.DataFrame:
    """The runs that are not finished: columns method, run, status, rounds_done, rounds, message."""
    import pandas as pd

    rows = [(r.name, r.id, r.status, r.rounds_done, r.rounds, r.message) for r in records if r.status != "finished"]
    return pd.DataFrame(rows, columns=["method", "run", "status", "rounds_done", "rounds", "message"])

"""Stored measurements as tables: the summary of methods, curves over rounds, accuracy by client, what did not finish.

Runs of one method with the same (partition seed, seed) are one observation, their mean, so that a repeated run does
not make an interval narrower than the evidence allows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.core.errors import require
from fedskew.measure.intervals import mean_interval
from fedskew.measure.statistics import alike, cliffs_delta, decided, hedges_g, holm, paired_p
from fedskew.report import words
from fedskew.report.budget import MODELS, Budget, within
from fedskew.report.experiments import client_rows, distinct, parsed
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")
OBSERVATION = ["method", "partition_seed", "seed"]
"""What makes an independent observation."""

STOPPED = ("diverged", "interrupted", "failed")
"""States of a run that ended before its last round."""

PER_RUN: dict[str, tuple[str, str, str]] = {
    "accuracy": ("test", "accuracy", "last"),
    "best_accuracy": ("test", "accuracy", "max"),
    "worst_client": ("clients", "accuracy_worst", "last"),
    "personal": ("personal", "accuracy_mean", "last"),
    "worst_personal": ("personal", "accuracy_worst", "last"),
    "drift": ("round", "drift", "mean"),
    "divergence": ("round", "divergence", "mean"),
    "megabytes_up": ("round", "bytes_up", "sum"),
    "megabytes_down": ("round", "bytes_down", "sum"),
    "seconds": ("round", "seconds", "sum"),
    "epsilon": ("round", "epsilon", "last"),
}
"""Column of the summary -> split, name, and what is taken over the rounds of a run."""

WITH_INTERVAL = ("accuracy", "worst_client", "personal", "worst_personal", "drift", "divergence")
MEGABYTE = 1e6


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

    Runs of one method that differ in more than their seeds are several methods, named by what differs (`distinct`).

    ========================================  ==========================================================================
    column                                    meaning
    ========================================  ==========================================================================
    ``method``                                its name
    ``runs``, ``finished``, ``unfinished``    numbers of runs
    ``seeds``                                 distinct (partition seed, seed) among the finished
    ``after_round``                           the round, or rounds, after which its finished runs are read, as text
    ``client_rows``                           ``training`` or ``held-out``: the rows on which its clients are measured
    ``accuracy``, ``accuracy_half``           test accuracy after the last round, 0..1: mean over seeds, half-width
    ``best_accuracy``                         test accuracy of each run's best round, 0..1: mean
    ``worst_client``, ``worst_client_half``   accuracy of the worst client after the last round, 0..1
    ``personal``, ``personal_half``           accuracy of the clients' personal models after the last round, 0..1: their mean
    ``worst_personal``, with ``_half``        and the worst of them; NaN where no personal models were measured
    ``drift``, ``drift_half``                 mean over the rounds of the example-weighted drift
    ``divergence``, ``divergence_half``       mean over the rounds of the uniform divergence
    ``megabytes_up``, ``megabytes_down``      1e6 bytes sent in a whole run: mean
    ``seconds``                               time of a whole run: mean
    ``epsilon``                               privacy loss of a whole run, at the method's delta: mean; NaN if not bounded
    ``pairs``                                 (partition seed, seed) that this and the first method both finished
    ``difference``, ``difference_half``       accuracy minus the first method's over these pairs, in -1..1; no half-width where
                                              they do not vary
    ``effect``                                the differences' Hedges's g: their mean in standard deviations
    ``cliffs_delta``                          how much more often its seeds' accuracies win than the first's, -1..1
    ``p``, ``comparisons``                    of the t test of these differences, times Holm's correction for so many
    ``verdict``                               higher or lower if ``p`` is below 0.05, else undecided; empty for the first
    ========================================  ==========================================================================

    Half-widths are those of 95 % intervals. A number that does not exist is NaN.
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
        row: dict[str, Any] = {
            "method": method,
            "runs": len(statuses),
            "finished": statuses.count("finished"),
            "unfinished": len(statuses) - statuses.count("finished"),
            "seeds": len(own),
            "client_rows": client_rows(runs[0]),
            "after_round": words.ranges(read_after.get(method, [])),
        }
        for column in PER_RUN:
            row[column], half = interval(own[column])
            if column in WITH_INTERVAL:
                row[f"{column}_half"] = half
        row |= {
            "pairs": len(own),
            "difference": NAN,
            "difference_half": NAN,
            "effect": NAN,
            "cliffs_delta": NAN,
            "p": NAN,
        }
        if method != order[0]:
            first = of_method(seeds, order[0])["accuracy"]
            paired = (own["accuracy"] - first).dropna()
            row["pairs"] = len(paired)
            row["difference"], row["difference_half"] = interval(paired)
            if row["pairs"] > 1 and row["difference"] != 0 and alike(paired.to_numpy()):
                row["difference_half"] = NAN
            row["effect"], row["p"] = hedges_g(paired.tolist()), paired_p(paired.tolist())
            row["cliffs_delta"] = cliffs_delta(
                own["accuracy"].loc[paired.index].tolist(), first.loc[paired.index].tolist()
            )
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
    """The columns of `PER_RUN` for each observation among the finished runs; indexed by `OBSERVATION`."""
    import pandas as pd

    finished = frame[frame["status"] == "finished"]
    columns = {}
    for column, (split, name, how) in PER_RUN.items():
        measured = finished[(finished["split"] == split) & (finished["name"] == name)]
        runs = measured.sort_values("round", kind="stable").groupby("run")
        if how == "last":
            columns[column] = runs.tail(1).set_index("run")["value"]
        elif how == "sum":
            columns[column] = runs["value"].sum(min_count=1)
        else:
            columns[column] = runs["value"].agg(how)
    about = finished[["run", *OBSERVATION]].drop_duplicates().set_index("run")
    table = about.join(pd.DataFrame(columns)).groupby(OBSERVATION).mean()
    return table.assign(
        megabytes_up=table["megabytes_up"] / MEGABYTE, megabytes_down=table["megabytes_down"] / MEGABYTE
    )


def last_rounds(frame: pd.DataFrame) -> dict[str, list[int]]:
    """By method: the last round of each finished run whose models were measured."""
    models = frame[(frame["status"] == "finished") & frame["split"].isin(MODELS)]
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


def curves(
    store: RunStore, records: Sequence[RunRecord], split: str, name: str, budget: Budget | None = None
) -> pd.DataFrame:
    """A measurement over the rounds, from every run as far as it came.

    Columns method, round, mean, low, high (95 % interval over seeds; NaN below two), runs (seeds that reached the
    round), stopped (runs that ended here before their last planned round). Methods in order of first appearance.
    """
    records = distinct(records)
    return curves_of(read(store, records, budget), records, split, name)


def curves_of(frame: pd.DataFrame, records: Sequence[RunRecord], split: str, name: str) -> pd.DataFrame:
    """`curves` from measurements that are already read."""
    import pandas as pd
    from scipy import stats

    measured = frame[(frame["split"] == split) & (frame["name"] == name)].dropna(subset="value")
    ordered = measured.assign(method=pd.Categorical(measured["method"], categories=methods(records)))
    seeds = ordered.groupby([*OBSERVATION, "round"], observed=True)["value"].mean()
    with np.errstate(invalid="ignore"):
        table = seeds.groupby(["method", "round"], observed=True).agg(["mean", "sem", "count"])
        half = table["sem"] * stats.t.ppf(0.975, np.maximum(table["count"] - 1, 1))
    ends = ordered[ordered["status"].isin(STOPPED)].groupby(["run", "method"], observed=True)["round"].max()
    stopped = ends.reset_index().groupby(["method", "round"], observed=True).size()
    result = pd.DataFrame(
        {
            "mean": table["mean"],
            "low": table["mean"] - half,
            "high": table["mean"] + half,
            "runs": table["count"],
            "stopped": stopped.reindex(table.index, fill_value=0),
        }
    ).reset_index()
    return result.assign(method=result["method"].astype(str))


LAST_CLIENT_ACCURACY = """
SELECT runs.id AS run, m.client, m.value AS accuracy
FROM json_each(?) wanted JOIN runs ON runs.id = CAST(wanted.key AS INTEGER)
JOIN measurements m ON m.run = runs.id AND m.round = (
  SELECT last.round FROM measurements last
  WHERE last.run = runs.id AND last.split = 'global-model' AND last.name = 'accuracy' AND last.round <= wanted.value
  ORDER BY last.round DESC LIMIT 1
)
WHERE runs.status = 'finished' AND m.split = 'global-model' AND m.name = 'accuracy' AND m.client IS NOT NULL
  AND m.value IS NOT NULL
"""
"""Of the runs in a JSON object, each with the last round that counts."""


OWN_CLIENTS = {"natural", "from-folder"}
"""Skews that deal the same clients under every partition seed."""


def per_client(store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None) -> pd.DataFrame:
    """Accuracy of the global model on each client's data at the last measured round of the finished runs, within the budget.

    Clients are not the same in runs with different partition seeds, so they are ranked within each run from worst (1)
    to best, and each rank is averaged over the runs that have it. Columns method, rank, accuracy (0..1), runs,
    client_name (where one and the same client holds the rank in all runs of the method, else empty: a number names one
    client only under one partition seed, unless the partition brings its own names).
    """
    import pandas as pd

    records = distinct(records)
    ids = list(dict.fromkeys(record.id for record in records))
    marks = ",".join("?" * len(ids))
    last = pd.Series(sys.maxsize, index=ids)
    if budget:
        last = read(store, records, budget).groupby("run")["round"].max()
    with store.reading():
        table = pd.read_sql_query(LAST_CLIENT_ACCURACY, store.db, params=[last.to_json()])
        names = pd.read_sql_query(
            f"SELECT DISTINCT run, client, client_name FROM partitions WHERE run IN ({marks})", store.db, params=ids
        )
    table = table.merge(names, on=["run", "client"], how="left")
    table["client_name"] = table["client_name"].fillna(table["client"].astype(str))
    table["dealing"] = table["run"].map({record.id: dealing(record) for record in records})
    table["method"] = table["run"].map({record.id: record.name for record in records})
    table = table.sort_values(["run", "accuracy", "client"])
    table["rank"] = table.groupby("run").cumcount() + 1
    table["method"] = pd.Categorical(table["method"], categories=methods(records))
    ranks = table.groupby(["method", "rank"], observed=True)
    result = ranks.agg(
        accuracy=("accuracy", "mean"),
        runs=("run", "size"),
        names=("client_name", "nunique"),
        dealings=("dealing", "nunique"),
        client_name=("client_name", "first"),
    ).reset_index()
    result["client_name"] = result["client_name"].where((result["names"] == 1) & (result["dealings"] == 1), "")
    return result.drop(columns=["names", "dealings"]).assign(method=result["method"].astype(str))


def dealing(record: RunRecord) -> str:
    """What decides which client is which: the data, the skews and, unless these bring the data's own clients, the seed."""
    table = parsed(record)
    skews = table.get("skew", [])
    names = {skew.get("name") for skew in (skews if isinstance(skews, list) else [skews])}
    return json.dumps([table.get("dataset"), skews, None if names & OWN_CLIENTS else record.partition_seed])


MEASURING = ("evaluation", "measures", "scores of local models")
"""The parts of a run's time that a run without numbers would not need."""


def profiles(records: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """Seconds by what they went into, the longest first, for each method, all its runs together."""
    by_method: dict[str, dict[str, float]] = {}
    for record in records:
        for part, seconds in record.facts.get("profile", {}).items():
            own = by_method.setdefault(record.name, {})
            own[part] = own.get(part, 0.0) + seconds
    return {name: dict(sorted(own.items(), key=lambda item: -item[1])) for name, own in by_method.items()}


def measuring(records: Sequence[RunRecord]) -> str:
    """What measuring cost, as a sentence: its share of the rounds' time, by method, and how often models were measured."""
    shares = {}
    for name, own in profiles(records).items():
        rounds = sum(own.values()) - own.get("setting up", 0.0)
        if rounds > 0:
            shares[name] = sum(own.get(part, 0.0) for part in MEASURING) / rounds
    if not shares:
        return ""
    low, high = f"{100 * min(shares.values()):.0f}", f"{100 * max(shares.values()):.0f}"
    often = sorted({record.facts["measured_every"] for record in records if "measured_every" in record.facts})
    rest = (
        f"; models were measured every {words.listed([str(n) for n in often])} rounds (evaluation.every)"
        if often and often != [1]
        else ""
    )
    return f"Measuring took {low if low == high else f'{low} to {high}'} % of the time of the rounds{rest}."

"""Stored measurements as tables: the summary of methods, and the runs that did not finish.

Runs of one method with the same (partition seed, seed) are one observation, their mean, so that a repeated run does
not make an interval narrower than the evidence allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.text import plainly
from fedskew.measure.registry import OF_MODELS, Measure, View, by_primary_metric, measures, primary, shown, stored
from fedskew.measure.statistics import (
    LEVEL,
    Estimate,
    Verdict,
    alike,
    cliffs_delta,
    decided,
    equal_seeds_to_decide,
    equivalence_p,
    hedges_g,
    holm,
    mean_interval,
    paired_p,
)
from fedskew.report import intervals as test_rows
from fedskew.report import words
from fedskew.report.budget import Budget, within_budget
from fedskew.report.experiments import client_rows, distinct, pooled, shares_no_model
from fedskew.report.intervals import ByRow, margin, splits, tested_rows
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")
OTHER_COLUMNS = ("difference", "verdict", "seeds")
"""Columns of a table for readers that are no measures."""

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


@by_primary_metric
def summary(
    store: RunStore, records: Sequence[RunRecord], budget: Budget | None = None, columns: Sequence[str] = ()
) -> pd.DataFrame:
    """One row a method, in order of first appearance; measures are taken over finished runs only.

    Runs of one method that differ in more than their seeds are several methods, named by what differs (`distinct`). A column for
    each measure that `fedskew.measure.registry` shows, and for those named in ``columns``: its mean over seeds. With ``_half``:
    the half-width of the 95 % interval; ``_std``: the standard deviation over seeds; ``_sem``: the standard error of the mean.

    ========================================  ==========================================================================
    column                                    meaning
    ========================================  ==========================================================================
    ``method``                                its name
    ``runs``, ``finished``, ``unfinished``    numbers of runs
    ``seeds``                                 distinct (partition seed, seed) among the finished
    ``after_round``                           the round, or rounds, after which its finished runs are read, as text
    ``covers``                                what the primary measure's interval, ``difference_half`` and the verdict cover:
                                              ``seeds and test rows``, ``seeds and redrawn test rows``, ``seeds and folds of
                                              rows``, ``seeds and folds of clients``, or ``seeds`` under a budget and without
                                              stored rows
    ``client_rows``                           ``training`` or ``held-out``: the rows on which its clients are measured
    ``pairs``                                 (partition seed, seed) that this and the first method both finished
    ``difference``, ``difference_half``       primary measure minus the first method's over these pairs; no half-width where
                                              they do not vary
    ``effect``                                the differences' Hedges's g: their mean in standard deviations
    ``cliffs_delta``                          share of pairs of seeds that it wins minus share that it loses, -1..1
    ``p``, ``comparisons``                    p of the test of these differences, after Holm's correction over ``comparisons``
    ``seeds_to_decide``                       seeds that would decide a difference of this size at the observed variances;
                                              0 if no number of seeds does, because the test rows are too few
    ``margin``, ``p_equivalent``              `evaluation.margin`, and p of two one-sided tests that the difference is smaller,
                                              after Holm's correction
    ``verdict``                               equivalent if ``p_equivalent`` is below 0.05; higher or lower if ``p`` is; else
                                              undecided; empty without pairs
    ========================================  ==========================================================================

    A number that does not exist is NaN.
    """
    records = distinct(records)
    frame = read(store, records, budget, columns)
    return summarise(frame, records, rows_within(store, records, budget), named(frame, columns))


def rows_within(store: RunStore, records: Sequence[RunRecord], budget: Budget | None) -> ByRow:
    """The test rows' values of the last models; none under a budget, which may end the runs at an earlier round."""
    return {} if budget else test_rows.by_method(store, records)


def summarise(
    frame: pd.DataFrame, records: Sequence[RunRecord], by_row: ByRow, more: Sequence[Measure] = ()
) -> pd.DataFrame:
    """`summary` from measurements that are already read, with the test rows' values and ``more`` measures."""
    import pandas as pd

    measures = list({measure.key: measure for measure in (*shown(), *more)}.values())
    seeds = per_seed(frame, measures)
    order = methods(records)
    read_after = last_rounds(frame)
    stated = margin(records)
    limit = stated / 100 if primary().unit == "%" else stated
    drawn = splits(records)

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
        for measure in measures:
            found = spread(measure.key, own[measure.key])
            row |= found if measure.interval else {measure.key: found[measure.key]}
        whole = test_rows.estimate(by_row, method, "", own[primary().key].dropna().to_dict(), drawn)
        if whole:
            row[f"{primary().key}_half"] = whole.half()
        row |= {
            "covers": (drawn.covers if drawn else words.ROWS_TOO) if whole else words.SEEDS,
            "pairs": len(own),
            **dict.fromkeys((*DIFFERENCE, "cliffs_delta"), NAN),
        }
        if method != order[0]:
            own_values, first = own[primary().key], of_method(seeds, order[0])[primary().key]
            paired = (own_values - first).dropna()
            row["pairs"] = len(paired)
            whole = test_rows.estimate(by_row, method, order[0], paired.to_dict(), drawn)
            on_rows = tested_rows(records, drawn, len(paired))
            row |= compared(paired, whole, limit, on_rows, LEVEL / (len(order) - 1))
            row["cliffs_delta"] = cliffs_delta(*(part.loc[paired.index].tolist() for part in (own_values, first)))
        rows.append(row)
    table = pd.DataFrame(rows)
    table["comparisons"] = int(table["p"].notna().sum())
    table["margin"] = stated
    for tested in ("p", "p_equivalent"):
        table[tested] = holm(table[tested].tolist())
    table["verdict"] = ["" if row["method"] == order[0] else verdict(row) for row in words.rows_of(table)]
    return table


DIFFERENCE = (
    *("difference", "difference_half", "difference_std", "difference_sem"),
    *("effect", "p", "p_equivalent", "seeds_to_decide"),
)


def compared(
    paired: pd.Series[float], whole: Estimate | None, limit: float, tested: float, level: float
) -> dict[str, float]:
    """The columns `DIFFERENCE` of a method, from its ``paired`` differences from the first one.

    ``whole`` is their estimate over test rows, ``limit`` the margin, ``tested`` the number of test rows, as in `equivalence_p`, and
    ``level`` the level of each verdict of the page.
    """
    values = paired.tolist()
    row = dict.fromkeys(DIFFERENCE, NAN) | spread("difference", paired)
    if len(values) > 1 and row["difference"] != 0 and alike(paired.to_numpy()):
        row["difference_half"], row["seeds_to_decide"] = NAN, equal_seeds_to_decide(level)
    row["effect"], row["p"] = hedges_g(values), paired_p(values)
    if math.isfinite(limit):
        row["p_equivalent"] = equivalence_p(values, limit, tested)
    if whole and whole.half():
        row["difference_half"], row["p"] = whole.half(), max(whole.p(), row["p"])
        row["p_equivalent"] = max(row["p_equivalent"], whole.p_within(limit))
        needed = whole.seeds_to_decide(level)
        # equal differences need the number above, too
        row["seeds_to_decide"] = needed and float(np.fmax(needed, row["seeds_to_decide"]))
    return row


def verdict(row: words.Row) -> Verdict | Literal[""]:
    """The verdict of a row of the summary on its difference from the first method."""
    if not row["pairs"]:
        return ""
    return "equivalent" if row["p_equivalent"] < LEVEL else decided(row["p"], row["difference"])


def named(frame: pd.DataFrame, columns: Sequence[str]) -> list[Measure]:
    """The measures of these names: keys, titles, or names in the store; `OTHER_COLUMNS` are left out.

    A stored measure that the registry does not have, such as a metric of one's own, is read after the last round. Raises `BadInput`
    for any other name.
    """
    found = []
    known = [m for m in (*shown(), *stored().values()) if m.split in (*OF_MODELS, "round")]
    for column in columns:
        wanted = plainly(column)
        matches = [m for m in known if wanted in map(plainly, (m.key, m.title, f"{m.split}/{m.name}", m.name))]
        own = frame.loc[frame["name"].map(plainly) == wanted, ["split", "name"]].drop_duplicates()
        if matches:
            found.append(min(matches, key=lambda m: (plainly(m.key) != wanted, m.shown == ())))
        elif len(own):
            split, name = own.iloc[0]
            found.append(Measure(str(split), str(name), "a measure of one's own", reduce="last"))
        elif column not in OTHER_COLUMNS:
            raise BadInput(
                f"columns: unknown {column!r}; {suggestion(column, [*(m.key for m in known), *OTHER_COLUMNS])}"
            )
    return found


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
    return [
        m
        for m in shown()
        if m == primary()
        or (view in m.shown and table[m.key].notna().any() and not (m.split == "round" and (table[m.key] == 0).all()))
    ]


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """The table without the columns that hold nothing."""
    return table[table.columns[table.notna().any()]]


def last_rounds(frame: pd.DataFrame) -> dict[str, list[int]]:
    """By method: the last round of each finished run whose models were measured."""
    models = frame[(frame["status"] == "finished") & frame["split"].isin(OF_MODELS)]
    last = models.groupby(["method", "run"])["round"].max()
    return {str(method): own.tolist() for method, own in last.groupby("method")}


def of_method(seeds: pd.DataFrame, method: str) -> pd.DataFrame:
    """The rows of one method, indexed by (partition_seed, seed)."""
    return seeds[seeds.index.get_level_values("method") == method].droplevel("method")


def spread(key: str, values: pd.Series[float]) -> dict[str, float]:
    """Mean of the numbers that exist, half-width of its interval, standard deviation, standard error; NaN for none."""
    existing = [value for value in values.tolist() if not math.isnan(value)]
    mean, half = mean_interval(existing) if existing else (NAN, NAN)
    std = stdev(existing) if len(existing) > 1 else NAN
    return {key: mean, f"{key}_half": half, f"{key}_std": std, f"{key}_sem": std / math.sqrt(len(existing) or 1)}


def corrected(table: pd.DataFrame) -> list[str]:
    """A sentence on the methods of a summary that are undecided although their interval of differences excludes 0, if any are."""
    rows = [row for row in words.rows_of(table) if row["verdict"] == "undecided"]
    names = [row["method"] for row in rows if abs(row["difference"]) > row["difference_half"]]
    if not names:
        return []
    corrections = int(table["comparisons"].iloc[0])
    return [
        f"{words.listed(names)}: undecided although the interval excludes 0, by Holm's correction for {corrections} comparisons"
    ]


def on_verdicts(table: pd.DataFrame) -> list[str]:
    """Sentences on the verdicts of a summary: `corrected` and `undecided`."""
    return corrected(table) + undecided(table)


def undecided(table: pd.DataFrame) -> list[str]:
    """A sentence on what would decide the undecided differences of a summary, if that is known."""
    rows = [row for row in words.rows_of(table) if row["verdict"] == "undecided"]
    more = {row["method"]: int(row["seeds_to_decide"]) for row in rows if row["seeds_to_decide"] > row["pairs"]}
    never = [row["method"] for row in rows if row["seeds_to_decide"] == 0]
    covers = words.covers(table)
    runs = "runs of each method" if covers in (words.FOLDS, words.FOLDS_OF_CLIENTS) else "seeds"
    tested = "clients" if covers == words.FOLDS_OF_CLIENTS else "test rows"
    equal = {
        row["method"] for row in rows if row["difference"] and row["difference_std"] <= 1e-9 * abs(row["difference"])
    }
    parts = [
        f"all {runs} gave {method} the same difference, as with deterministic training; {seeds} {runs} would decide it"
        if method in equal
        else f"about {seeds} {runs} would decide {method}'s difference, if it is as large as here"
        for method, seeds in more.items()
    ]
    parts += (
        [f"more {runs} would not decide {words.listed(never)}: too few {tested} for a difference of this size"]
        if never
        else []
    )
    text = "; ".join(parts)
    return [text[:1].upper() + text[1:]] if parts else []


def unfinished(records: Sequence[RunRecord]) -> pd.DataFrame:
    """The runs that are not finished: columns method, run, status, rounds_done, rounds, message."""
    import pandas as pd

    rows = [(r.name, r.id, r.status, r.rounds_done, r.rounds, r.message) for r in records if r.status != "finished"]
    return pd.DataFrame(rows, columns=["method", "run", "status", "rounds_done", "rounds", "message"])

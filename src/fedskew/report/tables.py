"""The summary of methods: means, intervals over seeds and test rows, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.text import plainly
from fedskew.measure.registry import OF_MODELS, Measure, View, by_primary_metric, primary, shown, stored
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
    over_clients,
    over_common_rows,
    over_seeds_and_rows,
    over_splits,
    paired_p,
)
from fedskew.report import words
from fedskew.report.experiments import client_rows, distinct, folds_of, parsed, split
from fedskew.report.series import NAN, Budget, last_rounds, methods, per_seed, read
from fedskew.report.words import FOLDS, FOLDS_OF_CLIENTS, SPLITS, listed
from fedskew.store import test_rows
from fedskew.store.runs import RunRecord, RunStore
from fedskew.store.test_rows import Stored

if TYPE_CHECKING:
    import pandas as pd


def margin(records: Sequence[RunRecord]) -> float:
    """The difference that does not matter, of the runs that state one; NaN if none does. Raises `BadInput` if they differ."""
    stated = [parsed(record).get("evaluation", {}).get("margin") for record in records]
    found = sorted({*stated} - {None})
    require(
        len(found) < 2, f"these runs state several margins, {listed([f'{one:g}' for one in found])}; name runs of one"
    )
    return float(found[0]) if found else math.nan


FEWEST_ROWS, FEWEST_TESTED, FEWEST_CLIENTS = 500, 50, 4
"""Fewest rows, test rows of a split, and clients, for intervals from their own values (docs/explanations/statistics.md)."""


@dataclass(frozen=True)
class Splits:
    """Several test sets that seeds have drawn.

    ``covers`` says what an interval over them covers. ``ratio`` is the number of test rows for each training row, ``clients`` the
    number of folds of clients, or 0, and ``rows`` the number of all
    rows, or of all persons if a person has several.
    """

    covers: str
    ratio: float
    clients: int
    rows: float

    def over(self, values: Sequence[float], table: NDArray[np.float64] | None) -> Estimate:
        """The mean of the seeds' ``values``, with the interval of the rows' values ``table`` (seeds, units) where it is known.

        Few test rows say too little of their covariance: with fewer than `FEWEST_ROWS` rows, or `FEWEST_TESTED` a split, the
        interval is from `over_splits`.
        """
        if table is not None and self.clients and table.shape[1] >= FEWEST_CLIENTS:
            return over_clients(table, self.clients)
        if table is not None and not self.clients:
            tested = np.isfinite(table).sum(1)
            if tested.min() >= FEWEST_TESTED and tested.mean() * (1 + 1 / self.ratio) >= FEWEST_ROWS:
                return over_common_rows(table, self.ratio)
        return over_splits(values, self.ratio, self.clients - 1 if self.clients else math.inf)

    def tested(self, seeds: int) -> float:
        """The effective number of test rows of this number of seeds: a mean over as many rows has the same variance.

        Folds test each row equally often. Draws have rows in common by chance.
        """
        if self.covers != SPLITS:
            return self.rows
        own = self.rows * self.ratio / (1 + self.ratio)
        return 1 / (1 / (seeds * own) + (seeds - 1) / (seeds * self.rows))


def splits(records: Sequence[RunRecord]) -> Splits | None:
    """The test sets of the finished runs; None where they have the same, or their sizes are not known."""
    finished = [record for record in records if record.status == "finished"]
    sizes = [record.facts.get("data", {}) for record in finished]
    if len({split(record) for record in finished}) < 2 or not all("test_rows" in size for size in sizes):
        return None
    folds = [folds_of(record) for record in finished]
    of_clients = [found.number for found in folds if found and found.of_clients]
    ratios = [
        1 / (found.number - 1) if found and found.of_clients else size["test_rows"] / size["training_rows"]
        for found, size in zip(folds, sizes, strict=True)
    ]
    covers = SPLITS if None in folds else FOLDS_OF_CLIENTS if of_clients else FOLDS
    units = [1.0 if of_clients else size.get("test_units", size["test_rows"]) / size["test_rows"] for size in sizes]
    rows = [each * (size["test_rows"] + size["training_rows"]) for each, size in zip(units, sizes, strict=True)]
    return Splits(covers, float(np.mean(ratios)), min(of_clients, default=0), float(np.mean(rows)))


def tested_rows(records: Sequence[RunRecord], drawn: Splits | None, seeds: int) -> float:
    """The effective number of test rows of a comparison over ``seeds``; 0 if it is not known or the primary metric is no share."""
    if primary().unit != "%":
        return 0.0
    if drawn:
        return drawn.tested(seeds)
    sizes = [record.facts.get("data", {}) for record in records if record.status == "finished"]
    return float(min((size.get("test_units", size.get("test_rows", 0)) for size in sizes), default=0))


Seeds = tuple[int, int]
"""A run's partition seed and seed."""
ByRow = Mapping[str, Mapping[Seeds, Stored]]
"""By method and seeds: the values of the units of the test rows, averaged over runs with the same seeds."""


def by_method(store: RunStore, records: Sequence[RunRecord]) -> ByRow:
    """Read the values of the finished runs. Runs with equal seeds but different numbers of test rows are left out."""
    finished = [record for record in records if record.status == "finished"]
    found = test_rows.read(store, [record.id for record in finished])
    gathered: dict[str, dict[Seeds, list[Stored]]] = {}
    for record in finished:
        stored = found.get(record.id)
        if stored and stored.round == record.rounds:
            own = gathered.setdefault(record.name, {})
            own.setdefault((record.partition_seed, record.seed), []).append(stored)
    return {
        method: {
            seeds: several[0]._replace(values=np.mean([stored.values for stored in several], axis=0))
            for seeds, several in own.items()
            if len({len(stored.values) for stored in several}) == 1
        }
        for method, own in gathered.items()
    }


def estimate(
    by_row: ByRow, method: str, first: str, values: Mapping[Any, float], drawn: Splits | None = None
) -> Estimate | None:
    """Estimate the mean of a method's ``values`` by seeds; with ``first``, they are differences from that method.

    The interval covers seeds and test rows, or the test rows that seeds have ``drawn``. Returns None for fewer than two seeds,
    and if all seeds have the same test rows, but the rows' values are not known for each seed.
    """
    if len(values) < 2:
        return None
    rows = values_of_rows(by_row.get(method, {}), by_row.get(first, {}) if first else None, list(values))
    if drawn:
        return drawn.over(list(values.values()), table_of(rows))
    if not rows or len({len(row.values) for row in rows}) > 1 or len(rows[0].values) < 2:
        return None
    return over_seeds_and_rows(np.stack([row.values for row in rows]))


def values_of_rows(
    ours: Mapping[Seeds, Stored], first: Mapping[Seeds, Stored] | None, seeds: Sequence[Seeds]
) -> list[Stored]:
    """Return the rows' values of each seed, or their differences from ``first``; empty if a seed has none in the store."""
    sides = [ours] if first is None else [ours, first]
    found = [[side[key] for side in sides if key in side] for key in seeds]
    if any(len(own) < len(sides) or len({len(row.values) for row in own}) > 1 for own in found):
        return []
    return [
        own[0]._replace(values=own[0].values.astype(np.float64) - sum(row.values.astype(np.float64) for row in own[1:]))
        for own in found
    ]


def table_of(rows: Sequence[Stored]) -> NDArray[np.float64] | None:
    """Return the values as (seeds, units), with NaN where a seed does not test a unit; None if the units are not known."""
    parts = [(row.units, row.values) for row in rows if row.units is not None]
    if not parts or len(parts) < len(rows):
        return None
    if any(len(ids) == test_rows.MOST for ids, _ in parts):
        parts = [test_rows.by_unit(values, ids % test_rows.MOST) for ids, values in parts]
    every = np.unique(np.concatenate([ids for ids, _ in parts]))
    table = np.full((len(parts), len(every)), np.nan)
    for own, (ids, values) in zip(table, parts, strict=True):
        own[np.searchsorted(every, ids)] = values
    return table


OTHER_COLUMNS = ("difference", "verdict", "seeds")
"""Columns of a table for readers that are no measures."""


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
    return {} if budget else by_method(store, records)


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
        whole = estimate(by_row, method, "", own[primary().key].dropna().to_dict(), drawn)
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
            whole = estimate(by_row, method, order[0], paired.to_dict(), drawn)
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

"""The summary of methods: means, intervals over seeds and test rows, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.groups import grouped
from fedskew.core.text import Folds, capital, listed
from fedskew.measure import statistics
from fedskew.measure.registry import OF_MODELS, Measure
from fedskew.report import words
from fedskew.report.experiments import client_rows, folds_of, observations, parsed, split_of, stored_section
from fedskew.store import test_rows
from fedskew.store.runs import RunRecord, RunStore
from fedskew.store.test_rows import Stored

if TYPE_CHECKING:
    import pandas as pd


NAN = float("nan")

OBSERVATION = ["method", "partition_seed", "seed"]
"""Columns that name an independent observation."""

SEEDS, ROWS_TOO, SPLITS = "seeds", "seeds and test rows", "seeds and redrawn test rows"
FOLDS, FOLDS_OF_CLIENTS = "seeds and folds of rows", "seeds and folds of clients"
"""What an interval of the primary measure covers."""


BY_SPLITS = " (corrected resampled t test, Nadeau and Bengio 2003)"
COVERED = {
    ROWS_TOO: "the seeds and the choice of the test rows",
    SPLITS: "the seeds and the test rows that each seed draws" + BY_SPLITS,
    FOLDS: "the seeds and the choice of the rows, as each seed tests one fold" + BY_SPLITS,
    FOLDS_OF_CLIENTS: "the seeds and the choice of the clients, as each seed tests one fold" + BY_SPLITS,
}
"""What an interval covers, as a part of a sentence."""


def margin(records: Sequence[RunRecord]) -> float:
    """The margin of the runs, a difference that does not matter; NaN if no run states one. Raises `BadInput` if they differ."""
    stated = (stored_section(record, "evaluation").get("margin") for record in records)
    margins = sorted({value for value in stated if isinstance(value, int | float)})
    names = listed([f"{value:g}" for value in margins])
    require(len(margins) < 2, f"these runs state several margins, {names}; name runs with the same margin")
    return float(margins[0]) if margins else math.nan


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

    def over(self, values: Sequence[float], table: NDArray[np.float64] | None) -> statistics.Estimate:
        """The mean of the seeds' ``values``, with the interval of the rows' values ``table`` (seeds, units) where it is known.

        Few test rows say too little of their covariance: with fewer than `FEWEST_ROWS` rows, or `FEWEST_TESTED` a split, the
        interval is from `over_splits`.
        """
        if table is not None and self.clients and table.shape[1] >= FEWEST_CLIENTS:
            return statistics.over_clients(table, self.clients)
        if table is not None and not self.clients:
            tested = np.isfinite(table).sum(1)
            if tested.min() >= FEWEST_TESTED and tested.mean() * (1 + 1 / self.ratio) >= FEWEST_ROWS:
                return statistics.over_common_rows(table, self.ratio)
        return statistics.over_splits(values, self.ratio, self.clients - 1 if self.clients else math.inf)

    def tested(self, seeds: int) -> float:
        """The effective number of test rows of this number of seeds: a mean over as many rows has the same variance.

        Folds test each row equally often. Draws have rows in common by chance.
        """
        if self.covers != SPLITS or not seeds:
            return self.rows
        each = self.rows * self.ratio / (1 + self.ratio)
        return 1 / (1 / (seeds * each) + (seeds - 1) / (seeds * self.rows))


def measured_rows(record: RunRecord, split: str) -> tuple[Mapping[str, Any], str, Folds | None]:
    """Return the sizes of a run's training and test rows, a text that other test rows would change, and the folds.

    For the split ``sites``, the test rows may be rows that the clients hold out. Then the partition seed draws them.
    """
    drawn, dealt = split_of(parsed(record)), record.facts.get("partition", {})
    if split == "sites" and record.facts.get("sites", {}).get("rows") == "held-out":
        sizes = {"training_rows": dealt["rows"], "test_rows": dealt["held_out"]}
        return sizes, f"{drawn} {record.partition_seed}", None
    return record.facts.get("data", {}), drawn, folds_of(record)


def splits(records: Sequence[RunRecord], split: str = "test") -> Splits | None:
    """The test sets of the finished runs. None if all runs have the same one, or if their sizes are not known."""
    finished = [measured_rows(record, split) for record in records if record.status == "finished"]
    sizes, folds = [size for size, _, _ in finished], [of_run for _, _, of_run in finished]
    if len({draw for _, draw, _ in finished}) < 2 or not all("test_rows" in size for size in sizes):
        return None
    of_clients = [each.number for each in folds if each and each.of_clients]
    ratios = [
        1 / (each.number - 1) if each and each.of_clients else size["test_rows"] / size["training_rows"]
        for each, size in zip(folds, sizes, strict=True)
    ]
    covers = SPLITS if None in folds else FOLDS_OF_CLIENTS if of_clients else FOLDS
    units = [1.0 if of_clients else size.get("test_units", size["test_rows"]) / size["test_rows"] for size in sizes]
    rows = [each * (size["test_rows"] + size["training_rows"]) for each, size in zip(units, sizes, strict=True)]
    return Splits(covers, float(np.mean(ratios)), min(of_clients, default=0), float(np.mean(rows)))


def tested_rows(records: Sequence[RunRecord], drawn: Splits | None, seeds: int, split: str) -> float:
    """The effective number of test rows of a comparison over ``seeds``; 0 if it is not known."""
    if drawn:
        return drawn.tested(seeds)
    sizes = [measured_rows(record, split)[0] for record in records if record.status == "finished"]
    return float(min((size.get("test_units", size.get("test_rows", 0)) for size in sizes), default=0))


Seeds = tuple[int, int]
"""A run's partition seed and seed."""
ByRow = Mapping[str, Mapping[Seeds, Stored]]
"""By method and seeds: the values of the units of the test rows, averaged over runs with the same seeds."""


def by_method(store: RunStore, records: Sequence[RunRecord], split: test_rows.Split = "test") -> ByRow:
    """Read the values of the finished runs. Runs with equal seeds but different numbers of test rows are left out."""
    finished, observed = {record.id: record for record in records if record.status == "finished"}, observations(records)
    read = test_rows.read(store, list(finished), split).items()
    used = [(finished[run].name, (observed[run], row)) for run, row in read if row.round == finished[run].used_round]
    return {
        method: {
            seeds: several[0]._replace(values=np.mean([stored.values for stored in several], axis=0))
            for seeds, several in grouped(of_method).items()
            if len({len(stored.values) for stored in several}) == 1
        }
        for method, of_method in grouped(used).items()
    }


def estimate(
    by_row: ByRow, method: str, first: str, values: Mapping[Any, float], drawn: Splits | None = None
) -> statistics.Estimate | None:
    """Estimate the mean of a method's ``values`` by seeds; with ``first``, they are differences from that method.

    The interval covers seeds and test rows, or the test rows that seeds have ``drawn``. Returns None for fewer than two seeds,
    and if all seeds have the same test rows, but the rows' values are not known for each seed.
    """
    rows = values_of_rows(by_row.get(method, {}), by_row.get(first, {}) if first else None, list(values))
    return over_rows(rows, list(values.values()), drawn)


def over_rows(rows: Sequence[Stored], values: Sequence[float], drawn: Splits | None) -> statistics.Estimate | None:
    """Estimate the mean of the seeds' ``values``, from the values of their ``rows`` (empty: not known). None as in `estimate`."""
    if len(values) < 2:
        return None
    if drawn:
        return drawn.over(values, table_of(rows))
    if not rows or len({len(row.values) for row in rows}) > 1 or len(rows[0].values) < 2:
        return None
    return statistics.over_seeds_and_rows(np.stack([row.values for row in rows]))


def values_of_rows(
    ours: Mapping[Seeds, Stored], first: Mapping[Seeds, Stored] | None, seeds: Sequence[Seeds]
) -> list[Stored]:
    """Return the rows' values of each seed, or their differences from ``first``.

    Empty if a seed has none in the store, or if the two were measured on different rows.
    """
    sides = [ours] if first is None else [ours, first]
    rows = []
    for key in seeds:
        parts = [side[key] for side in sides if key in side]
        if len(parts) < len(sides) or not all(same_rows(part, parts[0]) for part in parts):
            return []
        values = [part.values.astype(np.float64) for part in parts]
        rows.append(ours[key]._replace(values=values[0] - sum(values[1:])))
    return rows


def same_rows(one: Stored, other: Stored) -> bool:
    """Return whether two models were measured on the same rows, as far as the store knows them."""
    return len(one.values) == len(other.values) and (
        one.units is None or other.units is None or np.array_equal(one.units, other.units)
    )


def table_of(rows: Sequence[Stored]) -> NDArray[np.float64] | None:
    """Return the values as (seeds, units), with NaN where a seed does not test a unit; None if the units are not known."""
    parts = [(row.units, row.values) for row in rows if row.units is not None]
    if not parts or len(parts) < len(rows):
        return None
    if any(len(ids) == test_rows.MOST for ids, _ in parts):
        parts = [test_rows.by_unit(values, ids % test_rows.MOST) for ids, values in parts]
    every = np.unique(np.concatenate([ids for ids, _ in parts]))
    table = np.full((len(parts), len(every)), np.nan)
    for row, (ids, values) in zip(table, parts, strict=True):
        row[np.searchsorted(every, ids)] = values
    return table


def summarise(
    frame: pd.DataFrame, records: Sequence[RunRecord], measure: Measure, measures: Sequence[Measure], by_row: ByRow
) -> pd.DataFrame:
    """Return one row for each method, in order of first appearance. Numbers are taken over finished runs only.

    ``frame`` has the measurements of the ``records``, ``by_row`` the test rows' values of the last models. Methods are compared
    by ``measure``, the primary one. There is a column for each of the ``measures``: its mean over seeds. With ``_half``: the
    half-width of the 95 % interval; ``_std``: the standard deviation over seeds; ``_sem``: the standard error of the mean.

    `fedskew.report.series.Results.summary` explains the other columns. A number that does not exist is NaN.
    """
    import pandas as pd

    seeds, read_after, crossed = per_seed(frame, measures), last_rounds(frame), repeats(frame, records, measure)
    order, stated, drawn = methods(records), margin(records), splits(records, measure.split)
    limit = stated / 100 if measure.unit == "%" else stated
    observed = set(observations(records).values())
    of_partitions = len(observed) > 1 and len({seed for _, seed in observed}) == 1
    pairs = pairs_of(seeds, measure, records)
    level = statistics.LEVEL / max(sum(len(paired) > 1 for paired in pairs.values()), 1)
    rows = []
    for method in order:
        runs = [record for record in records if record.name == method]
        finished, numbers = sum(record.status == "finished" for record in runs), of_method(seeds, method)
        row: words.Row = {
            "method": method,
            "runs": len(runs),
            "finished": finished,
            "unfinished": len(runs) - finished,
            "seeds": len(numbers),
            "client_rows": client_rows(runs[0]),
            "after_round": words.ranges(read_after.get(method, [])),
        }
        for other in measures:
            row |= cells_of(other, numbers[other.key])
        if whole := estimate(by_row, method, "", numbers[measure.key].dropna().to_dict(), drawn):
            row[f"{measure.key}_half"] = whole.half()
        row |= {
            "covers": (drawn.covers if drawn else ROWS_TOO) if whole else SEEDS,
            "pairs": len(numbers),
            "observed": "partition" if of_partitions else "seed",
            **dict.fromkeys((*DIFFERENCE, "cliffs_delta"), NAN),
        }
        if method != order[0]:
            paired = pairs[method]
            whole = estimate(by_row, method, order[0], paired.to_dict(), drawn)
            on_rows = tested_rows(records, drawn, len(paired), measure.split) if measure.unit == "%" else 0.0
            cells = crossed[method] - crossed[order[0]] if {method, order[0]} <= {*crossed} else None
            row |= {"pairs": len(paired), **compared(paired, whole, limit, on_rows, level, cells)}
            both = [of_method(seeds, each)[measure.key].loc[paired.index].tolist() for each in (method, order[0])]
            row["cliffs_delta"] = statistics.cliffs_delta(*both)
        rows.append(row)
    table = pd.DataFrame(rows)
    table["comparisons"], table["margin"] = int(table["p"].notna().sum()), stated
    for p in ("p", "p_equivalent"):
        table[p] = statistics.holm(table[p].tolist())
    table["verdict"] = ["" if row["method"] == order[0] else verdict(row) for row in words.rows_of(table)]
    return table


def pairs_of(seeds: pd.DataFrame, measure: Measure, records: Sequence[RunRecord]) -> Mapping[str, pd.Series[float]]:
    """Return by method the differences of a measure from the first method's, by observation."""
    order, done = methods(records), finished_seeds(records)
    values = {method: of_method(seeds, method)[measure.key] for method in order}
    gaps = {method: (values[method] - values[order[0]]).dropna() for method in order[1:]}
    return {
        method: gap[np.array([done[method, at] == done[order[0], at] for at in gap.index], dtype=bool)]
        for method, gap in gaps.items()
    }


def finished_seeds(records: Sequence[RunRecord]) -> dict[tuple[str, Seeds], set[int]]:
    """Return by method and observation the training seeds that have finished. Pairs need the same ones."""
    observed = observations(records)
    runs = grouped(((r.name, observed[r.id]), r.seed) for r in records if r.status == "finished")
    return {key: {*seeds} for key, seeds in runs.items()}


def cells_of(measure: Measure, values: pd.Series[float]) -> dict[str, float]:
    """Return the cells of a measure, from its values by seed. A target has cells that say how many seeds never reach it."""
    never = int(np.isinf(values).sum())
    # a mean over the seeds that reach a target would flatter the method
    cells = spread(measure.key, values[:0] if measure.split == "target" and never else values)
    cells = cells if measure.interval else {measure.key: cells[measure.key]}
    return {**cells, f"{measure.key}_never": never} if measure.split == "target" else cells


DIFFERENCE = (
    *("difference", "difference_half", "difference_std", "difference_sem"),
    *("effect", "p", "p_equivalent", "flips", "seeds_to_decide", "repeats_to_decide", "rows_to_decide"),
)


def compared(
    paired: pd.Series[float],
    whole: statistics.Estimate | None,
    limit: float,
    tested: float,
    level: float,
    table: NDArray[np.floating] | None = None,
) -> dict[str, float]:
    """The columns `DIFFERENCE` of a method, from its ``paired`` differences from the first one.

    ``whole`` is their estimate over test rows, ``limit`` the margin, ``tested`` the number of test rows, as in `equivalence_p`, and
    ``level`` the level of each verdict of the page. ``table`` has the differences by partition and training seed, if crossed.
    """
    values = paired.tolist()
    row = dict.fromkeys(DIFFERENCE, NAN) | spread("difference", paired)
    alike = len(values) > 1 and statistics.alike(paired.to_numpy())
    if alike and row["difference"] != 0:
        row["difference_half"], row["seeds_to_decide"] = NAN, statistics.equal_seeds_to_decide(level)
    row["effect"], row["p"] = statistics.hedges_g(values), statistics.paired_p(values)
    if math.isfinite(limit):
        row["p_equivalent"] = statistics.equivalence_p(values, limit, tested)
    if len(values) > 1:
        row["flips"] = (whole or statistics.over_splits(values, 0.0)).flips()
    if whole:
        row["rows_to_decide"] = whole.rows_to_decide(level)
    if whole and table is not None:
        row["repeats_to_decide"] = statistics.smallest(
            range(table.shape[1], statistics.MOST_SEEDS + 1),
            lambda seeds: abs(whole.mean) > whole.with_variance(statistics.variance_with(seeds, table)).half(level),
        )
    if whole and whole.half():
        # equal differences need the p and the number above, too
        row["difference_half"], row["p"] = whole.half(), max(whole.p(), row["p"] * alike)
        row["p_equivalent"] = max(row["p_equivalent"], whole.p_within(limit))
        needed = whole.seeds_to_decide(level)
        row["seeds_to_decide"] = needed and float(np.fmax(needed, row["seeds_to_decide"]))
    return row


def verdict(row: words.Row) -> statistics.Verdict | Literal[""]:
    """The verdict of a row of the summary on its difference from the first method."""
    if not row["pairs"]:
        return ""
    return "equivalent" if row["p_equivalent"] < statistics.LEVEL else statistics.decided(row["p"], row["difference"])


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """The table without its empty columns."""
    return table[table.columns[table.notna().any()]]


def methods(records: Sequence[RunRecord]) -> list[str]:
    """The methods in order of first appearance."""
    return list(dict.fromkeys(record.name for record in records))


def per_seed(frame: pd.DataFrame, measures: Sequence[Measure]) -> pd.DataFrame:
    """Return the ``measures`` of each observation: means over its finished runs, indexed by `OBSERVATION`."""
    import pandas as pd

    finished = frame[frame["status"] == "finished"]
    about = finished[["run", *OBSERVATION]].drop_duplicates().set_index("run")
    measured = set(finished[["split", "name"]].drop_duplicates().itertuples(index=False, name=None))
    # most measures have no values, and with none pandas takes as long as with many
    columns = {
        measure.key: per_run(finished, measure)
        if any((measure.split, name) in measured for name in measure.of)
        else NAN
        for measure in measures
    }
    return about.join(pd.DataFrame(columns, index=about.index)).groupby(OBSERVATION).mean()


def per_run(frame: pd.DataFrame, measure: Measure) -> pd.Series[float]:
    """The measure of each run, its rounds reduced to one number."""
    runs = measure.rows_in(frame).sort_values("round", kind="stable").groupby("run")
    if measure.reduce == "last":
        return runs.tail(1).set_index("run")["value"] * measure.factor
    if measure.reduce == "sum":
        return runs["value"].sum(min_count=1) * measure.factor
    return runs["value"].agg(measure.reduce) * measure.factor


def repeats(frame: pd.DataFrame, records: Sequence[RunRecord], measure: Measure) -> dict[str, NDArray[np.floating]]:
    """Return by method the measure of each run (partitions, seeds), if each of its partitions was trained with the same seeds.

    Empty unless there are at least two partitions, and two training seeds on each.
    """
    values = per_run(frame[frame["status"] == "finished"], measure).to_dict()
    runs = {(r.name, r.partition_seed, r.seed): float(values[r.id]) for r in records if r.id in values}
    partitions, seeds = sorted({p for _, p, _ in runs}), sorted({seed for _, _, seed in runs})
    if len(partitions) < 2 or len(seeds) < 2:
        return {}
    tables = {
        method: np.array([[runs.get((method, p, seed), math.nan) for seed in seeds] for p in partitions])
        for method in methods(records)
    }
    return {method: table for method, table in tables.items() if np.isfinite(table).all()}


def last_rounds(frame: pd.DataFrame) -> dict[str, list[int]]:
    """By method: the last round of each finished run whose models were measured."""
    models = frame[(frame["status"] == "finished") & frame["split"].isin(OF_MODELS)]
    last = models.groupby(["method", "run"])["round"].max()
    return {str(method): rounds.tolist() for method, rounds in last.groupby("method")}


def of_method(seeds: pd.DataFrame, method: str) -> pd.DataFrame:
    """The rows of one method, indexed by (partition_seed, seed)."""
    return seeds[seeds.index.get_level_values("method") == method].droplevel("method")


def spread(key: str, values: pd.Series[float]) -> dict[str, float]:
    """Return mean, half-width of its interval, standard deviation and standard error of the values that are not NaN."""
    existing = [value for value in values.tolist() if not math.isnan(value)]
    mean, half = statistics.mean_interval(existing)
    std = stdev(existing) if len(existing) > 1 else NAN
    return {key: mean, f"{key}_half": half, f"{key}_std": std, f"{key}_sem": std / math.sqrt(len(existing) or 1)}


def covers(table: pd.DataFrame, measure: Measure) -> str:
    """Return what the intervals of the primary measure cover. If this differs between methods, return `SEEDS`.

    Methods without a number do not count. An example is `local-only`: it has no shared model to test.
    """
    parts = set(table.loc[table[measure.key].notna(), "covers"])
    return parts.pop() if len(parts) == 1 else SEEDS


def covered(table: pd.DataFrame, measure: Measure) -> str:
    """What the intervals of a summary cover, as a part of a sentence."""
    part = covers(table, measure)
    if part == SEEDS:
        return "the intervals cover the seeds only, not the choice of the test rows"
    return f"the intervals of {measure.title} cover {COVERED[part]}, all other intervals the seeds only"


def verdict_rule(table: pd.DataFrame, measure: Measure, over: str = "") -> str:
    """Say how the verdicts of a summary are decided, as part of a sentence."""
    text, stated = f"paired t tests{over} at 5 % after Holm's correction", float(table["margin"].iloc[0])
    if not math.isfinite(stated):
        return text
    small = f"a difference below {words.within(measure, stated)}"
    return f"{text}; equivalent: {small}, by two one-sided tests at 5 % after Holm's correction"


def instead(row: words.Row) -> list[str]:
    """Say how many training seeds on each partition, or how many times the rows, would decide as well as more partitions."""
    seeds, rows = row["repeats_to_decide"], row["rows_to_decide"]
    options = {f"{seeds:.0f} training seeds on each": seeds, f"{rows:.1f} times the rows": rows}
    return [text for text, number in options.items() if number > 0]


def on_verdicts(table: pd.DataFrame, measure: Measure) -> list[str]:
    """Return sentences on the undecided methods of a summary: corrected ones, and what would decide the others, if it is known."""
    rows = [row for row in words.rows_of(table) if row["verdict"] == "undecided"]
    corrected = [row["method"] for row in rows if abs(row["difference"]) > row["difference_half"]]
    sentences = list[str]()
    if corrected:
        sentences.append(
            f"{listed(corrected)}: undecided although the interval excludes 0, by Holm's correction for "
            f"{int(table['comparisons'].iloc[0])} comparisons"
        )
    part = covers(table, measure)
    crossed = any(row["observed"] == "partition" for row in rows)
    runs = "partitions" if crossed else "runs of each method" if part in (FOLDS, FOLDS_OF_CLIENTS) else "seeds"
    parts, never = list[str](), list[str]()
    for row in rows:
        seeds, method = row["seeds_to_decide"], row["method"]
        more = [f"{int(seeds)} {runs}"] if seeds > row["pairs"] else []
        if more and row["difference"] and row["difference_std"] <= 1e-9 * abs(row["difference"]):
            same = f"all {runs} gave {method} the same difference, as with deterministic training"
            parts.append(f"{same}; {int(seeds)} {runs} would decide it")
        elif options := [*more, *(instead(row) if crossed else ())]:
            what = ", or ".join(options)
            parts.append(f"about {what} would decide {method}'s difference, if it is as large as here")
        elif seeds == 0:
            never.append(method)
    if never:
        tested = "clients" if part == FOLDS_OF_CLIENTS else "test rows"
        parts.append(f"more {runs} would not decide {listed(never)}: too few {tested} for a difference of this size")
    return [*sentences, capital("; ".join(parts))] if parts else sentences

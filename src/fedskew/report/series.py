"""The results of runs: what is stored of them, as the summary and as series over rounds, clients and parts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.text import listed, plainly
from fedskew.measure.registry import OF_MODELS, Measure, Measures, View, measures_of, primary_of
from fedskew.measure.statistics import t_quantile
from fedskew.report import experiments
from fedskew.report.budgets import Budget, TargetCost, spending, target_from, unit_of, within_budget
from fedskew.report.tables import OBSERVATION, by_method, methods, per_seed, summarise
from fedskew.report.words import MISSING, plain, ranges
from fedskew.store.runs import Measurement, RunRecord, RunStore
from fedskew.store.test_rows import Split

if TYPE_CHECKING:
    import pandas as pd
    from pandas.core.groupby import SeriesGroupBy


@dataclass(frozen=True)
class Layout:
    """The layout of a table: its columns (empty: all columns with values), and the spread, a key of `words.SPREADS`.

    ``by`` is the split whose primary measure compares the methods: the server's model on the ``test`` rows, or each site's own
    model at the ``sites``.
    """

    columns: tuple[str, ...] = ()
    spread: str = "ci95"
    by: Split = "test"

    def has(self, column: str) -> bool:
        """True if the layout shows this column, one of `OTHER_COLUMNS`."""
        return not self.columns or column in self.columns


PLAIN, NONE = Layout(), MappingProxyType[int, list[str]]({})
OTHER_COLUMNS = ("difference", "verdict", "seeds", "finished")
"""Columns of a table for readers that are no measures."""


PARTS: dict[str, Literal["layers", "classes", "adaptation"]] = {
    "layer": "layers",
    "class": "classes",
    "adaptation": "adaptation",
}
"""By split: the key of the run's facts that lists the names of its parts."""


@dataclass(frozen=True, eq=False)
class Results:
    """The numbers of some runs, for the terminal, the page, files and Python. Each is read and computed once, when it is needed.

    Runs of one method that differ in more than their seeds are several methods, named by what differs: with their names in the
    store, or with ``for_readers`` as text. With a ``budget``, each run counts up to its last round within the budget.
    """

    store: RunStore
    runs: Sequence[RunRecord]
    budget: Budget | None = None
    layout: Layout = PLAIN
    for_readers: bool = False

    def __post_init__(self) -> None:
        require(bool(self.runs), "there are no runs to report on")

    @cached_property
    def titled(self) -> Results:
        """The same results with names for readers."""
        return self if self.for_readers else replace(self, for_readers=True)

    @cached_property
    def records(self) -> list[RunRecord]:
        """The runs. Runs of one name differ in their seeds only."""
        return experiments.titled(self.runs) if self.for_readers else experiments.distinct(self.runs)

    @cached_property
    def names(self) -> dict[str, experiments.Name]:
        """The methods' names for readers, by their names in these results."""
        return dict(zip((record.name for record in self.records), experiments.names(self.runs), strict=True))

    @cached_property
    def methods(self) -> list[str]:
        """The methods in order of first appearance."""
        return methods(self.records)

    @cached_property
    def measures(self) -> Measures:
        """The measures that the runs may have stored."""
        return measures_of(record.facts for record in self.runs)

    @cached_property
    def measure(self) -> Measure:
        """The primary measure: methods are compared by it. Raises `BadInput` if the runs have different ones, or none at sites."""
        measure = primary_of(self.runs, self.layout.by)
        if self.layout.by == "sites":
            require(
                self.has(measure),
                "by sites: no run has values at the sites yet; they are measured after the last round, on rows that each site "
                "tests or holds out (clients.held_out)",
            )
            kinds = {record.facts.get("sites", {}).get("rows") for record in self.runs if record.status == "finished"}
            if len(kinds) > 1:
                raise BadInput("by sites: some runs measure test rows, others held-out rows; name runs of one kind")
        return measure

    @cached_property
    def about(self) -> pd.DataFrame:
        """Each run with its method, observation and status: columns run, method, partition_seed, seed, status."""
        import pandas as pd

        observed = experiments.observations(self.records)
        rows = [(r.id, r.name, *observed[r.id], r.status) for r in self.records]
        return pd.DataFrame(rows, columns=["run", *OBSERVATION, "status"]).drop_duplicates("run")

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The measurements without a client that views show. If the layout names columns, all measurements without a client.

        Numbers of clients are left out where one client holds all rows: its worst client compares with no other run's. Numbers
        of the server's model are left out where clients share no model: it is the initial one. Neither has a drift.

        Columns run, round, split, name, value, method, partition_seed, seed, status.
        """
        of_views = (m for m in self.measures.all if m.views or m.budget)
        viewed = [] if self.layout.columns else sorted({name for m in of_views for name in m.of})
        frame = self.store.measurements(self.about["run"].tolist(), per_client=False, names=viewed)
        frame = frame.drop(columns="client").merge(self.about, on="run")
        frame = frame.astype({"split": "category", "name": "category"})  # several comparisons of each follow
        left_out = {experiments.pooled: ["clients", "personal"], experiments.shares_no_model: ["test", "clients"]}
        for without, parts in left_out.items():
            runs = frame["run"].isin([record.id for record in self.records if without(record)])
            frame = frame[~(runs & (frame["split"].isin(parts) | frame["name"].isin(["drift", "divergence"])))]
        return within_budget(frame, self.budget) if self.budget else frame

    @cached_property
    def read(self) -> pd.DataFrame:
        """The frame without what finished runs measured of models after their best round, if they use it; with the targets."""
        import pandas as pd

        best = {r.id: r.used_round for r in self.records if r.status == "finished" and "best_round" in r.facts}
        after_best = self.frame["split"].isin(OF_MODELS) & (self.frame["run"].map(best) < self.frame["round"])
        frame = self.frame[~after_best] if best else self.frame
        targets = [target.rows(self.frame) for target in self.targets.values()]
        return pd.concat([frame, *targets], ignore_index=True) if targets else frame

    @cached_property
    def targets(self) -> dict[str, TargetCost]:
        """The targets among the layout's columns, by column."""
        primary = primary_of(self.runs)
        return {column: target for column in self.layout.columns if (target := target_from(column, primary))}

    @cached_property
    def stored_names(self) -> set[tuple[str, str]]:
        """Split and name of the measurements in the frame."""
        return set(self.frame[["split", "name"]].drop_duplicates().itertuples(index=False, name=None))

    def has(self, measure: Measure) -> bool:
        """True if a run has measured it."""
        return any((measure.split, name) in self.stored_names for name in measure.of)

    @cached_property
    def until(self) -> dict[int, int]:
        """The last round of each run within the budget; empty without a budget."""
        last = self.frame.groupby("run")["round"].max()
        return dict(zip(last.index.tolist(), last.tolist(), strict=True)) if self.budget else {}

    @cached_property
    def named_measures(self) -> list[Measure]:
        """The measures of the layout's columns: keys, titles, or names in the store.

        A stored measure that the registry does not have, such as a metric of one's own, is read after the last round. Measures with
        one title are named by their labels. Raises `BadInput` for any other name.
        """
        measures, candidates = list[Measure](), (*self.measures.shown(), *self.measures.stored.values())
        possible = [m for m in candidates if m.split in (*OF_MODELS, "round")]
        for column in self.layout.columns:
            name = plainly(column)
            matches = [m for m in possible if name in map(plainly, (m.key, m.title, f"{m.split}/{m.name}", m.name))]
            rows = self.frame.loc[self.frame["name"].map(plainly) == name, ["split", "name"]].drop_duplicates()
            if column in self.targets:
                measures.append(self.targets[column].measure)
            elif matches:
                measures.append(min(matches, key=lambda m: (plainly(m.key) != name, m.views == ())))
            elif len(rows):
                split, stored_name = map(str, rows.iloc[0])
                measures.append(Measure(split, stored_name, "a measure of one's own", reduce="last"))
            elif column not in OTHER_COLUMNS:
                choice = suggestion(column, [*(m.key for m in possible), *OTHER_COLUMNS])
                raise BadInput(f"columns: unknown {column!r}; {choice}")
        titles = Counter((m.title, m.unit) for m in set(measures))
        return [replace(m, title=m.label) if titles[m.title, m.unit] > 1 else m for m in measures]

    @cached_property
    def all_measures(self) -> list[Measure]:
        """The measures that any view shows, and the measures of the layout's columns."""
        return list({measure.key: measure for measure in (*self.measures.shown(), *self.named_measures)}.values())

    @cached_property
    def seeds(self) -> pd.DataFrame:
        """The measures of each finished observation; indexed by `tables.OBSERVATION`."""
        return per_seed(self.read, self.all_measures)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row for each method, in order of first appearance. `tables.summarise` explains the columns of measures.

        ========================================  ==========================================================================
        column                                    meaning
        ========================================  ==========================================================================
        ``method``                                its name
        ``runs``, ``finished``, ``unfinished``    numbers of runs
        ``seeds``                                 distinct (partition seed, seed) among the finished
        ``bytes_to_70_never``                     of each target: the seeds that never reach it
        ``after_round``                           the round, or rounds, after which its finished runs are read, as text
        ``covers``                                what the primary measure's interval, ``difference_half`` and the verdict cover:
                                                  ``seeds and test rows``, ``seeds and redrawn test rows``, ``seeds and folds of
                                                  rows``, ``seeds and folds of clients``, or ``seeds`` under a budget and without
                                                  stored rows
        ``client_rows``                           ``training`` or ``held-out``: the rows on which its clients are measured
        ``observed``                              what numbers are averaged over: seed, or partition if each has the same seeds
        ``pairs``                                 (partition seed, seed) that this and the first method both finished
        ``difference``, ``difference_half``       primary measure minus the first method's over these pairs; no half-width where
                                                  they do not vary
        ``effect``                                the differences' Hedges's g: their mean in standard deviations
        ``cliffs_delta``                          share of pairs of seeds that it wins minus share that it loses, -1..1
        ``p``, ``comparisons``                    p of the test of these differences, after Holm's correction over ``comparisons``
        ``seeds_to_decide``                       seeds that would decide a difference of this size at the observed variances;
                                                  0 if no number of seeds does, because the test rows are too few
        ``repeats_to_decide``                     the same for training seeds on each partition; NaN if each seed has its own
        ``rows_to_decide``                        the same for the factor on the number of rows
        ``flips``                                 probability that a repeat of this size has a difference of the other sign
        ``margin``, ``p_equivalent``              `evaluation.margin`, and p of two one-sided tests that the difference is smaller,
                                                  after Holm's correction
        ``verdict``                               equivalent if ``p_equivalent`` is below 0.05; higher or lower if ``p`` is; else
                                                  undecided; empty without pairs
        ========================================  ==========================================================================
        """
        # a budget may end the runs at a round without stored values of the test rows
        by_row = {} if self.budget else by_method(self.store, self.records, self.layout.by)
        return summarise(self.read, self.records, self.measure, self.all_measures, by_row)

    @cached_property
    def parts(self) -> pd.DataFrame:
        """The measurements of layers, classes, and numbers of rows to adapt on; none where clients share no model.

        Columns are run, round, split, part (its name), name, value.
        """
        import pandas as pd

        of_parts = [f"{split}/{name}" for split, name in self.measures.stored if split in PARTS]
        shared = [record.id for record in self.runs if not experiments.shares_no_model(record)]
        rows = self.store.curves(shared, of_parts, per_client=True)
        table = pd.DataFrame(rows, columns=Measurement._fields)
        table = table.sort_values(["run", "round", "split", "client"], kind="stable")
        part_names = {
            (record.id, split, number): name
            for record in self.runs
            for split, key in PARTS.items()
            for number, name in enumerate(record.facts.get(key, []))
        }
        parts = zip(table["run"], table["split"], table["client"], strict=True)
        table["part"] = [part_names.get(part, str(part[2])) for part in parts]
        return table[["run", "round", "split", "part", "name", "value"]]

    def columns(self, view: View) -> list[Measure]:
        """The measures in a table: the layout's, or the primary one and the ``view``'s measures that a method has numbers of."""
        if self.layout.columns:
            return self.named_measures
        numbers = self.summary
        personal = [m for m in self.measures.shown() if m.split == "personal" and numbers[m.key].notna().any()]
        at_sites = primary_of(self.runs, "sites").key
        of_all = at_sites in numbers and bool(numbers[at_sites].notna().all())
        # a column in which some methods have no number cannot compare them
        partly = [m for m in personal if of_all and numbers[m.key].isna().any()]
        hidden = {m.key for m in partly} | ({at_sites} if not personal else set())
        hidden |= {m.key for m in self.measures.shown() if m.split == "round" and (numbers[m.key] == 0).all()}
        viewed = {m.key for m in self.measures.shown(view) if numbers[m.key].notna().any()} - hidden
        return [m for m in self.measures.shown() if m == self.measure or m.key in viewed]

    def read_after(self) -> str:
        """Say after which rounds the methods are read."""
        rounds = dict(zip(self.summary["method"], self.summary["after_round"], strict=True))
        each = listed([f"{method} after round {last or MISSING}" for method, last in rounds.items()])
        if not self.budget:
            best = any("best_round" in record.facts for record in self.records)
            return f"at the best round on the clients' held-out rows: {each}" if best else "after the last round"
        if len(set(rounds.values())) == 1:
            last = next(iter(rounds.values()))
            return f"after round {last}, the last within the budget {self.budget} with measured models"
        return f"within the budget {self.budget}, where all models were measured: {each}"


STOPPED = ("diverged", "interrupted", "failed")
"""Statuses of a run that ended before its last round."""


def over_seeds(groups: SeriesGroupBy[float, tuple[Hashable, ...]], spread: str) -> pd.DataFrame:
    """Return ``mean``, ``count`` and ``half`` of each group of values.

    ``half`` is the half-width of the ``spread``, a key of `words.SPREADS`; NaN for one value.
    """
    with np.errstate(invalid="ignore"):
        table = groups.agg(["mean", "sem", "std", "count"])
    wide = {"ci95": table["sem"] * t_quantile(np.maximum(table["count"] - 1, 1))}
    return table.assign(half=wide.get(spread, table.get(spread)))


def curves(results: Results, measure: Measure, along: str = "rounds") -> pd.DataFrame:
    """Return a measure over the rounds, with unfinished runs up to their last round.

    Columns are method, round, mean, low and high (ends of the layout's spread over seeds; NaN for one seed), runs (number of seeds
    that reached the round), stopped (number of runs that ended early at this round). Methods are in order of first appearance.

    If ``along`` names another cost of a `Budget`, a column named by its unit has the mean that the seeds spent until the round.
    Runs in which one client holds all rows are then left out: they send no updates between clients.
    """
    import pandas as pd

    unit, factor = unit_of(along)
    columns = ["method", "round", *([unit] if along != "rounds" else []), "mean", "low", "high", "runs", "stopped"]
    frame = results.frame
    rows = measure.rows_in(frame).dropna(subset="value") if results.has(measure) else frame[:0]
    if along != "rounds":
        rows = rows[~rows["run"].isin([record.id for record in results.records if experiments.pooled(record)])]
    if rows.empty:  # most measures have no values, and the code below would take long all the same
        return pd.DataFrame(columns=columns)
    ordered = rows.assign(method=pd.Categorical(rows["method"], categories=results.methods))
    seeds = ordered.groupby([*OBSERVATION, "round"], observed=True)["value"].mean()
    table = over_seeds(seeds.groupby(["method", "round"], observed=True), results.layout.spread)
    if along != "rounds":
        spent = ordered.join(spending(frame, Budget(along)).to_frame(unit), on=["run", "round"])
        spent[unit] = spent[unit].where(spent["round"] > 0, 0.0) * factor
        table[unit] = spent.groupby(["method", "round"], observed=True)[unit].mean()
    ends = ordered[ordered["status"].isin(STOPPED)].groupby(["run", "method"], observed=True)["round"].max()
    stopped = ends.reset_index().groupby(["method", "round"], observed=True).size()
    result = table.assign(
        low=table["mean"] - table["half"],
        high=table["mean"] + table["half"],
        runs=table["count"],
        stopped=stopped.reindex(table.index, fill_value=0),
    ).reset_index()
    # a round whose cost is unknown has no place on the axis of costs
    return result.assign(method=result["method"].astype(str))[columns].dropna(subset=columns[1:-5])


def curves_by_run(results: Results) -> pd.DataFrame:
    """Return the values of all curves for each run, with columns run, round, and one for each measure.

    Only rounds with measured models count, or all rounds if no run measured models.
    """
    import pandas as pd

    frame, measures = results.frame, results.measures.shown("curve")
    values = {m.key: m.rows_in(frame).groupby(["run", "round"])["value"].sum(min_count=1) for m in measures}
    table = pd.DataFrame({key: column for key, column in values.items() if len(column)})
    models = frame.loc[frame["split"].isin(OF_MODELS), ["run", "round"]].drop_duplicates()
    return (table[table.index.isin(pd.MultiIndex.from_frame(models))] if len(models) else table).reset_index()


def per_client(results: Results) -> pd.DataFrame:
    """Return the global model's primary measure on each client's rows, at the last measured round of the finished runs.

    Runs with different partition seeds have different clients. Therefore clients are ranked within each run, from worst (1) to
    best, and each rank is averaged over the runs. Runs in which one client holds all rows, or clients share no model, are left out.
    Columns are method, rank, the measure, runs (number of runs with this rank), and client_name: the client that has the rank
    in all runs of the method, or an empty text.
    """
    import pandas as pd

    measure, store = results.measure, results.store
    finished = [r for r in results.records if r.status == "finished" and not experiments.pooled(r)]
    records = {r.id: r for r in finished if not experiments.shares_no_model(r)}
    rows = store.last(records, [f"global-model/{measure.name}"], per_client=True, until=results.until)
    table = with_names(store, rows).astype({"value": float}).dropna(subset="value")
    table["dealing"] = [dealing(records[run]) for run in table["run"]]
    table["method"] = pd.Categorical([records[run].name for run in table["run"]], categories=results.methods)
    table = table.sort_values(["run", "value", "client"], ascending=[True, measure.better != "lower", True])
    table["rank"] = table.groupby("run").cumcount() + 1
    ranks = table.groupby(["method", "rank"], observed=True)
    result = ranks.agg(
        value=("value", "mean"),
        runs=("run", "size"),
        names=("client_name", "nunique"),
        dealings=("dealing", "nunique"),
        client_name=("client_name", "first"),
    ).reset_index()
    result["client_name"] = result["client_name"].where((result["names"] == 1) & (result["dealings"] == 1), "")
    result = result.drop(columns=["names", "dealings"]).rename(columns={"value": measure.name})
    return result.assign(method=result["method"].astype(str))


def with_names(store: RunStore, rows: Sequence[Measurement], pooled: Mapping[int, list[str]] = NONE) -> pd.DataFrame:
    """Return values of clients as a table with the column client_name. ``pooled`` has names of the sites of pooled rows by run.

    The store has the names of the first clients of a run only. Another one is called by its number, as ``client 1000``.
    """
    import pandas as pd

    table = pd.DataFrame(rows, columns=Measurement._fields)
    client_names = store.client_names(table["run"].unique().tolist())
    client_names |= {(run, site): name for run, names_ in pooled.items() for site, name in enumerate(names_)}
    clients, named = zip(table["run"], table["client"], strict=True), {run for run, _ in client_names}
    table["client_name"] = [
        client_names.get((run, client), f"client {client}" if run in named else str(client)) for run, client in clients
    ]
    return table


def values_at_sites(results: Results) -> pd.DataFrame:
    """Return the models at the sites after the last round, one row for each finished run, site and number.

    Columns are run, client_name, name, value and method. Names are rows (on which a model is measured), the primary measure, and
    recall_of_rarest, if the targets are classes. Empty if the data do not name the sites.
    """
    records = {r.id: r for r in results.records if r.status == "finished" and experiments.own_clients(r)}
    names_ = [f"sites/{name}" for name in ("rows", results.measure.name, "recall_of_rarest")]
    rows = results.store.last(records, names_, per_client=True)
    table = with_names(results.store, rows, {r.id: r.facts.get("sites", {}).get("names", []) for r in records.values()})
    return table.assign(method=[records[run].name for run in table["run"]])


def by_site(results: Results) -> pd.DataFrame:
    """Return the means of `values_at_sites` over the runs of a method.

    Columns are site (its name), method, rows, the primary measure, and recall_of_rarest.
    """
    table, names_ = values_at_sites(results), ["rows", results.measure.name, "recall_of_rarest"]
    wide = table.pivot_table(index=["client_name", "method"], columns="name", values="value", sort=False)
    wide = wide.reindex(columns=[name for name in names_ if name in wide]).rename_axis(columns=None)
    return wide.reset_index().rename(columns={"client_name": "site"})


def taking_part(results: Results) -> dict[str, list[str]]:
    """Return for readers what each site of a run between sites took part in: by heading, the cells. Empty for other runs.

    The sites have their number of training rows, the rounds in which the server used their update, and their faults.
    """
    record, rounds, faults = results.records[0], Counter[int | None](), dict[int | None, dict[str, list[int]]]()
    population = record.facts.get("flower", {}).get("population", [])
    if len(results.records) > 1 or not population:
        return {}
    names_ = [f"fault/{name}" for split, name in results.measures.stored if split == "fault"]
    for m in results.store.curves([record.id], ["client/steps", *names_], per_client=True):
        rounds[m.client] += m.split == "client"
        if m.split == "fault":
            kind = "away or too late" if m.name == "missing" else m.name.replace("_", " ")
            faults.setdefault(m.client, {}).setdefault(kind, []).append(m.round)
    return {
        "site": [[*site[3:], f"site {k}"][0] for k, site in enumerate(population)],
        "training rows": [str(site[0]) for site in population],
        "rounds": [f"{rounds[k]} of {record.rounds_done}" for k in range(len(population))],
        "faults": [
            "; ".join(f"{kind} in round {ranges(of_kind)}" for kind, of_kind in faults.get(k, {}).items())
            for k in range(len(population))
        ],
    }


RECALL = ", recall of"
"""Part of the headings of columns with the recall of the rarest class."""


def readable_by_site(results: Results) -> dict[str, list[str]]:
    """Format `taking_part` and `by_site` for readers, one row for each site: by heading, the cells. Empty if no sites have names.

    Each method has a column of the primary measure. The recall of the rarest class follows.
    """
    table, measure, columns = by_site(results), results.measure, taking_part(results)
    sites = columns.get("site") or list(dict.fromkeys(table["site"]))
    if not len(table):
        return columns
    rows, first = table.groupby("site")["rows"].mean().reindex(sites), results.records[0].facts.get("sites", {})
    columns |= {"site": sites, "rows": [f"{number:.0f}" if number > 0 else MISSING for number in rows]}
    for name, title in ((measure.name, ""), ("recall_of_rarest", f"{RECALL} {first.get('rarest')} %")):
        shown = results.measures.stored["sites", name]
        for method in results.methods if name in table else ():
            values = table[table["method"] == method].set_index("site")[name].reindex(sites)
            columns[f"{results.names[method]}{title}"] = [plain(shown, value) for value in values]
    return columns


def decided(results: Results) -> pd.DataFrame:
    """Return the decisions about clients, run by run in the order of rounds: only of clients that took part.

    Columns are method, run, round, client (its number), client_name, name, value.
    """
    methods_ = {record.id: record.name for record in results.records}
    names_ = [f"client/{measure.name}" for measure in results.measures.decided]
    table = with_names(results.store, results.store.curves(methods_, names_, per_client=True) if names_ else [])
    table["method"] = table["run"].map(methods_)
    if results.budget:
        table = table[table["round"] <= table["run"].map(results.until)]
    return table[["method", "run", "round", "client", "client_name", "name", "value"]]


def dealing(record: RunRecord) -> str:
    """Return a text that is equal for runs with the same clients: data set, skews, and the partition seed if it matters."""
    table = experiments.parsed(record)
    seed = None if experiments.own_clients(record) else record.partition_seed
    return json.dumps([table.get("dataset"), table.get("skew", []), seed])

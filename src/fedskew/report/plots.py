"""The figures of stored runs, each with its numbers, caption and tips: for the page, files and Python."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.files import require_regular, write_whole
from fedskew.core.text import listed
from fedskew.measure.registry import Measure, budgets, primary_of
from fedskew.measure.statistics import Ranks, rank_methods
from fedskew.report import draw, series
from fedskew.report.budgets import unit_of
from fedskew.report.console import png
from fedskew.report.experiments import kinds_of_rows, measured_rows, own_clients, titled, without_seeds
from fedskew.report.series import Results
from fedskew.report.style import Picture, Tip, Tips, evenly, tips_along
from fedskew.report.tables import OBSERVATION, covers, on_verdicts, per_seed
from fedskew.report.words import MISSING, SPREADS, figures, gap, note, value, with_interval
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MOST_CLIENTS = 12
"""Maximum number of lines in a figure of clients over the rounds."""

LANDSCAPES = 3
"""Maximum number of runs whose loss landscapes are shown."""


def builders(results: Results, most_points: int = 0, along: str = "rounds") -> dict[str, Callable[[], Picture]]:
    """Return the functions that make the figures, by name. They raise `BadInput` if the runs lack the measurements.

    With ``most_points``, a figure of lines has at most that number of points, and its caption says so. ``along`` is as for `curve`.
    """
    return {
        **{m.figure: partial(curve, results, m, most_points, along) for m in results.measures.shown("curve")},
        f"{primary_of(results.runs).figure}-by-bytes": partial(by_bytes, results, most_points),
        "differences": partial(differences, results),
        **{str(what): partial(of_parts, results, what) for what in PARTS},
        "clients": partial(clients, results, most_points),
        **{m.figure: partial(of_decision, results, m, most_points) for m in results.measures.decided},
        "partition": partial(partition, results),
        "ranks": partial(ranks, results),
    }


def pictures(results: Results, most_points: int = 0) -> dict[str, Picture]:
    """Return the figures that the runs have measurements for, by name."""
    possible = {}
    for what, build in builders(results, most_points).items():
        with suppress(BadInput):
            possible[what] = build()
    return possible


def plot(results: Results, what: str = "", along: str = "rounds") -> Figure:
    """Draw the figure ``what`` with a legend; by default the curve of the primary measure. ``along`` is as for `curve`.

    Raises `BadInput` for an unknown figure or cost, and if the runs lack the measurements or the partition.
    """
    require(along in budgets(), f"along: unknown {along!r}; {suggestion(along, budgets())}")
    possible, what = builders(results.titled, along=along), what or results.measure.figure
    require(what in possible, f"there is no figure {what!r}; {suggestion(what, possible)}")
    curved = {m.figure for m in results.measures.shown("curve")}
    require(along == "rounds" or what in curved, f"along: {what!r} is no curve over rounds; leave it out")
    picture = possible[what]()
    return picture.draw(picture.label)


def image_of_curves(store: RunStore, runs: Sequence[int]) -> str:
    """Draw the curves of unfinished runs up to now, as an HTML image; empty if nothing is measured yet."""
    try:
        picture = png(plot(Results(store, store.numbered(runs))))
    except BadInput:  # nothing is measured yet
        return ""
    return f'<img alt="curves so far" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'


def thinned(table: pd.DataFrame, along: str, methods: Sequence[str], most: int) -> tuple[pd.DataFrame, str]:
    """Return at most ``most`` points of the methods' lines, or all for 0, and a sentence if there are fewer than in ``table``.

    They are evenly spaced in the column ``along``. Points at which a run stopped early stay, too.
    """
    places = sorted(table[along].unique())
    drawn = evenly(places, max(2, most // len(methods))) if most else places
    if len(drawn) == len(places):
        return table, ""
    stays = table[along].isin(drawn) | (table["stopped"] > 0 if "stopped" in table else False)
    return table[stays], f" The lines show {len(drawn):,} of {len(places):,} {along}s, evenly spaced."


def by_bytes(results: Results, most_points: int = 0) -> Picture:
    """The figure of the primary measure over the megabytes sent, if the methods send different amounts in a round."""
    picture = curve(results, primary_of(results.runs), most_points, "bytes")
    assert picture.table is not None
    sent = picture.table.groupby("round")["MB"].agg(["min", "max"])
    different = not np.allclose(sent["min"], sent["max"])
    require(different, "all methods send the same amount in a round; draw the curves over rounds")
    return replace(picture, key=f"{picture.key}-by-bytes", heading=f"{picture.heading} over megabytes")


def curve(results: Results, measure: Measure, most_points: int = 0, along: str = "rounds") -> Picture:
    """The figure of a measure over the rounds, or ``along`` another cost of a `budgets.Budget`."""
    table, axis = series.curves(results, measure, along), "round" if along == "rounds" else unit_of(along)[0]
    if not len(table):
        measured = [m.figure for m in results.measures.shown("curve") if results.has(m)]
        raise BadInput(f"none of these runs has measured {measure.label}; they have {listed(measured)}")
    records, order = results.records, results.methods
    points, thinner = thinned(table, "round", order, most_points)
    rows = f" Measured on each client’s {measured_rows(records)}." if measure.of_clients else ""
    if along != "rounds":
        what = "MB that all clients sent and received" if along == "bytes" else f"{along} spent"
        rows += f" Each point is a measured round, at the {what} until then, mean over the seeds."
    return Picture(
        key=measure.figure,
        heading=measure.label,
        draw=partial(draw.draw_curves, points, measure, order, axis=axis),
        tips=partial(tips_of_curves, points, measure, order, axis),
        caption=f"{note(measure)}.{rows}{thinner}",
        about=f"{measure.label} over {along if along == 'rounds' else axis}",
        label=measure.label + (f", {kinds_of_rows(records)} rows" if measure.of_clients else ""),
        table=table,
    )  # fmt: skip


def tips_of_curves(points: pd.DataFrame, measure: Measure, order: Sequence[str], axis: str = "round") -> Tips:
    """The mean and its interval at each place on the ``axis``, a column of the table of `draw.draw_curves`."""
    finite = points[np.isfinite(points["mean"])].sort_values("mean", ascending=False, kind="stable")
    return tips_along(
        finite, axis, order, "mean",
        head=lambda row: f"round {row['round']}" if axis == "round" else f"{figures(row[axis])} {axis}",
        text=lambda row: with_interval(measure, row["mean"], row["high"] - row["mean"]),
    )  # fmt: skip


def clients(results: Results, most_points: int = 0) -> Picture:
    """The figure of the primary measure by client."""
    measure, records, order = primary_of(results.runs), results.records, results.methods
    table = series.per_client(results)
    require(len(table) > 0, f"none of these runs has measured {measure.title} on the clients' rows")
    points, thinner = thinned(table, "rank", order, most_points)
    within = " within the budget" if results.budget else ""
    several = " within each run, and each rank is averaged over the runs" if len(records) > 1 else ""
    alike = not several or all(map(own_clients, records))
    others = "" if alike else ": another partition seed gives other clients"
    return Picture(
        key="clients",
        heading=f"{measure.title} by client",
        draw=partial(draw.draw_clients, points, measure, order),
        tips=partial(
            tips_along, points, "rank", order, measure.name,
            head=lambda row: f"client {row['rank']} from the worst",
            text=lambda row: ", ".join(filter(None, [value(measure, row[measure.name]), row["client_name"]])),
        ),
        caption=f"{measure.title.capitalize()} of the global model on each client’s {measured_rows(records)}, at the last "
        f"measured round of the finished runs{within}. Clients are ranked from worst to best{several}{others}.{thinner}",
        label=f"{measure.title} on the client's data",
        table=table,
    )  # fmt: skip


def of_decision(results: Results, measure: Measure, most_points: int = 0) -> Picture:
    """The figure of what a method decided about each client over the rounds, in the first run that has it."""
    table = series.decided(results)
    table = table[table["name"] == measure.name]
    require(len(table) > 0, f"none of these runs has decided {measure.title}")
    rows = table[table["run"] == table["run"].iloc[0]]
    numbers = sorted(rows["client"].unique())
    drawn = evenly(numbers, MOST_CLIENTS)
    rows = rows[rows["client"].isin(drawn)].sort_values(["client", "round"], kind="stable")
    order = list(dict.fromkeys(rows["client_name"]))
    lines = rows.assign(method=rows["client_name"], mean=rows["value"], low=np.nan, high=np.nan, runs=1, stopped=0)
    points, thinner = thinned(lines, "round", order, most_points)
    more = f" Drawn are {len(drawn)} of {len(numbers)} clients." if len(drawn) < len(numbers) else ""
    return Picture(
        key=measure.figure,
        heading=f"{measure.title} by client",
        # the page's legend has methods, so the clients' stands in the figure
        draw=lambda label: draw.draw_curves(points, measure, order, label or measure.title),
        tips=partial(
            tips_along, points, "round", order, "mean",
            head=lambda row: f"round {row['round']}",
            text=lambda row: f"client {row['client_name']}: {row['mean']:.4g}",
        ),
        caption=f"{note(measure)}. Run {rows['run'].iloc[0]}, {rows['method'].iloc[0]}.{more}{thinner}",
        about=f"{measure.title} of each client over rounds",
        label=measure.title,
        table=table.drop(columns="name"),
    )  # fmt: skip


Parts = Literal["layers", "classes", "labels", "adaptation"]
LAST = "after the last measured round"
PARTS: dict[Parts, tuple[str, str, str, str]] = {
    "layers": ("layer", "cosine", "layer", "mean over the rounds"),
    "classes": ("class", "accuracy", "class", LAST),
    "labels": ("class", "f1", "class or label", LAST),
    "adaptation": ("adaptation", "", "rows of a new client to adapt on", "after the last round"),
}
"""By figure: split and name of its measure (an empty name stands for the primary metric), its axis, and when it is measured."""


def of_parts(results: Results, what: Parts) -> Picture:
    """The figure of a measure by layer, class, label, or number of rows to adapt on."""
    split, name, axis, when = PARTS[what]
    measure, order = results.measures.stored[split, name or results.measure.name], results.methods
    table = by_part(results, measure)
    option = "clients.unseen=0.2" if what == "adaptation" else f"evaluation.{series.PARTS[split]}=true"
    require(len(table) > 0, f"none of these runs has measured its {what}; set {option}")
    return Picture(
        key=what,
        heading=measure.label,
        draw=partial(draw.draw_parts, table, measure, order, axis),
        tips=partial(
            tips_along, table, "place", order, "mean",
            head=lambda row: row["part"],
            text=lambda row: with_interval(measure, row["mean"], row["half"]),
        ),
        caption=f"{note(measure)}; {when}.",
        label=measure.label,
    )  # fmt: skip


def by_part(results: Results, measure: Measure) -> pd.DataFrame:
    """Return the measure of each part for the finished runs: means over seeds.

    Layers are averaged over the rounds; classes and labels are read after the last measured round. Columns are method, part
    (its name), place (its number), mean, and half (the half-width of the layout's spread; NaN for one seed).
    """
    import pandas as pd

    records = {record.id: record for record in results.records if record.status == "finished"}
    frame = results.parts
    frame = frame[(frame["split"] == measure.split) & (frame["name"] == measure.name) & frame["run"].isin(records)]
    if results.budget:
        frame = frame[frame["round"] <= frame["run"].map(results.until)]
    if measure.split == "class":
        used = frame["run"].map({run: record.used_round for run, record in records.items()})
        frame = frame[frame["round"] <= used]
        frame = frame[frame["round"] == frame.groupby("run")["round"].transform("max")]
    runs = frame.groupby(["run", "part"], sort=False)["value"].mean().reset_index()
    seeds = runs.merge(results.about, on="run").groupby([*OBSERVATION, "part"], sort=False)["value"].mean()
    table = series.over_seeds(seeds.groupby(["method", "part"], sort=False), results.layout.spread).reset_index()
    return table.assign(place=pd.factorize(table["part"])[0])[["method", "part", "place", "mean", "half"]]


def differences(results: Results) -> Picture:
    """The figure of paired differences from the first method."""
    summary, measure, spread = results.summary, results.measure, results.layout.spread
    require(bool(draw.compared(summary)), "differences: no method has a seed in common with the first one")
    over, before, after = "seeds", "", " after Holm’s correction"
    if spread == "ci95":
        over, before, after = covers(summary, measure), ", before Holm’s correction", " after it"
    margin = " Dashed: the margin of equivalence." if summary["margin"].notna().any() else ""
    which = "best" if "best" in results.read_after() else "last"
    return Picture(
        key="differences",
        heading=f"difference from {summary['method'].iloc[0]}",
        draw=lambda _: draw.draw_differences(summary, measure, spread),
        tips=partial(tips_of_differences, summary, measure, spread),
        caption=f"Dot: mean paired difference in {which}-round {measure.label}. Line: its {SPREADS[spread].unbroken} "
        f"over {over}{before}.{margin} The verdict is{after}."
        + "".join(f" {sentence}." for sentence in on_verdicts(summary, measure)),
    )


def tips_of_differences(summary: pd.DataFrame, measure: Measure, spread: str) -> Tips:
    """Difference, interval, p and number of pairs of each method."""
    factor, tips = (100 if measure.unit == "%" else 1), []
    for at, (_, row) in enumerate(draw.compared(summary)):
        low, high = (gap(measure, end) for end in draw.ends(measure, row, spread))
        half_width = row[f"difference_{SPREADS[spread].column}"]
        interval = f", {SPREADS[spread].unbroken} {low} to {high}" if math.isfinite(half_width) else ""
        p = f"p {row['p']:.2g}" if math.isfinite(row["p"]) else f"p {MISSING}"
        text = f"{row['method']}: {draw.verdict(measure, row)}{interval}; {p}, {row['pairs']} paired {row['observed']}s"
        tips.append(Tip(factor * row["difference"], at + 0.2, text))
    return Tips("y", tips)


def block(record: RunRecord) -> str:
    """Return a text that is equal for runs on the same data set and skew. Methods are ranked among these runs."""
    table = without_seeds(record.experiment)
    return json.dumps({key: table.get(key) for key in ("dataset", "skew")}, sort_keys=True)


def ranking(results: Results) -> tuple[list[str], int, Ranks] | None:
    """Return the methods, the number of data sets, and the ranks; None for fewer than two data sets or common methods.

    A method is ranked by its mean over seeds if it has finished on every data set. Runs of one method may differ between data
    sets, not on one.
    """
    import pandas as pd

    blocks = [[run for run in results.runs if block(run) == name] for name in dict.fromkeys(map(block, results.runs))]
    if len(blocks) < 2:
        return None
    measure, order, means = results.measure, list[str](), []
    for runs in map(titled, blocks):
        names = {run.id: run.name for run in runs}
        frame = results.read[results.read["run"].isin(names)]
        seeds = per_seed(frame.assign(method=frame["run"].map(names)), [measure])[measure.key]
        means.append(seeds.groupby("method").mean())
        order += names.values()
    table = pd.DataFrame(means)
    table = table[[method for method in dict.fromkeys(order) if method in table]].dropna(axis=1)
    if len(table.columns) < 2:
        return None
    return list(table.columns), len(table), rank_methods(measure.sign * table.to_numpy(dtype=float))


def on_ranks(blocks: int, ranks: Ranks) -> str:
    """Format the number of data sets, p, and the critical difference in one line."""
    text = f"mean rank over {blocks} data sets, 1 is best"
    if math.isfinite(ranks.critical_difference):
        text += f"; Friedman p = {ranks.p:.2g}, critical difference {ranks.critical_difference:.2f}"
    return text


def ranks(results: Results) -> Picture:
    """The figure of the methods' ranks over several data sets."""
    if not (ranked := ranking(results)):
        raise BadInput("ranks: need runs of at least two methods in common on at least two data sets")
    methods, blocks, numbers = ranked
    return Picture(
        key="ranks",
        heading="ranks over the data sets",
        draw=lambda _: draw.draw_ranks(methods, numbers, on_ranks(blocks, numbers)),
        caption=f"Methods ranked by mean {results.measure.label} within each data set and its skew. A thick bar joins methods "
        "whose mean ranks differ by less than Nemenyi’s critical difference (Demšar 2006).",
    )


def dealt(records: Sequence[RunRecord]) -> RunRecord:
    """Return the run whose partition is shown: the first that has stored one, or else the first."""
    return next((record for record in records if "partition" in record.facts), records[0])


def partition(results: Results) -> Picture:
    """The figure of each client's rows by label, of one run."""
    record = dealt(results.runs)
    rows = results.store.partition(record.id)
    require(len(rows) > 0, f"run {record.id} has no stored partition")
    number = record.facts.get("partition", {}).get("clients", 0)
    return draw.of_partition(rows, number if isinstance(number, int) else 0)


AXES = {
    "line": "filter-normalised random direction",
    "surface": "two filter-normalised random directions",
    "plane": "distance in the plane of the three models",
    "path": "distance in the plane in which the global model moved most",
}
"""The axes' label, by kind of landscape."""


def keep(folder: Path, kind: str, numbers: Mapping[str, object]) -> None:
    """Write the numbers of a landscape to its run's folder; the report reads them there."""
    write_whole(folder / f"landscape-{kind}.json", json.dumps(numbers), "landscape")


def kept(folder: Path) -> list[dict[str, Any]]:
    """Read the numbers of all landscapes in a run's folder; damaged files are left out."""
    landscapes = []
    for path in sorted(folder.glob("landscape-*.json")):
        try:
            require_regular(path)
            numbers = json.loads(path.read_text(encoding="utf-8"))
            shapes = {np.shape(sheet) for sheet in numbers["losses"].values()}
            if numbers["kind"] in AXES and shapes == {(len(numbers["b"]), len(numbers["a"]))}:
                landscapes.append(numbers)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return landscapes


def landscapes(results: Results) -> list[Picture]:
    """Figures of the loss landscapes that `fedskew landscape` stored, for at most `LANDSCAPES` of the runs."""
    of_runs = [(record, kept(results.store.run_folder(record.id))) for record in results.records]
    sheets = [
        (record, landscape, name)
        for record, stored_landscapes in [pair for pair in of_runs if pair[1]][:LANDSCAPES]
        for landscape in stored_landscapes
        for name in landscape["losses"]
    ]
    return [of_sheet(f"landscape-{number}", *sheet) for number, sheet in enumerate(sheets)]


def of_sheet(key: str, record: RunRecord, landscape: Mapping[str, Any], name: str) -> Picture:
    """The figure of the losses on the rows with this ``name``, on the grid of a landscape."""
    path, axes = landscape.get("path", ()), AXES[landscape["kind"]]
    a, b, losses = (np.asarray(x, dtype=float) for x in (landscape["a"], landscape["b"], landscape["losses"][name]))
    where = "the test set" if name == "test set" else f"the rows of {name}"
    line = " The line is the global model from its start to its last round." if path else ""
    steps = [Tip(x, y, f"after round {t}" if t else "start") for t, (x, y) in enumerate(path)]
    return Picture(
        key=key,
        heading=f"loss landscape of {record.name}, {name}",
        draw=lambda _: draw.draw_slices(a, b, {name: losses}, landscape["models"], axes, path),
        tips=lambda: Tips("xy", steps),
        caption=f"Loss on {where} around the model of run {record.id}; axes: {axes}.{line}",
    )

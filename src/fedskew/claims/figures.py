"""The figures of a document, drawn from our runs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pandas as pd

from fedskew.claims.document import ClaimTable, Panel
from fedskew.claims.quantities import AT_MOST_ONE, Measured, Series, curve, measures, words_for
from fedskew.claims.verdicts import Results, cells
from fedskew.core.text import count
from fedskew.measure.registry import Measure, measures_of
from fedskew.report import draw
from fedskew.report.draw import of_partition
from fedskew.report.plots import tips_of_curves
from fedskew.report.series import over_seeds
from fedskew.report.style import Picture, tips_along
from fedskew.report.words import with_interval

Lines = Mapping[str, Mapping[int, Series]]
"""Rounds and values by line and seed."""

BANDS = {"interval": "95 % interval", "range": "range"}


def pictures(table: ClaimTable, results: Results) -> list[Picture]:
    """Return the figures of a table's panels that have runs. A panel that compares arms needs runs of two."""
    kinds: dict[str, Callable[[str, ClaimTable, Panel, Results], list[Picture]]] = {
        "curves": curves, "bars": bars, "clients": clients, "layers": layers, "partition": partition,
    }  # fmt: skip
    return [
        picture
        for number, panel in enumerate(table.panels, 1)
        if sum(draws(panel, results.get(arm, {})) for arm in table.drawn(panel)) >= min(2, len(table.drawn(panel)))
        for picture in kinds[panel.kind](f"{table.name}-{number}", table, panel, results)
    ]


def draws(panel: Panel, runs: Mapping[int, Measured]) -> bool:
    """Return if one of an arm's runs has what a panel draws."""
    return any("/" not in panel.of or run.of_clients(panel.of) for run in runs.values())


def curves(key: str, table: ClaimTable, panel: Panel, results: Results) -> list[Picture]:
    """A quantity over the rounds: a line for each arm."""
    arms = [arm for arm in table.drawn(panel) if results.get(arm)]
    lines = {arm: {seed: curve(panel.of, run) for seed, run in results[arm].items()} for arm in arms}
    return [of_lines(key, panel, lines, measure_of(panel.of), panel.title)]


def clients(key: str, table: ClaimTable, panel: Panel, results: Results) -> list[Picture]:
    """A measure of each client over the rounds, of the first seed only: other seeds have other clients."""
    (arm,) = table.drawn(panel)
    seed, run = min(results[arm].items())
    of_each = list(run.of_clients(panel.of).items())[: panel.first or None]
    lines = {f"client {k + 1}": {seed: series} for k, series in of_each}
    return [of_lines(key, panel, lines, of_parts(panel, run), panel.title or arm)]


def layers(key: str, table: ClaimTable, panel: Panel, results: Results) -> list[Picture]:
    """A measure of each layer over the rounds: a figure for each layer, with a line for each arm."""
    runs = {arm: of_seed for arm in table.drawn(panel) if draws(panel, of_seed := results.get(arm, {}))}
    run = next(run for of_seed in runs.values() for run in of_seed.values())
    drawn = []
    for k, layer in enumerate(run.record.facts["layers"]):
        lines = {
            arm: {seed: one.of_clients(panel.of)[k] for seed, one in of_seed.items()} for arm, of_seed in runs.items()
        }
        drawn.append(of_lines(f"{key}-{layer}", panel, lines, of_parts(panel, run), layer))
    return drawn


def of_parts(panel: Panel, run: Measured) -> Measure:
    """Return the measure of each client or layer that a panel draws."""
    split, name = panel.of.split("/")
    return measures_of([run.record.facts]).stored[split, name]


def of_lines(key: str, panel: Panel, lines: Lines, measure: Measure, title: str) -> Picture:
    """The figure of lines over the rounds, each a mean over its seeds with a band."""
    order, points = list(lines), over_rounds(lines, panel.band)
    heading, seeds = title or measure.label, max((len(of_seed) for of_seed in lines.values()), default=0)
    (first, *_), *_ = lines.values()
    means = f"Means over {count(seeds, 'seed')}, with their {BANDS[panel.band]}."
    return Picture(
        key=key,
        heading=heading,
        draw=partial(draw.draw_curves, points, measure, order, circled=panel.lowest),
        tips=partial(tips_of_curves, points, measure, order),
        caption=(means if seeds > 1 else f"Curves of seed {first}.") + " Circles are at the lowest points." * panel.lowest,
        label=measure.label,
    )  # fmt: skip


def over_rounds(lines: Lines, band: str) -> pd.DataFrame:
    """Return the table that `draw.draw_curves` draws, with a method for each line."""
    parts = [
        pd.DataFrame({"method": line, "round": rounds, "value": values})
        for line, of_seed in lines.items()
        for rounds, values in of_seed.values()
    ]
    groups = pd.concat(parts, ignore_index=True).dropna().groupby(["method", "round"], sort=False)["value"]
    table = over_seeds(groups, "ci95")
    low, high = table["mean"] - table["half"], table["mean"] + table["half"]
    if band == "range":
        low, high = groups.min(), groups.max()
    return table.assign(low=low, high=high, runs=table["count"], stopped=0).reset_index()


def bars(key: str, table: ClaimTable, panel: Panel, results: Results) -> list[Picture]:
    """A quantity of each arm as bars with intervals, and the document's numbers. In a matrix, bars stand in groups by column."""
    numbers = cells(table, results, (panel.of,))
    rows = []
    for arm in table.drawn(panel):
        bar, group = arm.rsplit(", ", 1) if table.matrix else ("", arm)
        rows.append({"bar": bar, "group": group, **vars(numbers[arm][panel.of])})
    frame = pd.DataFrame(rows).astype({"mean": float, "half": float, "document": float})
    frame = frame[frame["mean"].notna()]
    frame["place"] = pd.factorize(frame["group"])[0]
    measure, order = measure_of(panel.of), list(dict.fromkeys(frame["bar"]))
    printed = " Dotted lines are the document’s numbers." if frame["document"].notna().any() else ""
    picture = Picture(
        key=key,
        heading=panel.title or measure.label,
        draw=partial(draw.draw_bars, frame, measure, order),
        tips=partial(
            tips_along, frame.rename(columns={"bar": "method"}), "place", order, "mean",
            head=lambda row: row["group"],
            text=lambda row: with_interval(measure, row["mean"], row["half"])
            + (f", document {row['document']:g}" if math.isfinite(row["document"]) else ""),
        ),
        caption=f"Means over the seeds, with their 95 % interval.{printed}",
        label=measure.label,
    )  # fmt: skip
    return [picture]


def partition(key: str, table: ClaimTable, panel: Panel, results: Results) -> list[Picture]:
    """The training rows of each client by label, of the first seed."""
    (arm,) = table.drawn(panel)
    seed, run = min(results[arm].items())
    rows = pd.DataFrame(run.dealt, columns=["client", "client_name", "label", "rows"])
    if (rows["client_name"] == rows["client"].astype(str)).all():  # no names: numbers from 1, as in the other figures
        rows["client_name"] = (rows["client"] + 1).astype(str)
    caption = f"Training rows of each client by label, seed {seed}."
    picture = of_partition(rows, rows["client"].nunique())
    return [replace(picture, key=key, heading=panel.title or arm, caption=caption)]


def measure_of(name: str) -> Measure:
    """Return the measure of this name in claims. For any other quantity return a measure that has only a label and its maximum."""
    high = 1.0 if name in AT_MOST_ONE else math.inf
    return measures().get(name) or Measure("", name, "", label=words_for(name), low=-math.inf, high=high)

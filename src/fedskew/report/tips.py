"""Tips: values of a figure that the page shows under the pointer. The arrow keys move between them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedskew.core.text import count
from fedskew.measure.registry import Measure, primary
from fedskew.report.words import Row, rows_of, value, with_interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SHOWN_CLIENTS = 60
"""Maximum number of clients in the figure of a partition."""

MOST = 250
MOST_CELLS = 1000
"""Maximum number of tips along one axis of a figure, and in a figure of cells."""


NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
BIN = re.compile(rf"(.*?)(up to |above )?({NUMBER})(?: to {NUMBER})?")
"""A label that ends in a number, or in a range such as "up to 3", "3 to 7" or "above 7"."""


@dataclass(frozen=True)
class Line:
    """One line of a tip: the method's position, the vertical coordinate of its point, and its value as text."""

    method: int
    y: float
    text: str


@dataclass(frozen=True)
class Tip:
    """The values at one point of a figure. ``x`` and ``y`` are in the axes' units."""

    x: float
    y: float
    head: str
    lines: Sequence[Line] = ()


@dataclass(frozen=True)
class Tips:
    """The tips of a figure, in the order of the arrow keys. The pointer shows the nearest one in the coordinates ``by``."""

    by: Literal["x", "y", "xy"]
    tips: Sequence[Tip]
    methods: Sequence[str] = ()


def of_curves(table: pd.DataFrame, measure: Measure, order: Sequence[str]) -> Tips:
    """The tips of `plots.draw_curves`: the values of all methods in each round. ``table`` comes from `series.curves`."""
    number, found = {method: i for i, method in enumerate(order)}, []
    table = table[np.isfinite(table["mean"])]
    for round_, rows in in_places(rows_of(table), "round").items():
        rows.sort(key=lambda row: -float(row["mean"]))
        lines = [
            Line(number[row["method"]], row["mean"], with_interval(measure, row["mean"], row["high"] - row["mean"]))
            for row in rows
        ]
        found.append(Tip(round_, lines[0].y, f"round {round_}", lines))
    return Tips("x", found, order)


def of_clients(table: pd.DataFrame, order: Sequence[str]) -> Tips:
    """The tips of `plots.draw_clients`: the client's value at each rank. ``table`` comes from `series.per_client`."""
    number, measure, found = {method: i for i, method in enumerate(order)}, primary(), []
    for rank, rows in in_places(rows_of(table), "rank").items():
        lines = [
            Line(
                number[row["method"]],
                row[measure.name],
                ", ".join(filter(None, [value(measure, row[measure.name]), row["client_name"]])),
            )
            for row in rows
        ]
        found.append(Tip(rank, lines[0].y, f"client {rank} from the worst", lines))
    return Tips("x", found, order)


def in_places(rows: Sequence[Row], key: str) -> dict[int, list[Row]]:
    """Group rows by ``key`` (round or rank). At most `MOST` groups stay, evenly spaced, with the first and the last."""
    places = sorted({int(row[key]) for row in rows})
    if not places:
        return {}
    found: dict[int, list[Row]] = {place: [] for place in evenly(places, MOST)}
    for row in rows:
        if row[key] in found:
            found[int(row[key])].append(row)
    return found


def evenly(places: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the places, evenly spaced, with the first and the last."""
    indices = np.linspace(0, len(places) - 1, min(len(places), most)).round().astype(int)
    return [places[i] for i in np.unique(indices)]


def rows_by_label(rows: pd.DataFrame) -> pd.DataFrame:
    """Turn the table of `RunStore.partition` into numbers of rows (clients, labels)."""
    counts = rows.pivot_table(
        index=["client", "client_name"], columns="label", values="rows", aggfunc="sum", fill_value=0
    )
    return counts[sorted(counts.columns, key=natural)]


def of_partition(rows: pd.DataFrame) -> Tips:
    """The tips of `plots.draw_partition`: the number of rows of each client and label."""
    counts = rows_by_label(rows).iloc[:SHOWN_CLIENTS]
    values = counts.to_numpy(dtype=int)
    found = [
        Tip(c, k, f"client {counts.index[k][1]}, {counts.columns[c]}: {count(int(values[k, c]), 'row')}")
        for k, c in np.argwhere(values).tolist()
    ]
    return Tips("xy", found if len(found) <= MOST_CELLS else [])


def natural(label: object) -> tuple[str, float, bool, str]:
    """Sort key for labels. Equal words are sorted by the number or range at their end, all else by the alphabet."""
    text = str(label)
    found = BIN.fullmatch(text)
    return (found[1], float(found[3]), found[2] != "up to ", text) if found else (text, 0.0, False, text)


def attribute(figure: Figure, tips: Tips) -> str:
    """Return the tips as JSON for an HTML attribute in single quotes.

    Coordinates are thousandths of the figure's width and height, from its upper left corner.
    """
    width, height = figure.bbox.size
    place = figure.axes[0].transData

    def at(x: float, y: float) -> tuple[int, int]:
        right, up = place.transform((x, y))
        return round(1000 * right / width), round(1000 - 1000 * up / height)

    found = [
        [*at(tip.x, tip.y), tip.head, [[line.method, at(tip.x, line.y)[1], line.text] for line in tip.lines]]
        for tip in tips.tips
    ]
    text = json.dumps(
        {"by": tips.by, "methods": list(tips.methods), "tips": found}, ensure_ascii=False, separators=(",", ":")
    )
    return text.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")

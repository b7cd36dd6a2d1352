"""The HTML page of a diagnosis: one file, in the report's style, that needs no network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.core.files import write_whole
from fedskew.core.text import listed
from fedskew.measure.heterogeneity.faces import FACES
from fedskew.report import words
from fedskew.report.draw import frame_cells, of_partition
from fedskew.report.experiments import name_of
from fedskew.report.style import INK, MUTED, SERIES, Picture, Tip, Tips, blank, rendered, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LABELS = 100
"""Maximum number of labels in the figure of clients. The most frequent labels are shown."""

MOST_CLIENTS = 24
"""Maximum number of clients. The figure of columns shows those that differ most; the table shows the largest."""

FAINT, DEEPEST = 0.05, 2.0
"""Absolute effects in the figure of columns: below the first, a cell is empty; above the second, no cell gets darker."""


NEAR, NAMED = 0.9, 3
"""A client is named as farthest if it has at least this share of the largest distance; at most this number are named."""


def answer(diagnosis: Mapping[str, Any]) -> str:
    """Sum up the diagnosis in a few sentences."""
    by_name = {face["face"]: face for face in diagnosis["faces"]}
    missing = [name for name in FACES if name not in by_name]
    unknown = f" Not measured: {listed(missing)}." if missing else ""
    if not diagnosis["dominant"]:
        if diagnosis["columns"]:
            return f"No measured face differs beyond chance as a whole, but single columns do.{unknown}"
        alike = "" if missing else ": the clients look like fair samples of one population"
        return f"{'No measured face' if missing else 'Nothing'} differs beyond chance{alike}.{unknown}"
    first = by_name[diagnosis["dominant"]]
    others = [f for f in diagnosis["faces"] if f is not first and f["p"] <= 0.05 and f["strength"] >= 0.05]
    text = f"The clients differ mostly by {first['face']}: {first['verdict']}, strength {first['strength']:.2f}."
    if others:
        faces = [f"{face['face']} ({face['verdict']}, {face['strength']:.2f})" for face in others]
        text += f" Also {listed(faces)}."
    return f"{text}{unknown}"


def farthest(diagnosis: Mapping[str, Any], face: Mapping[str, Any]) -> str:
    """Name the clients with the largest distances in a face, and the largest one; empty if they do not differ beyond chance."""
    if face["verdict"] == "by chance":
        return ""
    each, far = face["each"], max(face["each"])
    order = sorted(range(len(each)), key=lambda k: -each[k])
    names = [diagnosis["client_names"][k] for k in order if each[k] >= NEAR * far]
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return f"{listed([*names[:NAMED], *more])} ({two(far)})"


def explained(diagnosis: Mapping[str, Any]) -> str:
    """Say how many columns differ no more than the labels explain; empty if there are none."""
    names = diagnosis["explained_by_labels"]
    if len(names) < 2:
        return f"1 column differs no more than the labels explain: {names[0]!r}" if names else ""
    return f"{len(names)} columns differ no more than the labels explain, such as {names[0]!r}"


def write_diagnosis(diagnosis: Mapping[str, Any], path: str | Path) -> Path:
    """Write the page of a diagnosis; raises `FedskewError` if the file cannot be written."""
    return write_whole(path, page(diagnosis), "page")


def page(diagnosis: Mapping[str, Any]) -> str:
    """Return the page as HTML text."""
    return rendered(
        "diagnosis.html",
        {"two": two, "title": lambda method: str(name_of(method))},
        diagnosis=diagnosis,
        answer=answer(diagnosis),
        faces=face_figure(diagnosis),
        columns=column_figure(diagnosis),
        explained=explained(diagnosis),
        farthest=partial(farthest, diagnosis),
        most_clients=MOST_CLIENTS,
        largest=sorted(np.argsort(-np.array(diagnosis["sizes"]), kind="stable")[:MOST_CLIENTS].tolist()),
        partition=of_partition(partition(diagnosis), diagnosis["clients"]).on_page(),
    )


def two(value: float) -> str:
    """Format the number with two decimals, without a sign if it rounds to 0."""
    return words.MISSING if math.isnan(value) else f"{value:.2f}".replace("-0.00", "0.00")


def partition(diagnosis: Mapping[str, Any]) -> Any:
    """Return the number of rows of each client and label as a data frame, like `RunStore.partition`."""
    import pandas as pd

    counts, clients = np.array(diagnosis["label_counts"]), diagnosis["client_names"][:200]
    common = np.sort(np.argsort(-counts.sum(0), kind="stable")[:MOST_LABELS])
    table = pd.DataFrame(counts[: len(clients), common], columns=[diagnosis["classes"][at] for at in common])
    table = table.assign(client=range(len(clients)), client_name=clients)
    return table.melt(["client", "client_name"], var_name="label", value_name="rows")


def face_figure(diagnosis: Mapping[str, Any]) -> dict[str, object]:
    """The figure of the faces."""
    draw, tips = (lambda _: draw_faces(diagnosis)), partial(tips_of_faces, diagnosis)
    return Picture(key="faces", heading="the faces against chance", draw=draw, tips=tips).on_page()


def draw_faces(diagnosis: Mapping[str, Any]) -> Figure:
    """Draw each face as a dot with its interval, each client as a faint tick, and chance as a bar."""
    faces = diagnosis["faces"]
    with blank(66 + 46 * len(faces)) as (figure, axes):
        for row, face in enumerate(faces):
            each = [min(v, 1.0) for v in face["each"][:300]]
            axes.plot(each, [row + 0.3] * len(each), "|", color=MUTED, markersize=5, alpha=0.5)
            axes.plot([face["chance"]] * 2, [row - 0.3, row + 0.3], color=SERIES[1], linewidth=2)
            if not math.isnan(face["low"]):
                axes.plot([face["low"], face["high"]], [row] * 2, color=SERIES[0], linewidth=3, alpha=0.6)
            axes.plot([face["value"]], [row], "o", color=SERIES[0], markersize=7)
            axes.text(1.01, row - 0.27, face["verdict"], color=INK, ha="right", va="center")
        place = faces[0]["chance"], -0.32
        axes.annotate("chance", place, ha="left", va="bottom", color=SERIES[1], annotation_clip=False, fontsize=9)
        axes.set_yticks(range(len(faces)), [face["face"] for face in faces], color=INK)
        axes.set_ylim(len(faces) - 0.5, -0.7)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("distance of the clients: 0 alike, at most 1 − 1/clients")
        axes.tick_params(length=0)
    return figure


def tips_of_faces(diagnosis: Mapping[str, Any]) -> Tips:
    """The tips of `draw_faces`: value, interval, chance and verdict of each face."""
    tips = []
    for row, face in enumerate(diagnosis["faces"]):
        interval = "" if math.isnan(face["low"]) else f" ({two(face['low'])} to {two(face['high'])})"
        text = f"{face['face']}: {two(face['value'])}{interval}, by chance {two(face['chance'])}; {face['verdict']}"
        tips.append(Tip(face["value"], row, text))
    return Tips("y", tips)


def column_figure(diagnosis: Mapping[str, Any]) -> dict[str, object] | None:
    """The figure of clients and the columns in which they differ; None if no column differs."""
    if not diagnosis["columns"]:
        return None
    effects = np.array([column["each"] for column in diagnosis["columns"]]).T  # (clients, columns)
    effects = np.where(np.abs(effects) < FAINT, 0, effects)
    far = np.abs(effects).max(1)
    farthest_clients = np.sort(np.argsort(-far, kind="stable")[:MOST_CLIENTS])
    farthest_clients = farthest_clients[far[farthest_clients] > 0]
    names = [str(diagnosis["client_names"][k]) for k in farthest_clients]
    columns = [title_of(column) for column in diagnosis["columns"]]
    tips = [
        Tip(c, k, f"{columns[c]} of {names[k]}: {in_words(effects[client, c])}")
        for k, client in enumerate(farthest_clients)
        for c in range(len(columns))
    ]
    return Picture(
        key="columns",
        heading="columns that differ, by client",
        draw=lambda _: draw_columns(effects[farthest_clients], names, columns),
        tips=lambda: Tips("xy", tips),
    ).on_page()


def title_of(column: Mapping[str, Any]) -> str:
    """Name what is compared: a column, a share of one value, missing values, a word, a symbol, or copied rows."""
    kind, name, word = column["kind"], str(column["column"]), column["word"]
    if kind in ("word", "symbol"):
        return f'{kind} "{word}"'
    return {"missing": f"{name} missing", "copied": "copied rows", "share": f"{name} {word}"}.get(kind, name)


def in_words(effect: float) -> str:
    """Describe a client's effect in words."""
    if not effect:
        return "as elsewhere"
    return f"{abs(effect):.1f} standard deviations {'above' if effect > 0 else 'below'} all other clients"


def draw_columns(effects: np.ndarray[Any, Any], names: list[str], columns: list[str]) -> Figure:
    """Draw effects (clients, columns) as coloured cells: blue above all other clients, orange below, darker if larger."""
    from matplotlib.patches import Rectangle

    largest = min(np.abs(effects).max(), DEEPEST)
    with blank(110 + 20 * len(names)) as (figure, axes):
        for k, c in np.argwhere(effects).tolist():
            colour, depth = SERIES[0 if effects[k, c] > 0 else 1], 0.1 + 0.45 * min(1, abs(effects[k, c]) / largest)
            axes.add_patch(Rectangle((c - 0.47, k - 0.44), 0.94, 0.88, facecolor=colour, alpha=depth, linewidth=0))
            axes.text(c, k, f"{effects[k, c]:+.1f}".replace("-", "−"), ha="center", va="center", fontsize=9)
        frame_cells(axes, [shorten(name, 14) for name in names], len(columns), 9)
        short = [shorten(column, 18) for column in columns]
        place: dict[str, Any] = {"rotation": 30, "ha": "left"} if len("".join(short)) > 36 else {"ha": "center"}
        axes.set_xticks(range(len(columns)), short, fontsize=9, **place)
    return figure

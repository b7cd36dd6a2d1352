"""A picture of each skew and of each measure with a curve, and the pages that show them. Made when the site is built."""

import dataclasses
import io
import tempfile
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from builder.methods import sentence, table
from matplotlib.figure import Figure

import fedskew as fs
from fedskew.cli.components import component_rows
from fedskew.core.component import build
from fedskew.measure import registry
from fedskew.skew import SKEWS
from fedskew.skew.concept import Concept
from fedskew.skew.feature import FeatureSkew, draw_all, transformed
from fedskew.skew.partition import Ints
from fedskew.skew.values import ByValues, quantile_bins

CLIENTS = 8
OPTIONS = {
    "label-dirichlet": "alpha=0.3",
    "label-dirichlet-balanced": "alpha=0.3",
    "label-dirichlet-per-class": "alpha=0.3",
    "label-dirichlet-top-up": "alpha=0.3",
    "label-similarity": "similarity=0.3",
    "quantile-dirichlet": "alpha=0.3,bins=5",
    "column-dirichlet": "column=age,alpha=0.3,bins=5",
    "quantity-sizes": "rows=[400,300,200,100,60,40,20,10]",
    "feature-rotation": "clusters=4,side=8",
    "feature-blur": "sigma=1.5,side=8",
    "feature-style": "strength=1,side=8",
    "feature-noise": "level=3",
    "feature-affine": "strength=1",
    "feature-sensor": "degrees=90",
}
"""With which a picture shows the skew well."""

METHODS = ("fedavg", "scaffold")

NO_PICTURE = {
    "natural": "The clients are the people, hospitals or devices in the data.",
    "pooled": "All rows are on one client.",
    "from-folder": "The partition is read from a folder.",
    "feature-text": "The texts of a cluster get typing errors, short forms, capitals, and an opening and a closing of their own.",
}
"""Skews that depend on files, or that a picture would not explain."""


def pages() -> dict[str, str]:
    return {"data/pictures.md": of_skews(), "data/measures.md": of_measures()}


def of_skews() -> str:
    parts = [
        "# Skews in pictures",
        f"Each bar is one of {CLIENTS} clients and each colour a digit, on the data set digits. Skews by values show fifths of "
        "the blood pressure, the age and the place in the file of the people of the data set heart. For features each picture is "
        "the same row as four clients see it, for concepts the label that a client gives to each digit. [Skews](skews.md) "
        "explains how they combine.",
    ]
    for row in component_rows(SKEWS):
        name = str(row["name"])
        spec = f"{name}:{OPTIONS[name]}" if name in OPTIONS else name
        shown = NO_PICTURE.get(name) or f"`{spec}`\n\n![{row['idea']}](../pictures/skew-{name}.svg)"
        parts += [
            f"## {name}",
            f"{sentence(str(row['idea']))}.",
            shown,
            f"Options: `{row['options']}`" if row["options"] else "",
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def of_measures() -> str:
    parts = [
        "# Measures in pictures",
        "Two methods on digits with strong label skew, 12 rounds, one seed. The lines show what a measure reacts to; they prove "
        "nothing about the methods. [Measurements](../reference/measurements.md) lists everything that a run stores.",
    ]
    for m in drawn_measures():
        parts += [
            f"## {m.title or m.key}",
            f"{sentence(m.note)}.",
            f"![{m.note}](../pictures/measure-{m.key}.svg)",
        ]
    rows = [{"name": m.key, "what": m.note, "over the rounds": m.reduce} for m in registry.Measures().shown()]
    return "\n\n".join([*parts, "## All columns", table(rows, rows[0])]) + "\n"


def pictures() -> dict[str, bytes]:
    """The pictures by path below ``docs``."""
    made = {f"pictures/skew-{name}.svg": of_skew(name, cls) for name, cls in SKEWS.items() if name not in NO_PICTURE}
    return {**made, **of_runs()}


def paths() -> set[str]:
    """The paths of all pictures, without drawing them."""
    skews = {f"pictures/skew-{name}.svg" for name in SKEWS if name not in NO_PICTURE}
    return skews | {f"pictures/measure-{m.key}.svg" for m in drawn_measures()}


def of_skew(name: str, cls: type) -> bytes:
    skew = build("skew", SKEWS, f"{name}:{OPTIONS[name]}" if name in OPTIONS else name)
    if isinstance(skew, Concept):
        return of_concept(skew)
    if isinstance(skew, ByValues):
        return of_values(skew)
    return of_features(skew) if isinstance(skew, FeatureSkew) else of_partition(skew)


def of_values(skew: ByValues) -> bytes:
    """The people of heart in fifths: of their blood pressure as the target, of their age, or of their place in the file."""
    data, seen = fs.load("heart"), {"QuantileDirichlet": "trestbps", "ColumnDirichlet": "age"}.get(type(skew).__name__)
    values = data.x[:, data.columns.index(seen)] if seen else np.arange(len(data.y))
    numbers = dataclasses.replace(
        data, y=values.astype(float), y_test=data.x_test[:, 0].astype(float), classes=(), target="", sensitive=""
    )
    fifths = quantile_bins(values, 5)
    counts = fs.partition(numbers, skew, clients=CLIENTS).label_counts(fifths, 5)
    return bars(counts, {"trestbps": "blood\npressure", "age": "age", None: "time"}[seen] + ",\nfifths")


def of_partition(skew: object) -> bytes:
    data = fs.load("digits")
    return bars(fs.partition(data, skew, clients=CLIENTS).label_counts(data.y, data.num_classes), "digit")


def bars(counts: Ints, title: str) -> bytes:
    figure = Figure(figsize=(6, 2.2), layout="constrained")
    panel = figure.subplots()
    colours = mpl.colormaps["tab10"](range(counts.shape[1]))
    bottom = np.zeros(len(counts))
    for label, colour in enumerate(colours):
        panel.bar(range(len(counts)), counts[:, label], bottom=bottom, color=colour, label=str(label), width=0.8)
        bottom += counts[:, label]
    panel.set(xlabel="client", ylabel="rows", xticks=range(len(counts)))
    figure.legend(title=title, loc="outside right center", fontsize=7, title_fontsize=7)
    return saved(figure)


def of_features(skew: FeatureSkew) -> bytes:
    windows = np.sin(np.linspace(0, 6, 40) + np.arange(3)[:, None])[None] * np.array([1.0, 0.6, 0.3])[:, None]
    flat = fs.load("digits").x[:1]
    x = windows if "Sensor" in type(skew).__name__ else flat
    rows = np.repeat(x, 4, axis=0)
    seen = transformed([skew], draw_all([skew], rows, 4, 1), rows, np.arange(4), 1)
    figure = Figure(figsize=(6, 1.6), layout="constrained")
    for client, (panel, row) in enumerate(zip(figure.subplots(1, 4), seen, strict=True)):
        panel.plot(row.T, linewidth=1) if row.ndim == 2 else panel.imshow(row.reshape(8, 8), cmap="gray_r")
        panel.set(xticks=[], yticks=[])
        panel.set_title(f"client {client}", fontsize=8)
    return saved(figure)


def of_concept(skew: Concept) -> bytes:
    data, rng = fs.load("digits"), np.random.default_rng(0)
    own = skew.draw(data.x, data.num_classes, 4, rng)
    figure = Figure(figsize=(6, 1.9), layout="constrained")
    for client, panel in enumerate(figure.subplots(1, 4)):
        given, kind = data.y, own["group"][client]
        if kind:  # else the concept of the data
            changed = skew.touched(own, data.x, np.full(len(data.y), kind))
            given = np.where(changed, own["table"][kind][data.y], data.y).astype(int)
        counts = np.zeros((data.num_classes, data.num_classes))
        np.add.at(counts, (data.y, given), 1)
        panel.imshow(counts, cmap="Blues")
        panel.set(xticks=[], yticks=[], xlabel="label" if client == 0 else "", ylabel="digit" if client == 0 else "")
        panel.set_title(f"client {client}", fontsize=8)
    return saved(figure)


def drawn_measures() -> list[registry.Measure]:
    return [m for m in registry.Measures().shown() if "curve" in m.views]


def of_runs() -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        experiment = fs.Experiment(
            dataset="digits",
            skew="label-dirichlet:alpha=0.1",
            training={"rounds": 12},
            evaluation={"every": 1, "adapt_steps": 1},
            engine="stacked",
        )
        frame = fs.compare(experiment, list(METHODS), seeds=1, runs=folder, jobs=1).measurements()
    made = {}
    for m in drawn_measures():
        figure = Figure(figsize=(6, 2.2), layout="constrained")
        panel = figure.subplots()
        for name, rows in frame[(frame["split"] == m.split) & (frame["name"].isin(m.of))].groupby("run"):
            line = rows.groupby("round")["value"].mean()
            panel.plot(line.index, line.values, marker=".", label=METHODS[int(name) - 1])
        panel.set(xlabel="round", ylabel=m.key)
        if panel.lines:
            panel.legend(fontsize=7)
        made[f"pictures/measure-{m.key}.svg"] = saved(figure)
    return made


def saved(figure: Figure, **options: Any) -> bytes:
    to = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedskew", "font.size": 8}):
        figure.savefig(to, format="svg", metadata={"Date": None}, facecolor="white", **options)
    return to.getvalue()

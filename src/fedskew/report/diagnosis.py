"""The page of a diagnosis: one HTML file that needs no network and no script, in the style of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.core.counting import count
from fedskew.core.errors import FedskewError
from fedskew.report import words
from fedskew.report.plots import INK, MUTED, SERIES, blank, draw_partition, styled
from fedskew.report.svg import inline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def answer(found: Mapping[str, Any]) -> str:
    """The diagnosis in a sentence or two."""
    if not found["dominant"]:
        return "Nothing differs beyond chance: the clients look like fair samples of one population."
    by_name = {face["face"]: face for face in found["faces"]}
    first = by_name[found["dominant"]]
    others = [f for f in found["faces"] if f is not first and f["p"] <= 0.05 and f["strength"] >= 0.05]
    text = f"The clients differ mostly by {first['face']}: {first['verdict']}, strength {first['strength']:.2f}."
    if others:
        named = [f"{face['face']} ({face['verdict']}, {face['strength']:.2f})" for face in others]
        text += f" Also {words.listed(named)}."
    return text


def write_diagnosis(found: Mapping[str, Any], path: str | Path) -> Path:
    """Write the page of a diagnosis; raises `FedskewError` if the file cannot be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(found), encoding="utf-8")
    except OSError as error:
        raise FedskewError(f"page {path}: cannot be written: {error.strerror}") from None
    return path


def page(found: Mapping[str, Any]) -> str:
    """The page as HTML text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    templates = files("fedskew.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update({"figures": words.figures, "count": count, "points": words.points, "two": two})
    return environment.from_string((templates / "diagnosis.html").read_text(encoding="utf-8")).render(
        css=Markup((templates / "page.css").read_text(encoding="utf-8")),
        found=found,
        answer=answer(found),
        faces=Markup(inline(draw_faces(found), "faces", "the four faces against chance")),
        partition=Markup(inline(draw_partition(partition(found), found["clients"]), "partition", "rows by label")),
    )


def two(value: float) -> str:
    """The number with two decimals; no sign if it rounds to 0."""
    return words.MISSING if math.isnan(value) else f"{value:.2f}".replace("-0.00", "0.00")


def partition(found: Mapping[str, Any]) -> Any:
    """The rows of each client and label, for the picture."""
    import pandas as pd

    rows = [
        {"client": k, "client_name": name, "label": label, "rows": count}
        for k, (name, counts) in enumerate(zip(found["client_names"], found["label_counts"], strict=True))
        if k < 200
        for label, count in zip(found["classes"], counts, strict=True)
    ]
    return pd.DataFrame(rows)


def draw_faces(found: Mapping[str, Any]) -> Figure:
    """Draw each face as a dot with its interval, each client as a faint tick, and chance as a bar."""
    faces = found["faces"]
    with styled():
        figure, axes = blank(48 + 42 * len(faces))
        for row, face in enumerate(faces):
            each = [min(v, 1.0) for v in face["each"][:300]]
            axes.plot(each, [row + 0.22] * len(each), "|", color=MUTED, markersize=5, alpha=0.5)
            axes.plot([face["chance"]] * 2, [row - 0.28, row + 0.1], color=SERIES[1], linewidth=2)
            if not math.isnan(face["low"]):
                axes.plot([face["low"], face["high"]], [row - 0.1] * 2, color=SERIES[0], linewidth=3, alpha=0.6)
            axes.plot([face["value"]], [row - 0.1], "o", color=SERIES[0], markersize=7)
        axes.set_yticks(range(len(faces)), [face["face"] for face in faces], color=INK)
        axes.set_ylim(len(faces) - 0.5, -0.5)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("total variation distance: 0 alike, at most 1 − 1/clients")
        axes.grid(axis="x")
        axes.tick_params(length=0)
    return figure

"""``landscape``: the loss around the model of a run, as a picture and in numbers."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedskew.cli.output import number, print_json, warn
from fedskew.cli.request import confirm
from fedskew.cli.terminal import Console, transient_progress
from fedskew.core.errors import FedskewError, require
from fedskew.experiment.landscape import Landscape, landscape
from fedskew.report.slices import draw_slices
from fedskew.store.runs import RunStore

AXES = {
    "line": "filter-normalised random direction",
    "surface": "two filter-normalised random directions",
    "plane": "distance in the plane of the three models",
}
FORMATS = ("svg", "png", "pdf")


def picture(parsed: argparse.Namespace) -> int:
    """Draw the slices of one run."""
    store = RunStore(parsed.runs, read_only=True)
    records = store.select(parsed.runs_wanted)
    require(len(records) == 1, f"landscape: one run at a time, these are {len(records)}; write its number")
    confirm(parsed, records)
    path: Path = parsed.output or store.run_folder(records[0].id) / f"landscape-{parsed.kind}.svg"
    require(path.suffix[1:] in FORMATS, f"landscape: {path.name} is no picture; end it in {', '.join(FORMATS)}")
    with transient_progress() as progress:
        total = parsed.points if parsed.kind == "line" else parsed.points**2
        bar = progress.add_task("losses", total=total)
        found = landscape(
            store,
            records[0].id,
            parsed.kind,
            parsed.clients,
            parsed.points,
            parsed.reach,
            lambda: progress.advance(bar),
            warn,
        )
    figure = draw_slices(found.window.a, found.window.b, found.sheets, found.points, AXES[found.kind])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise FedskewError(f"picture {path}: cannot be written: {error.strerror}") from None
    print_json({**numbers(found), "picture": str(path)}) if parsed.json else tell(found, path)
    return 0


def numbers(found: Landscape) -> dict[str, object]:
    return {
        "kind": found.kind,
        "a": found.window.a.tolist(),
        "b": found.window.b.tolist(),
        "losses": {name: sheet.tolist() for name, sheet in found.sheets.items()},
        "models": found.points,
        "sharpness": vars(found.sharpness),
        "overlap": found.overlap,
    }


def tell(found: Landscape, path: Path) -> None:
    console = Console(highlight=False)
    for name, sheet in found.sheets.items():
        lowest = divmod(int(sheet.argmin()), sheet.shape[1])
        place = f"a = {found.window.a[lowest[1]]:.3g}" + (
            f", b = {found.window.b[lowest[0]]:.3g}" if len(sheet) > 1 else ""
        )
        console.print(f"{name}: loss {sheet.min():.4g} to {sheet.max():.4g}, lowest at {place}", markup=False)
    for model, (a, b) in found.points.items():
        console.print(f"{model} lies at a = {a:.3g}, b = {b:.3g}", style="dim", markup=False)
    s = found.sharpness
    console.print(
        f"sharpness: the training loss rises by {s.rise:.4g} within {s.radius:.3g}; largest curvature {s.eigenvalue:.4g}"
    )
    if found.overlap is not None:
        console.print(f"the two clients' losses correlate by {number(found.overlap, 2)} over the window")
    console.print(f"picture: {path}", soft_wrap=True)

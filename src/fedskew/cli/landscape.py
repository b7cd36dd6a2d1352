"""``landscape``: the loss around the model of a run, as a picture and in numbers."""

import argparse
import itertools
from pathlib import Path

from fedskew.cli.output import number, print_json, save_figure, warn
from fedskew.cli.request import confirm, require_one
from fedskew.cli.terminal import Console, bar
from fedskew.core.errors import require
from fedskew.store.runs import RunStore
from fedskew.studies.landscape import Landscape, landscape

FORMATS = ("svg", "png", "pdf")


def picture(parsed: argparse.Namespace) -> int:
    """Draw slices of the loss landscape of one run."""
    store = RunStore(parsed.runs, read_only=True)
    records = store.select(parsed.runs_wanted)
    require_one("landscape", records)
    confirm(parsed, records)
    path: Path = parsed.output or store.run_folder(records[0].id) / f"landscape-{parsed.kind}.svg"
    require(
        path.suffix[1:] in FORMATS,
        f"landscape: {path.name} is not a picture's name; it must end in {', '.join(FORMATS)}",
    )
    total, done = parsed.points if parsed.kind == "line" else parsed.points**2, itertools.count(1)
    with bar("losses") as show:
        found = landscape(
            store,
            records[0].id,
            parsed.kind,
            parsed.clients,
            parsed.points,
            parsed.reach,
            lambda: show(next(done) / total),
            warn,
        )
    save_figure(found.plot(), path)
    print_json({**found.numbers(), "picture": str(path)}) if parsed.json else print_landscape(found, path)
    return 0


def print_landscape(found: Landscape, path: Path) -> None:
    console = Console()
    for name, sheet in found.sheets.items():
        lowest = divmod(int(sheet.argmin()), sheet.shape[1])
        place = f"a = {found.window.a[lowest[1]]:.3g}" + (
            f", b = {found.window.b[lowest[0]]:.3g}" if len(sheet) > 1 else ""
        )
        console.print(f"{name}: loss {sheet.min():.4g} to {sheet.max():.4g}, lowest at {place}")
    for model, (a, b) in found.points.items():
        console.print(f"{model} lies at a = {a:.3g}, b = {b:.3g}", style="dim")
    s = found.sharpness
    console.print(
        f"sharpness: the training loss rises by {s.rise:.4g} within {s.radius:.3g}; largest curvature {s.eigenvalue:.4g}"
    )
    if found.overlap is not None:
        console.print(f"the two clients' losses correlate by {number(found.overlap, 2)} over the window")
    console.print(f"picture: {path}", soft_wrap=True)

"""Printing results: tables on a terminal, plain text in a pipe, JSON for scripts."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.segment import Segment, Segments
from rich.table import Column, Table

from fedskew.core.errors import FedskewError, visible
from fedskew.core.files import replacing
from fedskew.core.text import listed
from fedskew.report import series
from fedskew.report.answer import how_sure, measuring, profiles, remarks, unfinished, warnings
from fedskew.report.budgets import budget_from
from fedskew.report.console import Console, say
from fedskew.report.experiments import between_sites, measured_rows, titled, tuning
from fedskew.report.files import against, readable
from fedskew.report.plots import on_ranks, ranking
from fedskew.report.tables import covered, on_verdicts, verdict_rule
from fedskew.report.words import SPREADS, heading
from fedskew.store.runs import RunRecord, RunStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def print_json(value: object) -> None:
    """Print JSON on standard output. NaN and infinity become null."""
    json.dump(clean(value), sys.stdout, indent=2)
    sys.stdout.write("\n")


def clean(value: object) -> object:
    """Convert a value to JSON types. NaN and infinity become null."""
    if isinstance(value, dict):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summary_json(results: series.Results) -> dict[str, object]:
    """Return the summary table, the curves of its runs (whole, by layer and by class), and the method's decisions by client."""
    curves, parts, of_clients = series.curves_by_run(results), results.parts, series.decided(results)
    return {
        "methods": results.summary.to_dict("records"),
        "sites": series.by_site(results).to_dict("records"),
        "runs": [
            {
                "run": r.id,
                "name": r.name,
                "seed": r.seed,
                "status": r.status,
                "rounds": r.rounds_done,
                "message": r.message,
                "curves": curves[curves["run"] == r.id].drop(columns="run").to_dict("records"),
                "parts": parts[parts["run"] == r.id].drop(columns="run").to_dict("records"),
                "decided": of_clients[of_clients["run"] == r.id].drop(columns=["method", "run"]).to_dict("records"),
            }
            for r in results.runs
        ],
    }


def results_from(store: RunStore, records: Sequence[RunRecord], parsed: argparse.Namespace) -> series.Results:
    """Return the numbers of the runs, within the budget and in the layout of tables that the options ask for."""
    options = vars(parsed)
    columns = filter(None, (name.strip() for name in options.get("columns", "").split(",")))
    layout = series.Layout(
        tuple(columns), options.get("interval", series.PLAIN.spread), options.get("compared_by", series.PLAIN.by)
    )
    budget = options.get("budget")
    return series.Results(store, records, budget_from(budget) if budget else None, layout)


SEVERAL = "`fedskew compare --algorithms METHOD --seeds 5` gives one"

SHOWN_SITES = 20
"""Maximum number of sites in the table by site; the report and --json have all."""

FIRST_LEFT_OUT, LAST_LEFT_OUT = ("MB", "drift"), ("worst client %", "personal %", "accuracy at the sites %")
"""Columns that a narrow terminal leaves out, in this order. Measures that only some runs have come between, differences last."""


def print_summary(results: series.Results, title: str = "") -> None:
    """Print a title and the table with one row for each method.

    No cell is broken into lines. On a narrow terminal, columns that the options do not name are left out.
    """
    results, console = results.titled, Console()
    cells = readable(results).astype(str).drop(columns="clients' rows", errors="ignore")
    if not results.layout.columns:
        cells = cells.drop(columns="seeds")
    by_title = {str(title): list(map(str, column)) for title, column in cells.items()}
    last = (*LAST_LEFT_OUT, against(results), "verdict")
    always = ("method", heading(results.measure))
    others = [title for title in reversed(by_title) if title not in (*always, *FIRST_LEFT_OUT, *last)]
    hidden = [] if results.layout.columns else too_wide(by_title, [*FIRST_LEFT_OUT, *others, *last], console.width)
    for column in hidden:
        del by_title[column]
    if title:
        console.print(title, style="bold")
    print_columns(by_title, ("method", "verdict"))
    for line in notes(results, list(by_title)):
        console.print(line, style="dim")
    if by_site := series.readable_by_site(results):
        console.print(f"\nby site: {heading(results.measure)}, each site's model on its rows", style="bold")
        wide = too_wide(by_site, [title for title in reversed(by_site) if series.RECALL in title], console.width)
        shown = {title: cells[:SHOWN_SITES] for title, cells in by_site.items() if title not in wide}
        print_columns(shown, ("site", "faults"))
    if hidden:
        keys = [m.key for m in results.columns("table") if heading(m) in hidden]
        keys += [key for key, title in (("difference", against(results)), ("verdict", "verdict")) if title in hidden]
        names = ", ".join(keys)
        console.print(f"not shown, lines are too short: {names} (`fedskew show --columns` prints any)", style="dim")


def plain_table(*titles: str, left: Sequence[str] = (), wrap: bool = True) -> Table:
    """Return a table without lines and rows. The columns ``left`` are aligned left, all others right."""
    columns = (Column(title, justify="left" if title in left else "right", no_wrap=not wrap) for title in titles)
    return Table(*columns, box=None, pad_edge=False)


def print_columns(columns: Mapping[str, Sequence[str]], left: Sequence[str]) -> None:
    """Print a table. No cell is broken into lines, even if the table is wider than the terminal."""
    Console(width=max(Console().width, sum(widths(columns)))).print(table_of(columns, left, Console().width))


def table_of(columns: Mapping[str, Sequence[str]], left: Sequence[str], room: int) -> RenderableType:
    """Return a table with cells of one line. Headings may have several lines. The columns ``left`` are aligned left."""
    whole = sum(widths(columns, whole=True)) <= room
    table, padded = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0)), []
    for (title, cells), wide in zip(columns.items(), widths(columns, whole), strict=True):
        justify: Literal["left", "right"] = "left" if title in left else "right"
        table.add_column("" if title == "verdict" else title, justify=justify, width=wide - 1)
        texts = [visible(cell).translate({ord("\n"): " ", ord("\t"): " "}) for cell in cells]
        spaces = [" " * (wide - 1 - cell_len(text)) for text in texts]
        padded.append([t + s if title in left else s + t for t, s in zip(texts, spaces, strict=True)])
    # Rich takes seconds to lay out a table of thousands of rows
    lines = "".join(f"{' '.join(row)}\n" for row in zip(*padded, strict=True))
    return Group(table, Segments([Segment(lines)]))


def widths(columns: Mapping[str, Sequence[str]], whole: bool = False) -> list[int]:
    """Return the width of each column in characters, with a space. With ``whole``, headings stay on one line."""
    headings = {column: [column] if whole else column.split() for column in columns if column != "verdict"}
    return [
        1 + max(map(cell_len, {*map(visible, {*cells}), *headings.get(column, [])}), default=0)
        for column, cells in columns.items()
    ]


def too_wide(columns: Mapping[str, Sequence[str]], order: Sequence[str], room: int) -> list[str]:
    """Return the columns that must be left out, so that the others fit."""
    hidden: list[str] = []
    width_of = dict(zip(columns, widths(columns), strict=True))
    for column in (name for name in order if name in columns):
        if sum(width_of.values()) - 1 <= room:
            break
        hidden.append(column)
        del width_of[column]
    return hidden


def notes(results: series.Results, titles: Sequence[str]) -> list[str]:
    """Return notes that explain the numbers of the table with the columns ``titles``."""
    frame, records, layout, measure = results.summary, results.records, results.layout, results.measure
    fewest, seeds = int(frame["seeds"].min()), int(frame["seeds"].max())
    over = f"{seeds if fewest == seeds else f'{fewest} to {seeds}'} {frame['observed'].iloc[0]}s"
    if seeds > 1:
        what = f"mean and {SPREADS[layout.spread].title} over {over}"
        what += f"; {covered(frame, measure)}" if layout.spread == "ci95" else ""
    elif any(map(between_sites, records)):
        what = "one run between sites: no interval"
    elif final := records[0].facts.get("final"):
        what = f"the final model of a study, trained on {final.get('rows', 'all rows')}: expected {final['expected']}"
    elif seeds:
        what = f"only one seed: no interval; {SEVERAL if records[0].comparison is None else 'add --seeds 5'}"
    else:
        what = "no run has finished"
    measures = [m for m in results.columns("table") if heading(m) in titles]
    of_clients, several = [m.title for m in measures if m.of_clients], int(frame["comparisons"].iloc[0]) > 1
    has_verdicts = layout.has("verdict") and (several or frame["margin"].notna().any())
    sentences = [
        f"{measure.label} {results.read_after()}",
        what,
        f"verdicts: {verdict_rule(frame, measure)}" if has_verdicts else "",
        f"{listed(of_clients)}: on each client's {measured_rows(records)}" if of_clients else "",
        *dict.fromkeys(m.remark for m in measures),
    ]
    if best := [f"{name} {c['setting']}" for name, tried in tuning(records).items() for c in tried if c.get("best")]:
        sentences.append(f"tuned on held-out rows: {'; '.join(best)}")
    excluded = on_verdicts(frame, measure) if layout.spread == "ci95" and layout.has("verdict") else []
    return ["; ".join(filter(None, sentences)), *excluded, *how_sure(results), *remarks(records)]


def print_notices(records: Sequence[RunRecord]) -> None:
    """Print what a reader of the table must know: runs without final numbers, warnings, how long measuring took."""
    console = Console()
    for line in unfinished(records):
        console.print(line)
    for line in warnings(titled(records)):
        console.print(f"warning: {line}", style="yellow")
    if line := measuring(records):
        console.print(line, style="dim")


def print_ranks(results: series.Results) -> None:
    """Print the mean ranks of the methods, if the runs have several data sets."""
    if not (ranked := ranking(results)):
        return
    names, blocks, ranks = ranked
    console = Console()
    console.print(f"\n{on_ranks(blocks, ranks)}")
    for k in sorted(range(len(names)), key=lambda k: float(ranks.mean[k])):
        console.print(f"  {ranks.mean[k]:.2f}  {names[k]}")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture, and create its folder if needed. Raises `FedskewError` if it cannot be written."""
    try:
        with replacing(path) as partial:
            figure.savefig(partial, dpi=150)
    except (OSError, ValueError) as error:
        raise FedskewError(f"picture {path}: cannot be written: {error}") from None


def warn(line: str) -> None:
    """Print a line on standard error."""
    say(f"fedskew: {line}", error=True)


def print_profile(records: Sequence[RunRecord]) -> None:
    """Print how the time of each method's rounds was spent, summed over its runs."""
    for method, seconds in profiles(titled(records)).items():
        table = plain_table(f"{method}: seconds", "", "share", "", left=("",), wrap=False)
        total = sum(seconds.values())
        table.padding = (0, 1, 0, 0)
        for name, value in seconds.items():
            share = value / total
            table.add_row(f"{value:.3f}", name, f"{100 * share:.0f} %", "█" * round(30 * share))
        Console().print(table)


def number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"

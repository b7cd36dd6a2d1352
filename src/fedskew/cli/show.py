"""Verbs on stored runs: ``list``, ``show``, ``report``, ``cite``, ``tag``, ``rename`` and ``rm``."""

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from rich.table import Table

from fedskew.cli import output
from fedskew.cli.watch import follow, going_on, progress
from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.core.files import write_whole
from fedskew.core.groups import grouped
from fedskew.core.text import count
from fedskew.measure.registry import Measure, primary_of
from fedskew.report import experiments
from fedskew.report.console import Console, say
from fedskew.report.files import write_figures, write_tables
from fedskew.report.html import board_page, write_report
from fedskew.report.series import PLAIN, Layout, Results, curves_by_run, decided
from fedskew.report.words import heading, plain, ranges, value
from fedskew.store import edit, lock
from fedskew.store.runs import RunRecord, RunStore

SEEDS = re.compile(r"^(?:\w+_)?seed = [0-9]+\n", re.M)
"""The lines of an experiment that differ between runs of one method."""

OWN_DATA = "own data"
"""The name of data that have none."""

SHOWN_CLIENTS = 20
"""Maximum number of clients whose decisions ``show`` prints."""

HIDDEN = ("data", "date", "in", "seed")
"""Columns that a narrow terminal leaves out, in this order."""


def list_(parsed: argparse.Namespace) -> None:
    """List the runs, or the components of one kind."""
    if parsed.what == "runs":
        list_runs(parsed)
    else:
        from fedskew.cli.components import list_components  # loads PyTorch

        list_components(parsed)


def list_runs(parsed: argparse.Namespace) -> None:
    """Print the runs of the store, the newest last."""
    store = RunStore(parsed.runs, read_only=True)
    # without seeds most experiments are equal texts, and each text is parsed once
    present = [lock.present(store, record) for record in store.runs()]
    records = [dataclasses.replace(record, experiment=SEEDS.sub("", record.experiment)) for record in present]
    measures = {record.id: primary_of([record]) for record in records}
    scores = newest(store, records, measures)
    if parsed.json:
        scored = {r.id: {"validation_" * is_trial(r) + measures[r.id].key: scores[r.id]} for r in records}
        output.print_json([{k: v for k, v in vars(r).items() if k != "experiment"} | scored[r.id] for r in records])
        return
    console = Console()
    if not records:
        console.print(f"no runs yet in {store.folder}; start some with `fedskew run` or `fedskew compare`")
        return
    of_one_metric = len({measure.name for measure in measures.values()}) == 1
    rows = [row_of(record, measures[record.id], scores[record.id], of_one_metric) for record in records]
    columns = {title: [row[title] for row in rows] for title in rows[0] if any(row[title] for row in rows)}
    for title in output.too_wide(columns, HIDDEN, console.width):
        del columns[title]
    output.print_columns(columns, ("in", "method", "data", "status", "date", "tags"))
    for line in titles(store, records):
        console.print(line)


def newest(store: RunStore, records: Sequence[RunRecord], measures: Mapping[int, Measure]) -> dict[int, float]:
    """Return, by run, the newest value of its measure; NaN if there is none, or if the measurements are lost.

    For a trial of tuning, this is the measure on held-out rows that chooses the settings; without a shared model, at the sites.
    """
    scores = dict.fromkeys((record.id for record in records), math.nan)

    def name_in_store(record: RunRecord) -> str:
        measure = measures[record.id]
        if is_trial(record):
            return f"{record.facts['tuning'].get('by', 'clients')}/{measure.name}_mean"
        return f"{'sites' if experiments.shares_no_model(record) else measure.split}/{measure.name}"

    for name, ids in grouped((name_in_store(record), record.id) for record in records).items():
        with suppress(FedskewError):
            scores |= {m.run: m.value for m in store.last(ids, [name])}
    return scores


def is_trial(record: RunRecord) -> bool:
    """Return True if the run tried a setting during tuning."""
    return "tuning" in record.facts


def data_of(record: RunRecord) -> str:
    """Return the name of the run's data set. For rows of a file it is the name of the file."""
    name = str(record.facts.get("data", {}).get("name", ""))
    path = str(experiments.stored_section(record, "dataset").get("path", ""))
    return Path(path).name or name if name == OWN_DATA else name


def row_of(record: RunRecord, measure: Measure, score: float, of_one_metric: bool) -> dict[str, str]:
    """Return the run as a row of the list. The measure is named if the listed runs have different measures."""
    result = plain(measure, score) if of_one_metric else f"{measure.title} {value(measure, score)}"
    ended = record.status == "finished" or not record.rounds
    return {
        "run": str(record.id),
        "in": f"c{record.comparison}" if record.comparison else "",
        "method": experiments.display_name(record),
        "data": data_of(record),
        "seed": str(record.seed),
        heading(measure) if of_one_metric else "result": f"validation {result}" if is_trial(record) else result,
        "status": record.status if ended else f"{record.status} {record.rounds_done}/{record.rounds}",
        "date": f"{datetime.fromisoformat(record.created).astimezone():%Y-%m-%d %H:%M}" if record.created else "",
        "tags": " ".join(record.facts.get("tags", [])),
    }


def titles(store: RunStore, records: Sequence[RunRecord]) -> list[str]:
    """Return a line for each comparison that the user has named."""
    lines = []
    for number, title in store.titles().items():
        methods = dict.fromkeys(record.name for record in records if record.comparison == number)
        if methods and title != " vs ".join(methods):
            lines.append(f"c{number}: {title}")
    return lines


def tag(parsed: argparse.Namespace) -> None:
    """Add tags to runs, or remove them."""
    records = RunStore(parsed.runs, read_only=True).select([parsed.run])
    edit.tag(RunStore(parsed.runs), records, parsed.tags, parsed.remove)


def rename(parsed: argparse.Namespace) -> None:
    """Give a name to a run or a comparison."""
    RunStore(parsed.runs, read_only=True).select([parsed.run])
    edit.rename(RunStore(parsed.runs), parsed.run, parsed.name)


def rm(parsed: argparse.Namespace) -> None:
    """Ask the user, then remove runs."""
    require(bool(parsed.runs_wanted), "rm: name the runs to remove: a number (7), a range (3-5) or a comparison (c2)")
    records = RunStore(parsed.runs, read_only=True).select(parsed.runs_wanted)
    store = RunStore(parsed.runs)
    edit.check_idle(store, records)
    what = f"{count(len(records), 'run')} ({ranges([record.id for record in records])})"
    if not parsed.yes:
        if not sys.stdin.isatty():
            raise BadInput(f"rm: would remove {what} with all numbers and checkpoints; add --yes to remove them")
        if input(f"Remove {what} with all numbers and checkpoints? [y/N] ").strip().lower() not in ("y", "yes"):
            say("nothing was removed")
            return
    edit.remove(store, records)
    say(f"removed {what}")


PAUSE = 2.0
"""Seconds between two pages of ``report --watch``."""


def show(parsed: argparse.Namespace) -> None:
    """Print the table of runs, and the curves if there is a single run. With ``--toml``, print its experiment instead."""
    store = RunStore(parsed.runs, read_only=True)
    records = [lock.present(store, record) for record in store.select(parsed.runs_wanted)]
    results = output.results_from(store, records, parsed)
    if parsed.toml:
        require(not parsed.json, "show: --json has the experiment, too; leave out --toml")
        say("\n".join(record.experiment for record in records))
        return
    if parsed.json:
        facts = {"experiment": records[0].experiment, "facts": records[0].facts} if len(records) == 1 else {}
        output.print_json({**output.summary_json(results), **facts})
        return
    console, alone = Console(), records[0]
    if len(records) == 1:
        done = f"{alone.rounds_done} of {count(alone.rounds, 'round')}"
        where = " between sites" if experiments.between_sites(alone) else ""
        title = f"run {alone.id}: {experiments.display_name(alone)}{where}, {alone.status}, {done}"
    else:
        title = experiments.comparison_title(store, records)
    output.print_summary(results, title)
    output.print_ranks(results)
    if len(records) == 1:
        print_curves(dataclasses.replace(results, layout=Layout(columns=("recovery",))))
    output.print_notices(records)
    toml = f"; --toml prints the {'experiment' if len(records) == 1 else 'experiments'}"
    console.print(f"repeat: {experiments.repeat_command(store, records)}{toml}", style="dim", soft_wrap=True)


def print_curves(results: Results) -> None:
    """Print the run's metrics at every measured round, and its newest metrics by layer and class."""
    console, frame, curves = Console(), results.frame, curves_by_run(results)
    if len(curves):
        measures = [m for m in results.measures.shown("curve") if m.key in curves]
        table = output.plain_table("round", *map(heading, measures))
        for row in curves.to_dict("records"):
            table.add_row(str(row["round"]), *(plain(m, row[m.key]) for m in measures))
        console.print(table)
    parts = results.parts
    parts = parts[parts["round"] <= frame["round"].max()]
    for split, rows in parts[parts["round"] == parts.groupby("split")["round"].transform("max")].groupby("split"):
        newest = rows.pivot(index="part", columns="name", values="value").reindex(rows["part"].unique())
        measures = [results.measures.stored[str(split), name] for name in newest]
        title = f"{split} (round {rows['round'].iloc[0]})"
        table = output.plain_table(title, *map(heading, measures), left=(title,))
        for part, values in newest.iterrows():
            table.add_row(str(part), *(plain(m, float(values[m.name])) for m in measures))
        console.print(table)
    print_decisions(results)
    back = frame[(frame["split"] == "test") & (frame["name"] == "recovery")]
    if len(back):
        rounds = int(back["value"].iloc[0])
        console.print(f"{rounds} rounds after the change the accuracy is back at 95 % of its value before")


def print_decisions(results: Results) -> None:
    """Print what the method last decided about each client, with the round in which it did."""
    rows = decided(results)
    if not len(rows):
        return
    rows = rows.sort_values(["client", "round"], kind="stable")
    newest = rows[rows["round"] == rows.groupby("client")["round"].transform("max")]
    table = Table("client", "round", *newest["name"].unique(), box=None, pad_edge=False)
    clients = list(newest.groupby("client"))
    for _, of_client in clients[:SHOWN_CLIENTS]:
        values = dict(zip(of_client["name"], of_client["value"], strict=True))
        numbers = [f"{values[name]:.4g}" if name in values else "" for name in newest["name"].unique()]
        table.add_row(of_client["client_name"].iloc[0], str(of_client["round"].iloc[0]), *numbers)
    Console().print(table)
    for measure in results.measures.decided:
        Console().print(f"{measure.name}: {measure.note}", style="dim")
    if len(clients) > SHOWN_CLIENTS:
        Console().print(f"{count(len(clients) - SHOWN_CLIENTS, 'more client')}: --json has them, with all rounds")


def report(parsed: argparse.Namespace) -> None:
    """Write the HTML page, and figures and tables for a paper. With ``--watch``, do so again while the runs continue."""
    store = RunStore(parsed.runs, read_only=True)
    records = [lock.present(store, record) for record in store.select(parsed.runs_wanted)]
    comparisons = {r.comparison for r in records}
    comparison = comparisons.pop() if len(comparisons) == 1 else None
    name = f"c{comparison}" if comparison else "-".join(str(r.id) for r in records[:4])
    interval = f"-{parsed.interval}" if parsed.interval != PLAIN.spread else ""
    path = parsed.output or store.folder / f"{name}{interval}.html"
    results = output.results_from(store, records, parsed)
    if parsed.watch:
        Console(stderr=True).print(f"report: {path} follows the runs; Ctrl-C stops it", soft_wrap=True)
        for seen in follow(store, [str(record.id) for record in records], PAUSE):
            if going_on(seen):
                write_report(dataclasses.replace(results, runs=[run.record for run in seen]), path, progress(seen))
        results = dataclasses.replace(results, runs=[store.run(record.id) for record in records])
    path = write_report(results, path)
    files = write_figures(results, parsed.figures) if parsed.figures else []
    if len(results.runs) == 1 and experiments.between_sites(results.runs[0]) and path.suffix:
        files.append(write_whole(path.with_stem(f"{path.stem}-sites"), board_page(results), "report"))
    files += write_tables(results, parsed.tables) if parsed.tables else []
    if parsed.json:
        output.print_json({"report": str(path), "files": [str(f) for f in files], "runs": [r.id for r in records]})
    else:
        for file in [f"report: {path}", *files]:
            Console().print(str(file), soft_wrap=True)


def cite(parsed: argparse.Namespace) -> None:
    """Print BibTeX entries for all that the runs used. A comment above each entry names the part that used it."""
    from fedskew.experiment.references import bibliography, bibtex  # loads PyTorch

    records = RunStore(parsed.runs, read_only=True).select(parsed.runs_wanted)
    works, unknown = bibliography(records)
    if parsed.json:
        rows = [{"key": w.reference.key, "used_by": list(w.used_by), **w.reference.fields} for w in works]
        output.print_json({"references": rows, "unknown": unknown})
        return
    say(bibtex(works, unknown))

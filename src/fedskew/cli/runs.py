"""``list`` of runs, ``tag``, ``rename`` and ``rm``."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime

from fedskew.cli.output import print_columns, print_json, too_wide
from fedskew.cli.terminal import Console, say
from fedskew.core.counting import count
from fedskew.core.errors import FedskewError, require
from fedskew.measure.registry import primary
from fedskew.report.names import display_name
from fedskew.report.words import heading, plain, ranges
from fedskew.store import edit
from fedskew.store.runs import RunRecord, RunStore

NEWEST = """
SELECT value FROM measurements WHERE run=? AND client IS NULL AND split=? AND name=? ORDER BY round DESC LIMIT 1
"""

HIDDEN = ("data", "date", "in", "seed")
"""Columns that a narrow terminal leaves out, in this order."""


def list_runs(parsed: argparse.Namespace) -> int:
    """Print the runs of the store, the newest last."""
    store = RunStore(parsed.runs, read_only=True)
    records = store.runs()
    scores = {record.id: newest(store, record) for record in records}
    if parsed.json:
        about = [{k: v for k, v in dataclasses.asdict(r).items() if k != "experiment"} for r in records]
        print_json([row | {primary().key: scores[row["id"]]} for row in about])
        return 0
    console = Console()
    if not records:
        console.print(f"no runs yet in {store.folder}; start some with `fedskew run` or `fedskew compare`")
        return 0
    rows = [row_of(record, scores[record.id]) for record in records]
    columns = {title: [row[title] for row in rows] for title in rows[0] if any(row[title] for row in rows)}
    for title in too_wide(columns, HIDDEN, console.width):
        del columns[title]
    print_columns(columns, ("in", "method", "data", "status", "date", "tags"))
    for line in titles(store, records):
        console.print(line)
    return 0


def newest(store: RunStore, record: RunRecord) -> float:
    """The newest primary measure of a run; NaN if there is none, or if the store has lost its measurements."""
    try:
        found = store.query(NEWEST, (record.id, primary().split, primary().name))
    except FedskewError:
        return math.nan
    value = found[0][0] if found else None
    return float(value) if isinstance(value, int | float) else math.nan


def row_of(record: RunRecord, score: float) -> Mapping[str, str]:
    """A run as a line of the list."""
    ended = record.status == "finished" or not record.rounds
    made = datetime.fromisoformat(record.created).astimezone() if record.created else None
    return {
        "run": str(record.id),
        "in": f"c{record.comparison}" if record.comparison else "",
        "method": display_name(record),
        "data": str(record.facts.get("data", {}).get("name", "")),
        "seed": str(record.seed),
        heading(primary()): plain(primary(), score),
        "status": record.status if ended else f"{record.status} {record.rounds_done}/{record.rounds}",
        "date": f"{made:%Y-%m-%d %H:%M}" if made else "",
        "tags": " ".join(record.facts.get("tags", [])),
    }


def titles(store: RunStore, records: Sequence[RunRecord]) -> list[str]:
    """The comparisons that have a name of their own, a line each."""
    found = []
    for number, title in store.query("SELECT id, title FROM comparisons ORDER BY id"):
        methods = dict.fromkeys(record.name for record in records if record.comparison == number)
        if methods and title != " vs ".join(methods):
            found.append(f"c{number}: {title}")
    return found


def tag(parsed: argparse.Namespace) -> int:
    """Add tags to runs, or remove them."""
    records = RunStore(parsed.runs, read_only=True).select([parsed.run])
    edit.tag(RunStore(parsed.runs), records, parsed.tags, parsed.remove)
    return 0


def rename(parsed: argparse.Namespace) -> int:
    """Name a run or a comparison."""
    RunStore(parsed.runs, read_only=True).select([parsed.run])
    edit.rename(RunStore(parsed.runs), parsed.run, parsed.name)
    return 0


def rm(parsed: argparse.Namespace) -> int:
    """Remove runs, after a question."""
    require(bool(parsed.runs_wanted), "rm: name the runs to remove: a number (7), a range (3-5) or a comparison (c2)")
    records = RunStore(parsed.runs, read_only=True).select(parsed.runs_wanted)
    store = RunStore(parsed.runs)
    edit.check_idle(store, records)
    what = f"{count(len(records), 'run')} ({ranges([record.id for record in records])})"
    if not parsed.yes:
        require(
            sys.stdin.isatty(), f"rm: would remove {what} with all numbers and checkpoints; add --yes to remove them"
        )
        if input(f"Remove {what} with all numbers and checkpoints? [y/N] ").strip().lower() not in ("y", "yes"):
            say("nothing was removed")
            return 0
    edit.remove(store, records)
    say(f"removed {what}")
    return 0

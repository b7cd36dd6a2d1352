"""``watch``: follow runs that another process carries out."""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from fedskew.cli.output import number, print_json, table_of, too_wide
from fedskew.core.errors import require
from fedskew.core.groups import grouped
from fedskew.core.text import listed
from fedskew.measure.registry import Measure, measures_of, primary_of
from fedskew.report.answer import warnings
from fedskew.report.console import Console
from fedskew.report.experiments import between_sites, display_name, measured_rows, titled, untrained
from fedskew.report.sinks import Feed, sinks_from
from fedskew.report.words import duration, heading, plain
from fedskew.store.lock import owner
from fedskew.store.runs import RunRecord, RunStore

OPEN = ("planned", "running")
"""States of a run that is still followed."""

PATIENCE = 60.0
"""Seconds after their last update in which planned runs are expected to start."""


@dataclass(frozen=True)
class Seen:
    """The stored state of a run: its newest numbers, and the mean duration of its last five rounds, in seconds."""

    record: RunRecord
    values: dict[Measure, float]  # NaN where not measured
    pace: float
    owner: str  # the process that works on it; empty if there is none

    @property
    def open(self) -> bool:
        """True if the run must still be followed."""
        return self.record.status in OPEN

    @property
    def lost(self) -> bool:
        """True if the run's process has ended without changing the status."""
        return self.record.status == "running" and not self.owner

    @property
    def rounds_left(self) -> int:
        """The number of rounds until the end of the run, 0 if it has ended."""
        return self.record.rounds - self.record.rounds_done if self.open else 0

    def row(self) -> dict[str, object]:
        r = self.record
        left = self.pace * self.rounds_left if self.rounds_left else 0.0  # NaN if it has not begun
        signs = [entry["line"] for entry in r.facts.get("warnings", [])]
        return {
            **{"run": r.id, "name": r.name, "seed": r.seed, "status": r.status, "round": r.rounds_done},
            **{"rounds": r.rounds, **{m.key: v for m, v in self.values.items()}, "seconds_a_round": self.pace},
            **{"seconds_left": left, "warnings": signs, "lost": self.lost},
        }


def watch(parsed: argparse.Namespace) -> None:
    """Draw the runs until they have ended, or only once if there is no terminal. Sinks get every round in both cases."""
    require(parsed.every > 0, f"watch: --every must be above 0, got {parsed.every:g}")
    store = RunStore(parsed.runs, read_only=True)
    console = Console()
    with Feed(store, sinks_from(parsed.to, "--to")) as feed:
        following = follow(store, parsed.runs_wanted, parsed.every, feed)
        seen = next(following)
        if console.is_terminal and not parsed.json:
            with Live(table_of_runs(seen), console=console, auto_refresh=False) as live:
                for seen in following:
                    live.update(table_of_runs(seen), refresh=True)
            return
        if parsed.to:
            *_, seen = [seen, *following]
    if parsed.json:
        print_json([s.row() for s in seen])
    else:
        console.print(table_of_runs(seen))


def follow(store: RunStore, runs: Sequence[str], pause: float, feed: Feed | None = None) -> Iterator[list[Seen]]:
    """Yield the ``runs`` every ``pause`` seconds, until all have ended. Send new measurements to the sinks of ``feed``."""
    while True:
        seen = watched_runs(store, runs)
        if feed:
            feed.send([s.record for s in seen])
        yield seen
        if not going_on(seen):
            return
        time.sleep(pause)


def going_on(seen: Sequence[Seen]) -> bool:
    """Return True if a process works on one of the runs, or probably will: no run is lost, and one changed a short time ago."""
    newest = max(datetime.fromisoformat(s.record.updated) for s in seen)
    waiting = any(s.open for s in seen) and (datetime.now(UTC) - newest).total_seconds() < PATIENCE
    return any(s.owner for s in seen) or (waiting and not any(s.lost for s in seen))


def watched_runs(store: RunStore, words: Sequence[str]) -> list[Seen]:
    """Return the present state of the runs."""
    records = store.select(words)
    measures = measures_of(record.facts for record in records).shown("live")
    runs = [record.id for record in records]
    newest = {(m.run, m.split, m.name): m.value for m in store.last(runs, [f"{m.split}/{m.name}" for m in measures])}
    last = store.curves(runs, ["round/seconds"], after={r.id: r.rounds_done - 5 for r in records})
    seconds = grouped((m.run, m.value) for m in last)
    return [
        Seen(
            record=record,
            values={
                m: math.nan if m.split in untrained(record) else newest.get((record.id, m.split, m.name), math.nan)
                for m in measures
            },
            pace=fmean(seconds.get(record.id, [math.nan])),
            owner=owner(store, record.id) if record.status in OPEN else "",
        )
        for record in records
    ]


def table_of_runs(seen: Sequence[Seen]) -> RenderableType:
    """Return a table with a row for each run, then the remaining time and the warnings."""
    primary = {primary_of([s.record]) for s in seen}
    measures = [m for m in seen[0].values if m in primary or any(math.isfinite(s.values[m]) for s in seen)]
    columns = {
        "run": [str(s.record.id) for s in seen],
        "method": [display_name(s.record) for s in seen],
        "seed": [str(s.record.seed) for s in seen],
        "rounds": [f"{s.record.rounds_done}/{s.record.rounds}" for s in seen],
        **{heading(m): [plain(m, s.values[m]) for s in seen] for m in measures},
        "s a round": [number(s.pace, 2) for s in seen],
        "status": [state(s) for s in seen],
    }
    room, scores = Console().width, [heading(m) for m in reversed(measures) if m not in primary]
    for title in too_wide(columns, [*scores, "s a round"], room):
        del columns[title]
    measures = [m for m in measures if heading(m) in columns]
    table = table_of(columns, ("method", "status"), room)
    text = progress(seen)
    if of_clients := [m.title for m in measures if m.of_clients and any(math.isfinite(s.values[m]) for s in seen)]:
        text += f"; {listed(of_clients)}: on each client's {measured_rows([s.record for s in seen])}"
    signs = [Text(f"warning: {line}", style="yellow") for line in warnings(titled([s.record for s in seen]))]
    left_over = [str(s.record.id) for s in seen if s.open]
    if left_over and not going_on(seen):
        command = f"fedskew resume {' '.join(left_over)}"
        if any(between_sites(s.record) for s in seen if s.open):
            command = f"flwr run APP --run-config resume={left_over[0]}"
        line = f"no process is working on run {', '.join(left_over)}; `{command}` continues"
        signs.append(Text(line, style="yellow"))
    return Group(table, Text(text, style="dim"), *signs)


def progress(seen: Sequence[Seen]) -> str:
    """Return how many runs have ended, and the time left."""
    paces = [s.pace for s in seen if math.isfinite(s.pace)]
    usual = sum(paces) / len(paces) if paces else 0.0  # of a run that has not started
    left = sum((s.pace if math.isfinite(s.pace) else usual) * s.rounds_left for s in seen)
    ended = f"{sum(not s.open for s in seen)} of {len(seen)} runs have ended"
    return ended + (f", about {duration(left)} of training left" if left else "")


def state(seen: Seen) -> str:
    """Return the status. If the run has not changed for more than a minute, add for how long."""
    record = seen.record
    if record.status != "running":
        return record.status
    if seen.lost:
        return "its process is gone"
    silent = (datetime.now(UTC) - datetime.fromisoformat(record.updated)).total_seconds()
    return f"running, silent for {duration(silent)}" if silent > 60 else "running"

"""``tune``, and the tuning before ``compare --tuned``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.table import Table
from rich.text import Text

from fedskew.cli.output import number, print_json
from fedskew.cli.progress import duration, stop_on_signal
from fedskew.cli.request import experiment_from
from fedskew.cli.terminal import Console
from fedskew.core.errors import Interrupted
from fedskew.experiment.compare import Ended
from fedskew.experiment.config import Experiment
from fedskew.experiment.run import Progress
from fedskew.experiment.torchrun import on_ranks
from fedskew.experiment.tune import Search, Tuned, space_from, tuned_methods, words
from fedskew.experiment.tune import tune as tune_one
from fedskew.store.runs import RunStore


@on_ranks
def tune(parsed: argparse.Namespace) -> int:
    """Tune methods and say what was found."""
    store = RunStore(parsed.runs)
    found = tune_all(parsed, store, experiment_from(parsed), (), jobs(parsed))
    if parsed.json:
        print_json([as_row(tuned) for tuned in found.values()])
    else:
        for tuned in found.values():
            print_tuned(tuned)
    return 0


def jobs(parsed: argparse.Namespace) -> int:
    from fedskew.cli.train import jobs_for

    return jobs_for(parsed, 1 << 16)


def tune_all(
    parsed: argparse.Namespace, store: RunStore, base: Experiment, seeds: Sequence[int], jobs: int
) -> dict[str, Tuned]:
    """Every method tuned, with progress on standard error."""
    search = Search(space=space_from(parsed.grid), seeds=tuple(parsed.tuning_seeds), trials=parsed.trials, by=parsed.by)
    with stop_on_signal() as stopper, Teller(store) as teller:

        def one(method: str) -> Tuned:
            return tune_one(
                store, base, method, search, jobs=jobs, listener=teller.heard, ended=teller.ended, stop=stopper
            )

        try:
            return tuned_methods(parsed.algorithms, seeds, search, one)
        except Interrupted as error:
            raise Interrupted(f"{error}; everything finished is stored; the same command goes on") from None


class Teller:
    """Where the tuning is: a line that changes on a terminal, one for each run elsewhere."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.console = Console(stderr=True, highlight=False)
        self.status = self.console.status("tuning")
        self.began = time.perf_counter()

    def __enter__(self) -> Teller:
        if self.console.is_terminal:
            self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.status.stop()

    def heard(self, progress: Progress) -> None:
        passed = duration(time.perf_counter() - self.began)
        # Rich takes a plain string for markup here
        self.status.update(
            Text(f"{progress.name}, seed {progress.seed}: round {progress.round}/{progress.rounds}, {passed} so far")
        )

    def ended(self, result: Ended) -> None:
        record = self.store.run(result.run)
        self.console.print(f"{record.name}, seed {record.seed}: {record.status}", style="dim", markup=False)


def as_row(tuned: Tuned) -> dict[str, Any]:
    tried = [
        {"setting": t.setting, "accuracy": t.score, "seconds": t.seconds, "ended": t.ended, "runs": t.runs}
        for t in tuned.tried
    ]
    return {"method": tuned.method, **tuned.facts(), "accuracy": tuned.best.score, "settings": tried}


def print_tuned(tuned: Tuned) -> None:
    """What was tried, the best of it, and how to use it."""
    console = Console(highlight=False)
    console.print(f"\n{tuned.method}", style="bold", markup=False)
    table = Table(box=None, pad_edge=False)
    for title in ("setting", "held-out accuracy %", "s", "runs", ""):
        table.add_column(title, justify="left" if title in ("setting", "") else "right")
    best = tuned.best
    for t in tuned.tried:
        mark = "best" if t is best else "" if t.ended == "finished" else t.ended
        table.add_row(
            words(t.setting), number(100 * t.score, 1), number(t.seconds, 1), " ".join(map(str, t.runs)), mark
        )
    console.print(table)
    if tuned.edges:
        edges = ", ".join(tuned.edges)
        console.print(f"{edges}: the best is at the edge of what was tried; a wider grid may hold a better one")


def print_choice(tuned: Tuned) -> None:
    """The choice in a line, on standard error."""
    facts = tuned.facts()
    edge = f"; {', '.join(tuned.edges)} at the edge of the grid" if tuned.edges else ""
    Console(stderr=True, highlight=False).print(
        f"tuned {tuned.method}: {words(tuned.best.setting)}, {100 * tuned.best.score:.1f} % on held-out rows, best of "
        f"{facts['tried']} ({duration(facts['seconds'])} of training){edge}",
        style="dim",
        markup=False,
    )

"""``tune``, and the tuning before ``compare --tuned``."""

import argparse
import time
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from fedskew.cli.output import number, print_json, warn
from fedskew.cli.request import experiment_from, jobs_for
from fedskew.cli.terminal import Console
from fedskew.core.errors import Interrupted
from fedskew.execution.run import Ended, Progress
from fedskew.execution.torchrun import on_ranks
from fedskew.experiment.config import Experiment
from fedskew.report.names import display_name, name_of
from fedskew.report.words import duration, heading, plain, value
from fedskew.store.runs import RunStore
from fedskew.studies.progress import stop_on_signal
from fedskew.studies.tune import Search, Tuned, space_from, tuned_methods, tuning_partition_note, words
from fedskew.studies.tune import tune as tune_one


@on_ranks
def tune(parsed: argparse.Namespace) -> int:
    """Tune methods and print the best settings."""
    store = RunStore(parsed.runs)
    found = tune_all(parsed, store, experiment_from(parsed), (), jobs_for(parsed))
    if line := tuning_partition_note(store, found):
        warn(line)
    if parsed.json:
        print_json([as_row(tuned) for tuned in found.values()])
    else:
        for tuned in found.values():
            print_tuned(tuned)
    return 0


def tune_all(
    parsed: argparse.Namespace, store: RunStore, base: Experiment, seeds: Sequence[int], jobs: int
) -> dict[str, Tuned]:
    """Tune all methods, with progress on standard error. Return their results."""
    search = Search(space=space_from(parsed.grid), seeds=tuple(parsed.tuning_seeds), trials=parsed.trials, by=parsed.by)
    console, began = Console(stderr=True), time.perf_counter()
    with stop_on_signal() as stopper, console.status("tuning") as status:

        def on_progress(p: Progress) -> None:
            passed = duration(time.perf_counter() - began)
            # Rich reads markup in a plain string here
            status.update(Text(f"{name_of(p.name)}, seed {p.seed}: round {p.round}/{p.rounds}, {passed} so far"))

        def on_end(result: Ended) -> None:
            record = store.run(result.run)
            console.print(f"{display_name(record)}, seed {record.seed}: {record.status}", style="dim")

        def one(method: str) -> Tuned:
            return tune_one(store, base, method, search, jobs=jobs, listener=on_progress, ended=on_end, stop=stopper)

        try:
            return tuned_methods(parsed.algorithms, seeds, search, one)
        except Interrupted as error:
            raise Interrupted(f"{error}; everything finished is stored; the same command continues") from None


def as_row(tuned: Tuned) -> dict[str, object]:
    name = tuned.measure.name
    tried = [
        {"setting": t.setting, name: tuned.reached(t), "seconds": t.seconds, "ended": t.ended, "runs": t.runs}
        for t in tuned.tried
    ]
    return {"method": tuned.method, **tuned.facts(), name: tuned.reached(tuned.best), "settings": tried}


def print_tuned(tuned: Tuned) -> None:
    """Print all tried settings, and mark the best."""
    console = Console()
    console.print(f"\n{name_of(tuned.method)}", style="bold")
    table = Table(box=None, pad_edge=False)
    for title in ("setting", f"held-out {heading(tuned.measure)}", "s", "runs", ""):
        table.add_column(title, justify="left" if title in ("setting", "") else "right")
    best = tuned.best
    for t in tuned.tried:
        mark = "best" if t is best else "" if t.ended == "finished" else t.ended
        table.add_row(
            words(t.setting),
            plain(tuned.measure, tuned.reached(t)),
            number(t.seconds, 1),
            " ".join(map(str, t.runs)),
            mark,
        )
    console.print(table)
    if tuned.edges:
        edges = ", ".join(tuned.edges)
        console.print(f"{edges}: the best is at the edge of the grid; a wider grid may hold a better setting")


def print_choice(tuned: Tuned) -> None:
    """Print the best setting on standard error, in one line."""
    facts = tuned.facts()
    edge = f"; {', '.join(tuned.edges)} at the edge of the grid" if tuned.edges else ""
    Console(stderr=True).print(
        f"tuned {tuned.method}: {words(tuned.best.setting)}, {value(tuned.measure, tuned.reached(tuned.best))} on held-out rows, "
        f"best of {facts['tried']} ({duration(facts['seconds'])} of training){edge}",
        style="dim",
    )

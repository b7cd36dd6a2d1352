"""Execute runs with live progress on a terminal or in a notebook, and stop them on Ctrl-C."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from html import escape
from threading import current_thread, main_thread
from types import FrameType

import rich.progress
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.text import Text

from fedskew.core.errors import Interrupted, require, visible
from fedskew.core.text import count
from fedskew.data.dataset import Dataset
from fedskew.execution.plan import Plan
from fedskew.execution.run import Ended, Listener, Progress
from fedskew.measure.registry import shown
from fedskew.report import console as notebook
from fedskew.report.console import Console, say
from fedskew.report.experiments import name_of
from fedskew.report.words import duration, value
from fedskew.store.runs import RunStore
from fedskew.studies.runner import execute_all

LINE_EVERY = 5.0
"""Minimum number of seconds between two printed lines, if standard error is no terminal."""


class Board(rich.progress.Progress):
    """Progress of several runs on standard error: one bar for each method on a terminal, otherwise a few lines."""

    def __init__(self, names: Sequence[str], rounds: Sequence[int], lines: bool = True) -> None:
        self.lines = lines  # print lines if standard error is no terminal
        self.began = self.printed = time.perf_counter()
        self.first = 0.0  # time at which rounds began; loading data and the engine trial come before
        self.new_rounds = 0  # rounds that this process has finished
        self.round_of: dict[int, int] = {}
        self.rows: dict[str, TaskID] = {}
        self.newest: dict[TaskID, dict[str, str]] = {}
        console = Console(stderr=True)
        super().__init__(
            *(TextColumn("{task.description}", markup=False), MofNCompleteColumn(), BarColumn(14)),
            *(TextColumn("{task.fields[runs]}"), TextColumn("{task.fields[newest]}", markup=False)),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=4,
            transient=True,
        )
        for name in dict.fromkeys(names):
            total = sum(n for other, n in zip(names, rounds, strict=True) if other == name)
            runs = count(names.count(name), "run")
            self.rows[name] = self.add_task(str(name_of(name))[:24], total=total, runs=runs, newest="")

    def on_progress(self, progress: Progress) -> None:
        """Update the board. It is called when a run has started, and after each round."""
        before = self.round_of.get(progress.run)
        self.round_of[progress.run] = progress.round
        self.new_rounds += 0 if before is None else progress.round - before
        self.first = self.first or time.perf_counter()
        row, numbers = self.rows[progress.name], measured(progress)
        self.newest[row] = self.newest.get(row, {}) | numbers
        self.tasks[row].fields["newest"] = ", ".join(self.newest[row].values())
        self.advance(row, progress.round - (before or 0))
        now = time.perf_counter()
        # wait a quarter of the elapsed time before the next line, so that long runs print few lines
        if self.lines and self.disable and now - self.printed > max(LINE_EVERY, (self.printed - self.began) / 4):
            self.printed = now
            line = ", ".join([f"round {progress.round}/{progress.rounds}", *numbers.values()])
            say(f"{name_of(progress.name)} seed {progress.seed}: {line}; {self.pace()}", error=True)

    def on_end(self, result: Ended) -> None:
        """Print the error of a run that has ended with one."""
        if result.error:
            number = f"run {result.run}: "
            self.console.print(number + str(result.error).removeprefix(number), style="red")

    def pace(self) -> str:
        """Format the speed in rounds, and the remaining time of all runs."""
        if not self.new_rounds:
            return "starting"
        seconds = (time.perf_counter() - self.first) / self.new_rounds
        left = sum(task.remaining or 0 for task in self.tasks)
        rate = f"{1 / seconds:.1f} rounds/s" if seconds < 1 else f"{seconds:.1f} s a round"
        return f"{rate}, {duration(left * seconds)} left"

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield Text(f"{self.pace()}; Ctrl-C stops after the round", style="dim")


class NotebookBoard(Board):
    """Progress as the output of a notebook's cell. The HTML of ``draw()`` is shown below it."""

    def __init__(self, names: Sequence[str], rounds: Sequence[int], draw: Callable[[], str] | None = None) -> None:
        super().__init__(names, rounds, lines=False)
        self.disable, self.draw, self.drawn = True, draw, 0.0
        self.output = notebook.Output()

    def on_progress(self, progress: Progress) -> None:
        super().on_progress(progress)
        now = time.perf_counter()
        if now - self.drawn > (2.0 if self.draw else 0.25):
            self.drawn = now
            self.output.show(self.html())

    def on_end(self, result: Ended) -> None:
        if result.error:
            print(visible(str(result.error)), file=sys.stderr)

    def stop(self) -> None:
        super().stop()
        # the final output has the curves, without progress bars
        self.output.show(self.draw() if self.draw else "")

    def html(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(str(task.description))}</td><td><progress value={task.completed} max={task.total}></progress>"
            f"</td><td>{task.completed:.0f}/{task.total:.0f}</td><td>{escape(task.fields['newest'])}</td></tr>"
            for task in self.tasks
        )
        return f"<table>{rows}</table><small>{escape(self.pace())}</small>{self.draw() if self.draw else ''}"


def board_for(progress: bool | str, store: RunStore, runs: Sequence[int]) -> Board | None:
    """Return the board of these runs: for a notebook or a terminal; None elsewhere, or if ``progress`` is False.

    ``progress="curves"`` adds live curves in a notebook.
    """
    require(progress in (True, False, "curves"), f"progress must be True, False or 'curves', got {progress!r}")
    if not progress:
        return None
    names, rounds = names_and_rounds(store, runs)
    if notebook.running():
        from fedskew.report.plots import image_of_curves

        return NotebookBoard(names, rounds, partial(image_of_curves, store, runs) if progress == "curves" else None)
    return Board(names, rounds) if Console(stderr=True).is_terminal else None


def names_and_rounds(store: RunStore, runs: Iterable[int]) -> tuple[list[str], list[int]]:
    """Return the name and the planned number of rounds of each run."""
    records = [store.run(run) for run in runs]
    return [r.name for r in records], [r.rounds for r in records]


def play(
    store: RunStore,
    runs: Mapping[int, Plan | None],
    dataset: Dataset | None,
    jobs: int,
    board: Board | None,
    again: str,
    listener: Listener = lambda _: None,
) -> list[Ended]:
    """Execute stored runs with live progress. ``again`` is the command that continues them after an interruption."""

    def on_progress(progress: Progress) -> None:
        listener(progress)
        if board:
            board.on_progress(progress)

    with stop_on_signal() as stopper, board or nullcontext():
        try:
            return execute_all(
                store, runs, dataset, jobs, on_progress, board.on_end if board else lambda _: None, stopper
            )
        except Interrupted as error:
            raise Interrupted(f"{error}; everything finished is stored; {again} continues") from None


def measured(progress: Progress) -> dict[str, str]:
    """Format the values of this round, by the measure's key."""
    return {m.key: f"{m.title} {value(m, progress.values[m.key])}" for m in shown("live") if m.key in progress.values}


@contextmanager
def shown_line(progress: bool, label: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text in one changing line, on a terminal or in a notebook. Elsewhere it does nothing."""
    console, last = Console(stderr=True), [time.perf_counter()]
    if progress and notebook.running():
        output = notebook.Output()

        def show(text: str) -> None:
            if time.perf_counter() - last[0] > 0.25:
                last[0] = time.perf_counter()
                output.show(f"<small>{escape(text)}</small>")

        yield show
        output.show("")
    elif progress and console.is_terminal:
        with console.status(label) as status:
            # Rich would read markup in a plain string
            yield lambda text: status.update(Text(text))
    else:
        yield lambda text: None


class Stopper:
    """Returns True once the user has asked to stop."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        return self.requested


@contextmanager
def stop_on_signal() -> Iterator[Stopper]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a request to stop after the round. The second one interrupts at once.

    With ``nohup`` the process ignores SIGHUP, and this stays so. Outside the main thread nothing is changed, because Python
    allows no signal handlers there.
    """
    stopper = Stopper()
    if current_thread() is not main_thread():
        yield stopper
        return
    terminals = [fd for fd in (1, 2) if os.isatty(fd)]

    def ask(number: int, frame: FrameType | None) -> None:
        if stopper.requested:
            raise KeyboardInterrupt
        stopper.requested = True
        if number == signal.SIGHUP:
            # the terminal is closed, and writing to it would raise an error
            for fd in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
        print("\nstopping after this round (Ctrl-C again: at once)", file=sys.stderr)

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {n: signal.signal(n, ask) for n in numbers if n == signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN}
    try:
        yield stopper
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)

"""Live progress of one or many runs: a table that refreshes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedskew.cli.terminal import Console, say
from fedskew.experiment.compare import Ended
from fedskew.experiment.run import Progress
from fedskew.measure.registry import shown
from fedskew.report.words import value

LINE_EVERY = 5.0
"""Seconds between two lines where nothing can be redrawn."""


@dataclass
class Method:
    """What is known of one method's runs."""

    rounds: int = 0  # to do, over all its runs
    done: int = 0
    finished: int = 0
    runs: int = 0
    values: dict[str, float] = field(default_factory=dict)  # the newest, by key of the measure


class Board:
    """Collects progress and draws it on standard error."""

    def __init__(self, names: Sequence[str], rounds: Sequence[int]) -> None:
        self.methods: dict[str, Method] = {}
        for name, n in zip(names, rounds, strict=True):
            method = self.methods.setdefault(name, Method())
            method.rounds += n
            method.runs += 1
        self.name_of: dict[int, str] = {}
        self.at: dict[int, int] = {}
        self.fresh = 0
        self.began = time.perf_counter()
        self.said = self.began
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, get_renderable=self.draw, refresh_per_second=4, transient=True)

    def __enter__(self) -> Board:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def heard(self, progress: Progress) -> None:
        """A run has begun or finished a round."""
        method = self.methods[progress.name]
        before = self.at.get(progress.run)
        self.name_of[progress.run] = progress.name
        self.at[progress.run] = progress.round
        method.done += progress.round - (before or 0)
        if before is not None:
            self.fresh += progress.round - before
        method.values |= progress.values
        now = time.perf_counter()
        if not self.console.is_terminal and now - self.said > LINE_EVERY:
            self.said = now
            say(f"{progress.name} seed {progress.seed}: {self.line(progress)}; {self.pace()}", error=True)

    def ended(self, result: Ended) -> None:
        """A run is over."""
        name = self.name_of.get(result.run)
        if name and result.error is None:
            self.methods[name].finished += 1
        if result.error:
            number = f"run {result.run}: "
            message = number + str(result.error).removeprefix(number)
            self.console.print(message, style="red", highlight=False, markup=False)

    def line(self, progress: Progress) -> str:
        own = [f"{m.title} {value(m, progress.values[m.key])}" for m in shown("live") if m.key in progress.values]
        return ", ".join([f"round {progress.round}/{progress.rounds}", *own])

    def pace(self) -> str:
        """Rate and time left over all runs."""
        passed = time.perf_counter() - self.began
        left = sum(m.rounds - m.done for m in self.methods.values())
        if not self.fresh:
            return "starting"
        rate = self.fresh / passed
        return f"{rate:.1f} rounds/s, {duration(left / rate)} left"

    def draw(self) -> RenderableType:
        table = Table(box=None, pad_edge=False)
        measures = shown("live")
        for title in ("method", "rounds", "", "runs", *(m.title for m in measures)):
            table.add_column(title, justify="left" if title in ("method", "") else "right", no_wrap=True)
        for name, m in self.methods.items():
            table.add_row(
                name[:24],
                f"{m.done}/{m.rounds}",
                ProgressBar(total=m.rounds, completed=m.done, width=14),
                f"{m.finished}/{m.runs}",
                *(value(measure, m.values[measure.key]) if measure.key in m.values else "" for measure in measures),
            )
        return Group(table, Text(self.pace() + "; Ctrl-C stops after the round", style="dim"))


def duration(seconds: float) -> str:
    """``95`` to ``1 min 35 s``."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


class Stopper:
    """Whether the user has asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def stop_on_signal() -> Iterator[Stopper]:
    """Turn the first Ctrl-C, termination or hang-up into a request to stop after the round; the second one ends at once.

    A hang-up that the process was started to ignore (``nohup``) stays ignored.
    """
    stopper = Stopper()
    terminals = [fd for fd in (1, 2) if os.isatty(fd)]

    def ask(number: int, frame: FrameType | None) -> None:
        if stopper.asked:
            raise KeyboardInterrupt
        stopper.asked = True
        if number == signal.SIGHUP:
            # the terminal is gone, and writing to it would be an error
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

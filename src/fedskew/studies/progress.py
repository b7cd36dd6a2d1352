"""Execute runs with live progress, and stop them on Ctrl-C."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

from fedskew.core.errors import Diverged, Interrupted
from fedskew.core.groups import grouped
from fedskew.core.text import count
from fedskew.data.dataset import Dataset
from fedskew.execution.plan import Plan
from fedskew.execution.run import Ended, Listener, Progress, Stop
from fedskew.report.experiments import name_of
from fedskew.report.progress import Board, Part, ProgressFace
from fedskew.report.words import value
from fedskew.store.runs import RunStore
from fedskew.studies.runner import Executor


def board_of(store: RunStore, runs: Iterable[int], face: ProgressFace, label: str = "") -> Board:
    """Return the board of these runs, with a part for each method, or with one part for all under a ``label``."""
    rounds = grouped((label or record.name, record.rounds) for record in store.numbered(list(runs)))
    parts = {name: Part(str(name_of(name)), sum(each), count(len(each), "run")) for name, each in rounds.items()}
    return Board(parts, face, "rounds", "Ctrl-C stops after the round")


def play(
    store: RunStore,
    runs: Mapping[int, Plan | None],
    dataset: Dataset | None,
    jobs: int,
    face: ProgressFace,
    command: str,
    listener: Listener = lambda _: None,
    label: str = "",
) -> list[Ended]:
    """Execute stored runs with live progress. ``command`` continues them after an interruption; ``label`` as for `board_of`."""
    board, round_of = board_of(store, runs, face, label), dict[int, int]()
    newest: dict[str, dict[str, str]] = {}
    expected: list[int] = []  # runs that diverged while settings were tried

    def on_progress(progress: Progress) -> None:
        listener(progress)
        started = progress.run not in round_of
        values = newest.setdefault(progress.name, {})
        if not label:
            values |= {m.key: f"{m.title} {value(m, progress.values[m.key])}" for m in progress.measures}
        rounds = progress.round - round_of.get(progress.run, 0)
        board.advance(label or progress.name, rounds, ", ".join(values.values()), not started)
        round_of[progress.run] = progress.round

    def on_end(result: Ended) -> None:
        if result.error:
            number = f"run {result.run}: "
            text = number + str(result.error).removeprefix(number)
            if not (isinstance(result.error, Diverged) and label.endswith("tuning")):
                face.print(text, "red")
            elif not expected:
                expected.append(result.run)
                face.print(f"{text}; tuning tries other settings, too (more such runs have no line)", "yellow")

    with stop_on_signal() as stopper, board:
        try:
            return Executor(store, dataset, jobs, on_progress, on_end, stopper).execute(runs)
        except Interrupted as error:
            raise Interrupted(f"{error}; everything finished is stored; {command} continues") from None


def tuning_text(progress: Progress) -> str:
    """Format which run of a tuning is in which round."""
    return f"{name_of(progress.name)}, seed {progress.seed}: round {progress.round}/{progress.rounds}"


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Yield a function that returns True after a SIGINT, SIGTERM or SIGHUP: stop after the round. A second one interrupts at once.

    With ``nohup`` the process ignores SIGHUP, and this stays so. Outside the main thread nothing is changed, because Python
    allows no signal handlers there.
    """
    received: list[int] = []
    if current_thread() is not main_thread():
        yield lambda: False
        return
    terminals = [fd for fd in (1, 2) if os.isatty(fd)]

    def ask(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        if number == signal.SIGHUP:
            # the terminal is closed, and writing to it would raise an error
            for fd in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
        print("\nstopping after this round (Ctrl-C again: at once)", file=sys.stderr)

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {n: signal.signal(n, ask) for n in numbers if n == signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN}
    try:
        yield lambda: bool(received)
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)

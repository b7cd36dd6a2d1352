"""What the caller of a function, Python or the command line, sees while it works: progress, warnings, how its runs ended."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from fedskew.core.errors import Diverged, FedskewError, require
from fedskew.report.console import say
from fedskew.report.progress import Board, ProgressFace, board_of_one, face_for

if TYPE_CHECKING:
    from fedskew.api.runs import Runs
    from fedskew.data.dataset import Dataset
    from fedskew.execution.plan import Plan
    from fedskew.execution.run import Ended
    from fedskew.studies.tune import Tuned

ShowProgress = bool | Literal["curves"]
"""True: progress bars on a terminal or in a notebook. "curves": also live curves in a notebook. False: no output."""


@dataclass(frozen=True)
class Started:
    """The runs of a call in the store, and the ones to execute."""

    runs: Runs
    waiting: Mapping[int, Plan | None]  # by run; a run without a plan is executed as stored
    dataset: Dataset | None  # of all runs; None: each loads its own
    jobs: int  # runs at the same time
    words: tuple[str, ...]  # by which `resume` finds the runs: ("7",) or ("c2",)


class Caller:
    """A Python program: it sees progress on a terminal or in a notebook only, and gets errors as exceptions."""

    lines = False  # no plain lines where progress cannot be redrawn
    without_baselines = "baselines=False"
    same_call = "the same call"
    progress: ShowProgress = True

    def __init__(self, progress: ShowProgress = True) -> None:
        require(progress in (True, False, "curves"), f"progress must be True, False or 'curves', got {progress!r}")
        self.progress = progress

    def warn(self, line: str) -> None:
        """Show a warning in one line."""
        if self.progress:
            say(line, error=True)

    def board(self, label: str) -> Board:
        """Return the board of a task in stages."""
        return board_of_one(label, bool(self.progress), self.lines)

    def face(self, draw: Callable[[], str] = str) -> ProgressFace:
        """Return what shows the progress of runs; ``draw`` as for `face_for`."""
        return face_for(bool(self.progress), self.lines, draw)

    def tuned(self, methods: Mapping[str, Tuned]) -> None:
        """Called with the settings that were tried, before their methods are compared."""

    def begin(self, started: Started) -> ProgressFace:
        """Called before the runs are executed. Return what shows their progress."""
        from fedskew.execution.plan import remarks_on  # loads PyTorch

        for line in remarks_on(started.waiting.values()):
            self.warn(line)
        if self.progress != "curves":
            return self.face()
        from fedskew.report.plots import image_of_curves  # loads matplotlib

        return self.face(partial(image_of_curves, started.runs.store, list(started.waiting)))

    def resume_call(self, started: Started) -> str:
        """Return what continues the runs after an interruption."""
        if not started.words:
            return self.same_call
        folder = started.runs.store.folder
        which = started.words[0] if len(started.words) == 1 else list(started.words)
        return f"fedskew.resume({which!r}{'' if str(folder) == 'runs' else f', runs={str(folder)!r}'})"

    def end(self, started: Started, results: Sequence[Ended], worst: FedskewError | None, printed: bool) -> None:
        """Called when the runs have ended. Raises the error of a single run, or of several runs if all failed.

        Other errors are warnings, unless they were ``printed`` already; the store has the finished runs.
        """
        errors = [result.error for result in results if result.error]
        all_failed = len(errors) == len(started.waiting) and not isinstance(worst, Diverged)
        if worst and (len(started.waiting) == 1 or all_failed):
            raise worst
        for error in [] if printed else errors:
            warnings.warn(str(error), RuntimeWarning, stacklevel=5)


class CommandLine(Caller):
    """A verb: it also shows progress as plain lines, and keeps the error that decides the exit code."""

    lines = True
    without_baselines = "--no-baselines"
    same_call = "the same command"
    failure: FedskewError | None = None

    def warn(self, line: str) -> None:
        say(f"fedskew: {line}", error=True)

    def begin(self, started: Started) -> ProgressFace:
        return self.face()

    def resume_call(self, started: Started) -> str:
        return f"`{started.runs.store.resume_command(*started.words)}`" if started.words else self.same_call

    def end(self, started: Started, results: Sequence[Ended], worst: FedskewError | None, printed: bool) -> None:
        self.failure = worst


def caller_of(progress: ShowProgress | Caller) -> Caller:
    """Return the caller whom ``progress`` describes."""
    return progress if isinstance(progress, Caller) else Caller(progress)

"""The command line as the caller of Python functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedskew.api.caller import Caller, Started
from fedskew.core.errors import FedskewError
from fedskew.report.console import say
from fedskew.report.progress import ProgressFace

if TYPE_CHECKING:
    from fedskew.execution.run import Ended


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

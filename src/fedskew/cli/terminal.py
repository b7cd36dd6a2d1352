"""The terminal of the command line."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import rich.progress
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich_argparse import RawDescriptionRichHelpFormatter

from fedskew.report.console import Console, say

__all__ = ["Console", "HelpFormatter", "say"]


class HelpFormatter(RawDescriptionRichHelpFormatter):
    """Prints help texts unchanged. Words in brackets are not read as markup."""

    help_markup = False
    text_markup = False
    group_name_formatter = str


LINE_AFTER = 5.0
"""Seconds before the first line of progress, if standard error is no terminal."""


class ShowProgress(Protocol):
    """Shows the completed share, 0 to 1, and a new label if one is given."""

    def __call__(self, share: float, text: str = ..., /) -> None: ...


@contextmanager
def bar(label: str) -> Iterator[ShowProgress]:
    """Show a progress bar on standard error. Without a terminal, print lines instead: after 5 s, 10 s more, 20 s more, ..."""
    console, printed, pause = Console(stderr=True), time.perf_counter(), LINE_AFTER
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TimeRemainingColumn())
    with rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as drawn:
        task = drawn.add_task(label, total=1.0)

        def on_progress(share: float, text: str = label) -> None:
            nonlocal printed, pause
            drawn.update(task, description=text, completed=share)
            if not console.is_terminal and time.perf_counter() - printed > pause:
                printed, pause = time.perf_counter(), 2 * pause
                say(f"{text}: {100 * share:.0f} %", error=True)

        yield on_progress

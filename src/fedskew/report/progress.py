"""Progress of long work: `Board` knows how far its parts are. A `ProgressFace` shows it: bars or plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedskew.core.errors import visible
from fedskew.report.console import Console, Output, running, say
from fedskew.report.words import duration

LINE_EVERY = 5.0
"""Minimum number of seconds between two plain lines."""


@dataclass
class Part:
    """A part of the work: how much of its ``total`` is done (0: the total is not known), and its newest numbers as ``text``."""

    label: str
    total: float = 1.0
    note: str = ""
    done: float = 0.0
    text: str = ""


class ProgressFace:
    """Shows the progress of a board to the user. This class shows nothing; its subclasses show it."""

    shows = False

    def start(self, board: Board) -> None:
        """Called before the work begins."""

    def show(self, board: Board, part: Part) -> None:
        """Called after the part has gone on."""

    def print(self, line: str, style: str) -> None:
        """Print a line that stays."""

    def stop(self, board: Board) -> None:
        """Called after the work has ended."""


class Board:
    """How far the parts of a long work are, and how fast it goes. ``unit`` is what is counted: "rounds", "MB"; empty: shares."""

    def __init__(self, parts: Mapping[str, Part], face: ProgressFace, unit: str = "", hint: str = "") -> None:
        self.parts = parts
        self.face, self.unit, self.hint = face, unit, hint
        self.began = time.perf_counter()
        self.new = 0.0  # units that this process has done

    def __enter__(self) -> Board:
        self.face.start(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.face.stop(self)

    def advance(self, key: str, by: float, text: str = "", new: bool = True) -> None:
        """Add ``by`` finished units to a part.

        Units that are not ``new`` were done by another process, and do not count for the speed.
        """
        part = self.parts[key]
        part.done, part.text = part.done + by, text
        if new:
            self.new += by
        elif not self.new:
            self.began = time.perf_counter()  # what came before, such as loading data, does not count for the speed
        self.face.show(self, part)

    def stage(self, label: str, fraction: float) -> None:
        """The only part does ``label`` now, and has done this ``fraction`` (0..1) of it."""
        [part] = self.parts.values()
        if fraction < part.done or part.label != label:
            self.began, part.done, part.label, self.new = time.perf_counter(), 0.0, label, 0.0
        self.new += fraction - part.done
        part.done = fraction
        self.face.show(self, part)

    def pace(self) -> str:
        """Format the speed, and the remaining time of all parts."""
        if not any(part.total for part in self.parts.values()):
            return f"{duration(time.perf_counter() - self.began)} so far"
        if not self.new:
            return "starting"
        seconds = (time.perf_counter() - self.began) / self.new
        left = duration(seconds * sum(part.total - part.done for part in self.parts.values()))
        if not self.unit:
            return f"{left} left"
        rate = f"{1 / seconds:.1f} {self.unit}/s" if seconds < 1 else f"{seconds:.1f} s a {self.unit.removesuffix('s')}"
        return f"{rate}, {left} left"

    def amount(self, part: Part) -> str:
        """Format how much of a part is done: ``58/150`` or ``42 %``; empty if its total is not known."""
        if not part.total:
            return ""
        return f"{part.done:.0f}/{part.total:.0f}" if self.unit else f"{100 * part.done / part.total:.0f} %"


class Terminal(ProgressFace):
    """A bar for each part, and a line with the pace. They vanish when the work has ended."""

    shows = True

    def start(self, board: Board) -> None:
        now = partial(render_board, board)
        self.live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True, get_renderable=now)
        self.live.start()

    def print(self, line: str, style: str) -> None:
        self.live.console.print(line, style=style)

    def stop(self, board: Board) -> None:
        self.live.stop()


def render_board(board: Board) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for part in board.parts.values():
        bar = ProgressBar(part.total or None, part.done, width=14, pulse=not part.total)
        amount = Text(board.amount(part), "green", justify="right")
        table.add_row(Text(part.label[:24]), amount, bar, Text(part.note), Text(part.text))
    return Group(table, Text("; ".join(filter(None, [board.pace(), board.hint])), style="dim"))


class Notebook(ProgressFace):
    """The output of a notebook's cell. The HTML of ``draw()`` is shown below the bars, and stays when the work has ended."""

    shows = True

    def __init__(self, draw: Callable[[], str] = str) -> None:
        self.draw, self.output, self.drawn_at = draw, Output(), 0.0

    def show(self, board: Board, part: Part) -> None:
        now = time.perf_counter()
        if now - self.drawn_at > (0.25 if self.draw is str else 2.0):
            self.drawn_at = now
            rows = "".join(
                f"<tr><td>{escape(part.label)}</td><td><progress value={part.done} max={part.total}></progress></td>"
                f"<td>{board.amount(part)}</td><td>{escape(part.text)}</td></tr>"
                for part in board.parts.values()
            )
            self.output.show(f"<table>{rows}</table><small>{escape(board.pace())}</small>{self.draw()}")

    def print(self, line: str, style: str) -> None:
        print(visible(line), file=sys.stderr)

    def stop(self, board: Board) -> None:
        self.output.show(self.draw())


class Lines(ProgressFace):
    """Plain lines on standard error, where nothing can be redrawn. They become rarer, so that long work prints few."""

    shows = True

    def start(self, board: Board) -> None:
        self.began = self.printed = time.perf_counter()

    def show(self, board: Board, part: Part) -> None:
        now = time.perf_counter()
        if now - self.printed > max(LINE_EVERY, (self.printed - self.began) / 4):
            self.printed = now
            amount = " ".join(filter(None, [board.amount(part), board.unit]))
            text = ", ".join(filter(None, [amount, part.text]))
            say(f"{part.label}: {'; '.join(filter(None, [text, board.pace()]))}", error=True)

    def print(self, line: str, style: str) -> None:
        say(line, error=True)


def face_for(enabled: bool = True, lines: bool = True, draw: Callable[[], str] = str) -> ProgressFace:
    """Return what shows the progress: bars in a notebook or on a terminal, otherwise plain lines if ``lines``.

    In all other cases, and if not ``enabled``, it shows nothing. ``draw`` returns HTML that a notebook shows below the bars.
    """
    if enabled and running():
        return Notebook(draw)
    if enabled and Console(stderr=True).is_terminal:
        return Terminal()
    return Lines() if enabled and lines else ProgressFace()


def board_of_one(label: str, enabled: bool = True, lines: bool = True, total: float = 1.0) -> Board:
    """Return the board of a work with one part, in stages: `Board.stage` updates it. ``total`` 0 shows no remaining time."""
    return Board({label: Part(label, total)}, face_for(enabled, lines))

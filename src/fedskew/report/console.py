"""Terminal output. A user's text is printed literally: never as markup, and never as control characters."""

import sys
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from fedskew.core.errors import visible


class Console(rich.console.Console):
    """Rich's console without markup and emoji codes. It prints control characters as escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def on_broken_pipe(self) -> None:
        """Raise `BrokenPipeError`, which the command line handles. Rich would end the program here."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and (shown := visible(renderable.plain)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = shown
        return super().render(renderable, options)


def say(line: str, *, error: bool = False) -> None:
    """Print one line, with control characters as escapes."""
    print(visible(line), file=sys.stderr if error else sys.stdout)

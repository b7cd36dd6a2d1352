"""Output to a terminal and to a notebook."""

import io
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from fedskew.core.errors import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        if isinstance(renderable, Text) and (plain := visible(renderable.plain)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = plain
        return super().render(renderable, options)


def say(line: str, *, error: bool = False) -> None:
    """Print one line, with control characters as escapes."""
    print(visible(line), file=sys.stderr if error else sys.stdout)


def shell() -> Any:
    """Return IPython's shell; None if this program does not run in one."""
    # while another thread imports IPython, its module may not have this function yet
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython() if get_ipython else None


def running() -> bool:
    """True if a notebook's kernel runs this program."""
    return hasattr(shell(), "kernel")


class Output:
    """A part of a cell's output. Each `show` replaces its content."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, html: str) -> None:
        from IPython.display import HTML, display

        if self.handle:
            self.handle.update(HTML(html))
        else:
            self.handle = display(HTML(html), display_id=True)


def png(figure: "Figure") -> bytes:
    """Return the figure as PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def self_showing(figure: "Figure") -> "Figure":
    """Return the figure. IPython then shows it as a cell's value, even without ``%matplotlib inline``."""
    if shell() and shell().display_formatter:
        formatter = shell().display_formatter.formatters["image/png"]
        if type(figure) not in formatter.type_printers:
            formatter.for_type(type(figure), png)
    return figure

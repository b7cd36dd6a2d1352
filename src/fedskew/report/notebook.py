"""Output in a notebook: text that changes in place, figures, and live curves."""

import base64
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import BadInput
from fedskew.report.plots import plot
from fedskew.store.runs import RunStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def curves(store: RunStore, runs: Sequence[int]) -> str:
    """Draw the curves of unfinished runs up to now, as an HTML image; empty if nothing is measured yet."""
    try:
        picture = png(plot(store, [store.run(run) for run in runs]))
    except BadInput:  # nothing is measured yet
        return ""
    return f'<img alt="curves so far" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'

"""Output in a notebook: text that is updated in place, figures, live curves."""

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
    """IPython's shell, if this program runs in one."""
    # another thread may be importing IPython: then its module has no functions yet
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython() if get_ipython else None


def running() -> bool:
    """Whether a notebook's kernel runs this program."""
    return hasattr(shell(), "kernel")


class Output:
    """A piece of a cell's output that each call replaces."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, html: str) -> None:
        from IPython.display import HTML, display

        if self.handle:
            self.handle.update(HTML(html))
        else:
            self.handle = display(HTML(html), display_id=True)


def png(figure: "Figure") -> bytes:
    """The figure as PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def self_showing(figure: "Figure") -> "Figure":
    """The figure, which IPython now shows if it is a cell's value, also without ``%matplotlib inline``."""
    if shell() and shell().display_formatter:
        formatter = shell().display_formatter.formatters["image/png"]
        if type(figure) not in formatter.type_printers:
            formatter.for_type(type(figure), png)
    return figure


def curves(store: RunStore, runs: Sequence[int]) -> str:
    """The curves of these runs as far as they are, as an HTML image."""
    try:
        picture = png(plot(store, [store.run(run) for run in runs]))
    except BadInput:  # nothing is measured yet
        return ""
    return f'<img alt="curves so far" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'

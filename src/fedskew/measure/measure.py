"""`Measure`: one number of a round, and how tables and figures show it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

View = Literal["table", "page", "curve", "live"]
ALL: tuple[View, ...] = ("table", "page", "curve", "live")
PLACES = {"last": "last round", "mean": "round mean", "max": "", "sum": ""}
"""Ways to reduce the rounds of a run to one number, and their text in headings. The text is empty if titles say it."""


@dataclass(frozen=True)
class Measure:
    """One number of a round. If it is ``shown``, it is a column in the tables of runs.

    split: what it is measured on; see `fedskew.measure.registry.MEASURES`.
    name: its name in the store. A row with ``of`` stores nothing: it adds up those names of its split.
    note: its meaning, range and source, as the reference and the captions of figures say it.
    compute: ``module:function`` of a function in this folder. For the splits ``round`` and ``client`` it takes the updates (C, P)
        and the clients' numbers of rows (C,) and returns a tensor () or (C,). For ``clients`` and ``personal`` it takes the
        clients' values of ``score`` (K,), from worst to best, and returns ().
        If empty, `fedskew.execution.measurements` computes it.
    shown: the views that have it. ``table``: terminal, LaTeX and Markdown; ``page``: the report's table; ``curve``: a figure
        over the rounds and the table of one run; ``live``: progress and ``watch``.
    key: its column in a summary; by default its name. Times ``factor`` in there.
    title, label: its heading in tables (by default the key in words) and in figures (by default the title).
    unit: ``%`` for shares in 0..1, which are shown times 100; anything else is shown after the title.
    reduce: how the rounds of a run become one number. ``interval``: whether views show the 95 % interval over seeds.
    low, high: its range, at which intervals are cut off. better: which values are better, empty if neither.
    budget: the budget that it counts for. counted: whether it follows from the settings, without chance.
    remark: a sentence below tables that show it.
    """

    split: str
    name: str
    note: str
    _: KW_ONLY
    compute: str = ""
    score: str = ""
    of: tuple[str, ...] = ()
    shown: tuple[View, ...] = ()
    key: str = ""
    factor: float = 1.0
    title: str = ""
    label: str = ""
    unit: str = ""
    reduce: Literal["last", "mean", "max", "sum"] = "mean"
    interval: bool = True
    low: float = 0.0
    high: float = math.inf
    better: Literal["higher", "lower", ""] = ""
    budget: str = ""
    counted: bool = False
    remark: str = ""

    def __post_init__(self) -> None:
        key = self.key or self.name
        for field, value in (
            ("key", key),
            ("title", self.title or key.replace("_", " ")),
            ("of", self.of or (self.name,)),
        ):
            object.__setattr__(self, field, value)
        object.__setattr__(self, "label", self.label or self.title)

    @property
    def stored(self) -> bool:
        """True if a run stores it under its own name."""
        return self.name in self.of

    @property
    def figure(self) -> str:
        """Its name as a figure, and in claims."""
        return self.key.replace("_", "-")

    @property
    def of_clients(self) -> bool:
        """True if it is measured on the clients' rows."""
        return self.split in ("clients", "personal")

    @property
    def ahead(self) -> str:
        """The verdict on a method that is better in this measure."""
        return "lower" if self.better == "lower" else "higher"

    @property
    def behind(self) -> str:
        """The verdict on a method that is worse in this measure."""
        return "higher" if self.better == "lower" else "lower"

    @property
    def place(self) -> str:
        """The text in headings that says how rounds are reduced."""
        return PLACES[self.reduce]

    def function(self) -> Callable[..., Tensor]:
        """Import and return the function that computes it. Views do not call this, and so need no PyTorch."""
        module, _, name = self.compute.partition(":")
        found: Callable[..., Tensor] = getattr(import_module(module), name)
        return found

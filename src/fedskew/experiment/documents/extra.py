"""A part of a document that needs no run store: what it prints, draws and exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Extra:
    """The result: a table for the terminal, and plain values for ``--json``."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str
    values: Mapping[str, object]
    export: Mapping[str, object] = field(default_factory=dict)  # the part of ``values`` in the whole document's export
    draw: Callable[[], Figure] | None = None
    agrees: bool = True  # whether every printed digit is repeated


Repeat = Callable[[Callable[[float], None]], Extra]
"""Computes a part; takes ``on_progress(fraction)``."""

"""The result of a part of a document that needs no run store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Extra:
    """A table for the terminal, plain values for ``--json``, and optionally an export and a figure."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str
    values: Mapping[str, object]
    export: Mapping[str, object] = field(default_factory=dict)  # the values that the document's export contains
    draw: Callable[[], Figure] | None = None
    agrees: bool = True  # False if a number differs from the document's


Repeat = Callable[[Callable[[float], None]], Extra]
"""Computes a part; takes ``on_progress(fraction)``."""

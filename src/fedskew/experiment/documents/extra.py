"""A part of a document that needs no run store: what it prints, draws and exports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Extra:
    """The result: a table for the terminal, and plain values for ``--json``."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str
    values: dict[str, Any]
    export: dict[str, Any] = field(
        default_factory=dict
    )  # the part of ``values`` that the whole document's export holds
    draw: Callable[[], Figure] | None = None
    agrees: bool = True  # whether every printed digit is repeated

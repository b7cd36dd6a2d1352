"""A document's experiments and claims, as its TOML file describes them: arms, tables and claims."""

from __future__ import annotations

import tomllib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

import msgspec

from fedskew.claims.claim import Claim
from fedskew.claims.quantities import OF_CLIENTS
from fedskew.core.errors import BadInput, require, suggestion

DOCUMENTS = ("drift-demo", "iid-to-noniid", "fedpbs", "failure-modes", "dualmetric", "contradictions")


Settings = dict[str, Any]
"""Values by SECTION.OPTION, as in TOML."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A scale of the experiments: the settings that all arms share (``base``), and the number of seeds.

    ``arms`` has changes for some arms at this scale. ``parts`` are changes for several arms; an arm names one as its ``part``.
    ``level`` is the test accuracy in claims about ``rounds-to:level``. ``seeded`` replaces the document's ``seeded``. ``surrogate``
    names the data that replace the document's data; its printed numbers are then not comparable.
    """

    seeds: int
    base: Settings
    arms: dict[str, Settings] = field(default_factory=dict)
    parts: dict[str, Settings] = field(default_factory=dict)
    seeded: tuple[str, ...] = ()
    first_seed: int = 0
    level: float = 0.0
    surrogate: str = ""

    def only(self, needed: set[str]) -> Scale:
        """Return the scale with changes for these arms only."""
        return replace(self, arms={name: changes for name, changes in self.arms.items() if name in needed})


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of arms (rows) and quantities (columns), with the numbers that the document prints.

    ``clients`` names the measures of each client or layer that its figure draws: ``local-model/loss``.
    """

    name: str
    title: str
    arms: tuple[str, ...]
    measures: tuple[str, ...]
    printed: dict[str, dict[str, float]] = field(default_factory=dict)
    note: str = ""
    clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known(f"table {self.name}: measures of clients", self.clients, OF_CLIENTS)


@dataclass(frozen=True, kw_only=True)
class Document:
    """The experiments and claims of one document."""

    name: str
    title: str
    scales: dict[str, Scale]
    arms: dict[str, Settings]
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    seeded: tuple[str, ...] = ("training.seed", "clients.partition_seed")
    open: dict[str, str] = field(default_factory=dict)
    extras: tuple[str, ...] = ()  # parts that need no run store (`fedskew.experiment.documents`)

    def __post_init__(self) -> None:
        names = [table.name for table in self.tables]
        parts = [arm["part"] for arm in self.arms.values() if "part" in arm]
        for scale in self.scales.values():
            known(f"document {self.name}: a scale", list(scale.arms), self.arms)
            known(f"document {self.name}: an arm's part", parts, scale.parts)
        for table in self.tables:
            known(f"document {self.name}: table {table.name}", [*table.arms, *table.printed], self.arms)
        for claim in self.claims:
            known(f"document {self.name}: claim {claim.name}", claim.arms, self.arms)
            known(f"document {self.name}: claim {claim.name}", [claim.table], names)
        require(
            len({claim.name for claim in self.claims}) == len(self.claims),
            f"document {self.name}: a claim appears twice",
        )

    def scale(self, name: str) -> Scale:
        """Return the scale of this name. Raises `BadInput` if there is none."""
        if name not in self.scales:
            raise BadInput(f"reproduce: {self.name} has no scale {name!r}; known are: {', '.join(self.scales)}")
        return self.scales[name]

    def at(self, scale: str) -> Document:
        """Return the document with ``rounds-to:level`` in its claims replaced by the scale's level."""
        of = f"rounds-to:{self.scale(scale).level:g}"
        claims = tuple(replace(c, of=of) if c.of == "rounds-to:level" else c for c in self.claims)
        return replace(self, claims=claims)

    def only(self, table: str) -> Document:
        """Return the document with only this table, the claims about it, and the arms that these need."""
        names = [t.name for t in self.tables]
        if table not in names:
            raise BadInput(f"reproduce: {self.name} has no table {table!r}; {suggestion(table, names)}")
        tables = tuple(t for t in self.tables if t.name == table)
        claims = tuple(c for c in self.claims if c.table == table)
        needed = {arm for part in [*[t.arms for t in tables], *[c.arms for c in claims]] for arm in part}
        arms = {name: arm for name, arm in self.arms.items() if name in needed}
        scales = {name: scale.only(needed) for name, scale in self.scales.items()}
        return replace(self, scales=scales, arms=arms, tables=tables, claims=claims)


def known(where: str, names: Iterable[str], catalogue: Container[str]) -> None:
    for name in names:
        require(name in catalogue, f"{where}: there is no {name!r}")


def load(name: str) -> Document:
    """Load a document by its name in `DOCUMENTS`. Raises `BadInput` for any other name."""
    if name not in DOCUMENTS:
        raise BadInput(f"reproduce: unknown document {name!r}; {suggestion(name, DOCUMENTS)}")
    text = (files("fedskew.claims") / "documents" / f"{name}.toml").read_text(encoding="utf-8")
    return document_from(tomllib.loads(text), name)


def document_from(table: Mapping[str, object], where: str) -> Document:
    """Make a document from nested plain values. Raises `BadInput` if they are not valid."""
    try:
        return msgspec.convert(dict(table), Document)
    except msgspec.ValidationError as error:
        raise BadInput(f"document {where}: {error}") from None

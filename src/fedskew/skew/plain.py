"""Partitions without a label skew of their own: IID, natural clients, everything in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedskew.core.errors import BadInput, require
from fedskew.skew.partition import Ints, cut, evenly


def check_clients(num_clients: int, num_rows: int) -> None:
    require(num_clients >= 1, f"the number of clients must be at least 1, got {num_clients}")
    require(num_clients <= num_rows, f"{num_clients} clients cannot share {num_rows} rows; use fewer clients")


@dataclass(frozen=True, kw_only=True)
class Iid:
    """A random permutation in nearly equal blocks."""

    face: ClassVar[str] = "none"
    idea: ClassVar[str] = "every client is a fair sample, of nearly equal size"

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        return evenly(rng.permutation(len(labels)), num_clients)


@dataclass(frozen=True, kw_only=True)
class IidStratified:
    """Each class in a random order is dealt round: a client has as many rows of a class as another, up to one."""

    face: ClassVar[str] = "none"
    idea: ClassVar[str] = "every client has the same number of rows of each class, up to one"

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        return [order[k::num_clients] for k in range(num_clients)]


@dataclass(frozen=True, kw_only=True)
class Natural:
    """One client per person, writer or device, as the data set records them; the number of clients is theirs."""

    face: ClassVar[str] = "none"
    idea: ClassVar[str] = "one client per person or device that the data set names"
    by_groups: ClassVar[bool] = True

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        if groups is None:
            raise BadInput(
                "skew natural: this data set does not say whose rows are whose; use another skew, or name the column of a table "
                "that does: client=COLUMN"
            )
        order = np.argsort(groups, kind="stable")
        _, held = np.unique(groups, return_counts=True)
        return cut(order, np.cumsum(held))


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """All rows on one client: centralised training on the same code.

    Beside other skews it pools what they dealt, so that their features and concepts stay.
    """

    face: ClassVar[str] = "none"
    idea: ClassVar[str] = "all rows on one client: centralised training"

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        return [np.arange(len(labels))]

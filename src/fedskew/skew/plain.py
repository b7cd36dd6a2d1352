"""Partitions without label skew: IID, natural clients, and all rows on one client."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedskew.core.errors import BadInput, require
from fedskew.skew.partition import Ints, cut, evenly


def check_clients(num_clients: int, num_rows: int) -> None:
    """Raise `BadInput` if there are more clients than rows."""
    require(num_clients >= 1, f"the number of clients must be at least 1, got {num_clients}")
    require(num_clients <= num_rows, f"{num_clients} clients cannot share {num_rows} rows; use fewer clients")


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Each client gets random rows. The clients' sizes are nearly equal."""

    idea: ClassVar[str] = "every client is a random sample of nearly equal size"

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        return evenly(rng.permutation(len(labels)), num_clients)


@dataclass(frozen=True, kw_only=True)
class IidStratified:
    """Rows of each class are dealt in turn, so that the clients' numbers of rows of a class differ by at most one."""

    idea: ClassVar[str] = "the clients' numbers of rows of each class differ by at most one"

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        return [order[k::num_clients] for k in range(num_clients)]


@dataclass(frozen=True, kw_only=True)
class Natural:
    """One client for each person, writer or device that the data set names. This sets the number of clients."""

    idea: ClassVar[str] = "one client per person or device that the data set names"
    by_groups: ClassVar[bool] = True

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        if groups is None:
            raise BadInput(
                "skew natural: this data set has no natural clients; use another skew, or for a table name the column of the "
                "clients: client=COLUMN"
            )
        order = np.argsort(groups, kind="stable")
        _, held = np.unique(groups, return_counts=True)
        return cut(order, np.cumsum(held))


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """All rows on one client: centralised training on the same code.

    Combined with other skews, it pools the rows that they dealt. Their changes of features and labels stay.
    """

    idea: ClassVar[str] = "all rows on one client: centralised training"

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        return [np.arange(len(labels))]

"""Skews without classes: by quantiles of the target, by the values of a column, by blocks of time."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedskew.core.errors import require, suggestion
from fedskew.core.limits import Concentration, PositiveInt
from fedskew.skew.label import dealt_by_counts, dirichlet, fitted, rounded
from fedskew.skew.partition import Ints, evenly

Numbers: TypeAlias = NDArray[Any]
"""Floating-point numbers or integers."""


class DatasetView(Protocol):
    """The parts of a data set that these skews read."""

    @property
    def x(self) -> Numbers: ...
    @property
    def y(self) -> Numbers: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def name(self) -> str: ...


@runtime_checkable
class ByValues(Protocol):
    """A skew that deals by values of its own, in place of the data set's labels."""

    def values(self, data: DatasetView) -> Ints:
        """Return the argument ``labels`` of `deal`: one number for each training row."""


def quantile_bins(values: Numbers, bins: int) -> Ints:
    """Return the quantile bin of each value (n,), numbered from 0 without gaps. Equal values are in the same bin."""
    edges = np.unique(np.quantile(values, np.arange(1, bins) / bins))
    return np.unique(np.searchsorted(edges, values), return_inverse=True)[1].astype(np.int64)


def column(data: DatasetView, name: str, what: str) -> Numbers:
    """Return the values (n,) of a column: numbers, or the index of each word."""
    require(
        bool(data.columns),
        f"skew {what}: {data.name} does not name its columns; use a table of your own, or a skew that needs no column",
    )
    if name in data.columns:
        return data.x[:, data.columns.index(name)]
    # words are one-hot columns such as "sex = 1", which may be standardised
    names = [column.partition("=")[0].strip() for column in data.columns]
    require(name in names, f"skew {what}: {data.name} has no column {name!r}; {suggestion(name, names)}")
    words = data.x[:, [at for at, column in enumerate(names) if column == name]]
    return np.where(words.max(1) > 0, words.argmax(1), words.shape[1])


@dataclass(frozen=True, kw_only=True)
class BinDirichlet:
    """Clients have equal size, and each draws the shares of the bins from Dir(alpha).

    A client's number of rows of a bin is its size times the share, rounded. If a bin runs out, the client gets rows of its other
    bins in proportion to their shares. All rows are assigned.
    """

    alpha: Concentration = 0.5
    bins: Annotated[int, Meta(ge=2)] = 10

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        room = np.bincount(labels)
        p = np.exp(dirichlet(self.alpha, (num_clients, len(room)), rng))
        sizes = np.diff(np.arange(num_clients + 1) * len(labels) // num_clients)
        requested = rounded(sizes[:, None] * p / p.sum(1, keepdims=True), sizes)
        return dealt_by_counts(labels, fitted(requested, p, room, rng), rng)


@dataclass(frozen=True, kw_only=True)
class QuantileDirichlet(BinDirichlet):
    """`BinDirichlet` on quantiles of the target, which is a number or a survival time.

    With alpha near 0, each client has one bin, as long as the bin has rows. With a large alpha all clients have similar targets.
    """

    idea: ClassVar[str] = (
        "each client draws its shares of the target's quantile bins from Dir(alpha); for numbers and times"
    )

    def values(self, data: DatasetView) -> Ints:
        require(
            np.issubdtype(data.y.dtype, np.floating),
            f"skew quantile-dirichlet: the targets of {data.name} have no quantiles; use label-dirichlet-balanced, or "
            "column-dirichlet:column=NAME",
        )
        # survival targets have two columns, time and event
        return quantile_bins(data.y if data.y.ndim == 1 else data.y[:, 0], self.bins)


@dataclass(frozen=True, kw_only=True)
class ColumnDirichlet(BinDirichlet):
    """`BinDirichlet` on a column of a table.

    The bins are the column's values, or its quantiles if it has more than ``bins`` different values.
    """

    column: str

    idea: ClassVar[str] = (
        "each client draws its shares of a column's values or quantile bins from Dir(alpha); for any task"
    )

    def values(self, data: DatasetView) -> Ints:
        cells = column(data, self.column, "column-dirichlet")
        distinct, code = np.unique(cells, return_inverse=True)
        return code.astype(np.int64) if len(distinct) <= self.bins else quantile_bins(cells, self.bins)


@dataclass(frozen=True, kw_only=True)
class TimeBlocks:
    """Rows are sorted by time and cut into nearly equal pieces, with ``blocks`` pieces for each client.

    Time is the ``column`` of a table; by default it is the order of the rows. With one block, client 0 has the first rows, client 1
    the next, and so on. With several blocks, the pieces are dealt at random.
    """

    column: str = ""
    blocks: PositiveInt = 1

    idea: ClassVar[str] = (
        "rows in the order of time, or of a column, are cut into blocks of consecutive rows; for any task"
    )

    def values(self, data: DatasetView) -> Ints:
        if not self.column:
            return np.arange(len(data.y))
        return np.unique(column(data, self.column, "time-blocks"), return_inverse=True)[1].astype(np.int64)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        number = self.blocks * num_clients
        require(
            number <= len(labels),
            f"{num_clients} clients with {self.blocks} blocks each need {number} rows, the data set has {len(labels)}; use fewer "
            "blocks or clients",
        )
        pieces = evenly(np.argsort(labels, kind="stable"), number)
        if self.blocks > 1:
            pieces = [pieces[at] for at in rng.permutation(number)]
        return [np.concatenate(pieces[k * self.blocks : (k + 1) * self.blocks]) for k in range(num_clients)]

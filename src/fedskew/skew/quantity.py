"""Quantity skew: clients hold different numbers of rows."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.core.limits import Concentration, PositiveInt, Widths
from fedskew.skew.label import DRAWN, REDRAWS, dirichlet, rounded
from fedskew.skew.partition import Ints


@runtime_checkable
class SizeSkew(Protocol):
    """A skew that sets the clients' numbers of rows."""

    def sizes(self, num_rows: int, num_clients: int, rng: np.random.Generator) -> Ints:
        """Return the number of rows of each client (K,): at least 1 each, and at most ``num_rows`` in total."""


def apportioned(weights: NDArray[np.float64], num_rows: int) -> Ints:
    """Return sizes (K,) that sum to ``num_rows``: floor(n s_k / sum s) for weights s; the largest client gets the rest."""
    sizes = np.floor(num_rows * weights / weights.sum() + 1e-9).astype(np.int64)
    sizes[np.argmax(weights)] += num_rows - sizes.sum()
    return sizes


def at_least(sizes: Ints, smallest: int) -> Ints:
    """Raise small sizes to ``smallest``. Larger clients lose rows in proportion to their excess; the sum does not change."""
    check_smallest(smallest, len(sizes), int(sizes.sum()))
    above = np.maximum(sizes - smallest, 0)
    left = int(sizes.sum()) - smallest * len(sizes)
    return smallest + rounded(left * above[None] / max(above.sum(), 1), np.asarray([left]))[0]


def check_smallest(smallest: int, num_clients: int, num_rows: int) -> None:
    """Raise `BadInput` if there are too few rows for clients of at least ``smallest`` rows."""
    require(
        smallest * num_clients <= num_rows,
        f"{num_clients} clients of at least {smallest} rows need {smallest * num_clients} rows, there are {num_rows}; "
        "use fewer clients",
    )


@dataclass(frozen=True, kw_only=True)
class QuantityLogNormal:
    """Sizes proportional to exp(sigma z_k) with z_k ~ N(0, 1), at least one row each. With sigma 0 sizes are equal.

    For many clients, E[1 + CV^2] tends to exp(sigma^2), with the sizes' coefficient of variation CV.
    """

    sigma: Annotated[float, Meta(ge=0, le=20)] = 0.6

    idea: ClassVar[str] = "client sizes from a log-normal; sigma 0 is balanced"
    cites: ClassVar[tuple[str, ...]] = ("feddyn",)

    def sizes(self, num_rows: int, num_clients: int, rng: np.random.Generator) -> Ints:
        return at_least(apportioned(np.exp(self.sigma * rng.standard_normal(num_clients)), num_rows), 1)


@dataclass(frozen=True, kw_only=True)
class QuantityPowerLaw:
    """Sizes proportional to floor(exp(N(mean, spread^2))) + offset: FedProx's "power law", as its code draws it."""

    mean: Annotated[float, Meta(ge=-20, le=20)] = 4.0
    spread: Annotated[float, Meta(ge=0, le=10)] = 2.0
    offset: PositiveInt = 50

    idea: ClassVar[str] = "a few large clients and many small ones, as in FedProx's experiments"
    cites: ClassVar[tuple[str, ...]] = ("fedprox",)

    def sizes(self, num_rows: int, num_clients: int, rng: np.random.Generator) -> Ints:
        drawn = np.floor(np.exp(self.mean + self.spread * rng.standard_normal(num_clients))) + self.offset
        return at_least(apportioned(drawn, num_rows), 1)


@dataclass(frozen=True, kw_only=True)
class QuantityDirichlet:
    """Sizes proportional to q ~ Dir(beta) (NIID-Bench). The draw is repeated until each client has ``min_size`` rows.

    After 1,000 draws (fewer for more than 2,000 clients) the last draw is used, and rows move from large clients to small ones.
    """

    beta: Concentration = 0.5
    min_size: PositiveInt = 10

    idea: ClassVar[str] = "client sizes from Dir(beta)"
    cites: ClassVar[tuple[str, ...]] = ("niid-bench",)

    def sizes(self, num_rows: int, num_clients: int, rng: np.random.Generator) -> Ints:
        check_smallest(self.min_size, num_clients, num_rows)
        for _ in range(min(REDRAWS, max(1, DRAWN // num_clients))):
            q = np.exp(dirichlet(self.beta, (1, num_clients), rng)[0])
            if q.min() * num_rows >= self.min_size:
                break
        return at_least(apportioned(q, num_rows), self.min_size)


@dataclass(frozen=True, kw_only=True)
class QuantitySizes:
    """Sizes given as a list: ``rows=[100,50,50]``. Other rows of the data set are left out."""

    rows: Widths

    idea: ClassVar[str] = "client sizes as a list"
    deals_all: ClassVar[str] = "larger sizes deal all rows"

    def sizes(self, num_rows: int, num_clients: int, rng: np.random.Generator) -> Ints:
        require(
            len(self.rows) == num_clients,
            f"rows: {len(self.rows)} sizes for {num_clients} clients; write one for each client, or use --clients {len(self.rows)}",
        )
        if sum(self.rows) > num_rows:
            raise BadInput(f"rows: {sum(self.rows)} rows in all, the data set has {num_rows}; write smaller sizes")
        return np.asarray(self.rows, dtype=np.int64)

"""Selections: they choose the clients that take part in a round, from those that are online."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.contract import Setup
from fedskew.core.errors import require
from fedskew.core.records import Privacy


def not_poisson(component: object, privacy: Privacy) -> str:
    """Return why the privacy accountant does not cover this selection, and what to use instead."""
    return (
        f"its accountant assumes that each client takes part independently with probability q = {privacy.q:g}; use "
        f"--selection poisson:rate={privacy.q:g}"
    )


@dataclass(frozen=True, kw_only=True)
class Everyone:
    """Selects all clients that are online."""

    idea: ClassVar[str] = "every client in every round"
    private = not_poisson

    def largest(self, num_clients: int) -> int:
        return num_clients

    def select(self, clients: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return clients


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Selects each client with probability ``rate``, independently. A round may have no client."""

    rate: float = 0.1

    idea: ClassVar[str] = "each client by chance, independently of the others, as privacy accounting assumes"

    def private(self, privacy: Privacy) -> str:
        return "" if self.rate == privacy.q else not_poisson(self, privacy)

    def __post_init__(self) -> None:
        require(0 < self.rate <= 1, f"rate is a probability, above 0 and at most 1, got {self.rate}")

    def largest(self, num_clients: int) -> int:
        return num_clients

    def select(self, clients: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return clients[rng.random(len(clients)) < self.rate]


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Draws ``clients`` clients, or a ``fraction`` (at least one), uniformly without replacement; all if fewer are online."""

    clients: int | None = None
    fraction: float | None = None

    idea: ClassVar[str] = "a random cohort without replacement: a number of clients, or a fraction of them"
    private = not_poisson

    def __post_init__(self) -> None:
        require((self.clients is None) != (self.fraction is None), "give either clients or fraction")
        require(self.clients is None or self.clients >= 1, f"clients must be at least 1, got {self.clients}")
        require(
            self.fraction is None or 0 < self.fraction <= 1,
            f"fraction must be above 0 and at most 1, got {self.fraction}",
        )

    def size(self, num_clients: int) -> int:
        """Return the size of a cohort if enough clients are online."""
        if self.fraction is not None:
            # in floating point 0.29 * 100 is 28.999..., but the floor must be 29
            return max(int(self.fraction * num_clients + 1e-9), 1)
        assert self.clients is not None
        return self.clients

    def largest(self, num_clients: int) -> int:
        return min(self.size(num_clients), num_clients)

    def accepts(self, setup: Setup) -> str:
        """Return why the cohort is too large: fewer clients have data. Empty if it is not."""
        clients = setup.clients
        if clients is None or self.size(clients) <= clients:
            return ""
        return f"draws {self.size(clients)} clients, but only {clients} have data; draw fewer"

    def select(self, clients: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return np.sort(rng.choice(clients, size=self.largest(len(clients)), replace=False))

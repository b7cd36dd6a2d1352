"""Label skew: clients see the classes in different proportions."""

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.skew.blocks import dealt_by_counts
from fedskew.skew.partition import Ints, evenly
from fedskew.skew.plain import check_clients

REDRAWS, DRAWN = 1000, 2 * 10**6
"""Limits of repeated draws: the number of draws, and the total number of counts drawn."""


def check_alpha(alpha: float) -> None:
    """Raise `BadInput` unless alpha is a positive number."""
    require(
        1e-300 <= alpha < math.inf,
        f"alpha must be a finite number above 0, got {alpha}; small is skewed, large is even",
    )


def dirichlet(
    alpha: float | NDArray[np.float64], size: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw ``size[0]`` vectors from a Dirichlet of dimension ``size[1]``; return their logarithms.

    ``alpha`` is one number, or one for each entry. Logarithms are used because a Gamma(alpha) draw underflows for small alpha:
    log G(alpha) = log G(alpha + 1) + log(U) / alpha.
    """
    log_gamma = np.log(rng.standard_gamma(alpha + 1, size=size)) + np.log(rng.random(size)) / alpha
    return log_gamma - np.logaddexp.reduce(log_gamma, axis=1, keepdims=True)


@dataclass(frozen=True, kw_only=True)
class LabelDirichlet:
    """Each client draws class proportions p_k ~ Dir(alpha). Each class is divided among the clients in proportion to p_kc.

    Algorithm 3 of Goel, Srivastava and Shah: client k gets floor(n_c p_kc / sum_j p_jc) rows of class c. This leaves up to
    clients - 1 rows of each class, most where clients are alike. With ``remainder="largest"`` they go to the clients with the
    largest fractional parts; with ``"drop"`` no client gets them, as in the paper. Client sizes differ. If every class has at
    least classes x clients rows, no client is empty.
    """

    alpha: float = 0.1
    remainder: Literal["drop", "largest"] = "largest"

    idea: ClassVar[str] = "each client draws its class proportions from Dir(alpha)"
    deals_all: ClassVar[str] = "remainder=largest deals all rows"
    cites: ClassVar[tuple[str, ...]] = ("failure-modes",)

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        room = np.bincount(labels)
        log_p = dirichlet(self.alpha, (num_clients, len(room)), rng)
        log_share = log_p - np.logaddexp.reduce(log_p, axis=0, keepdims=True)
        exact = room * np.exp(log_share)
        counts = np.floor(exact + 1e-9).astype(np.int64)
        if self.remainder == "largest":
            for c, left in enumerate((room - counts.sum(0)).tolist()):
                counts[np.argsort(counts[:, c] - exact[:, c], kind="stable")[:left], c] += 1
        return dealt_by_counts(labels, counts, rng)


@dataclass(frozen=True, kw_only=True)
class LabelDirichletPerClass:
    """Each class is divided among the clients in proportions q_c ~ Dir(alpha) (Yurochkin et al. 2019; NIID-Bench).

    With ``balance``, a client that already has rows / clients rows gets none of the following classes (NIID-Bench). The draw is
    repeated until every client has ``min_size`` rows, at most 1,000 times and with at most two million counts. Then random rows
    move from the largest client to clients that are too small. All rows are assigned.
    """

    alpha: float = 0.5
    min_size: int = 10
    balance: bool = True

    idea: ClassVar[str] = "each class is cut among the clients by Dir(alpha)"
    cites: ClassVar[tuple[str, ...]] = ("probabilistic-federated-matching", "niid-bench")

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        require(self.min_size >= 0, f"min_size must be at least 0, got {self.min_size}")

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        require(
            self.min_size * num_clients <= len(labels),
            f"min_size {self.min_size} for {num_clients} clients needs {self.min_size * num_clients} rows, "
            f"there are {len(labels)}",
        )
        room = np.bincount(labels)
        for _ in range(min(REDRAWS, max(1, DRAWN // (num_clients * len(room))))):
            counts = self.draw_counts(room.tolist(), num_clients, rng)
            if counts.sum(0).min() >= self.min_size:
                break
        return top_up(dealt_by_counts(labels, counts.T, rng), self.min_size, rng)

    def draw_counts(self, class_sizes: list[int], num_clients: int, rng: np.random.Generator) -> Ints:
        """Make one draw of the numbers of rows (classes, clients)."""
        full = sum(class_sizes) / num_clients
        held = np.zeros(num_clients)
        counts = np.zeros((len(class_sizes), num_clients), dtype=np.int64)
        for c, size in enumerate(class_sizes):
            log_q = dirichlet(self.alpha, (1, num_clients), rng)[0]
            if self.balance:
                log_q = np.where(held < full, log_q, -np.inf)
            share = np.exp(log_q - log_q.max())
            cuts = np.floor(size * np.cumsum(share / share.sum())[:-1] + 1e-9).astype(np.int64)
            counts[c] = np.diff(np.concatenate([[0], cuts, [size]]))
            held += counts[c]
        return counts


def top_up(parts: list[Ints], min_size: int, rng: np.random.Generator) -> list[Ints]:
    """Move random rows from the largest client to others, until every client has ``min_size`` rows."""
    largest = [(-len(rows), k) for k, rows in enumerate(parts)]
    heapq.heapify(largest)
    for k in range(len(parts)):
        while len(parts[k]) < min_size:
            size, giver = heapq.heappop(largest)
            if -size != len(parts[giver]):
                # the entry is out of date, because this client has received rows
                heapq.heappush(largest, (-len(parts[giver]), giver))
                continue
            moved = rng.permutation(len(parts[giver]))
            take = min(min_size - len(parts[k]), max(1, len(parts[giver]) - min_size))
            parts[k] = np.concatenate([parts[k], parts[giver][moved[:take]]])
            parts[giver] = np.delete(parts[giver], moved[:take])
            heapq.heappush(largest, (-len(parts[giver]), giver))
    return parts


@dataclass(frozen=True, kw_only=True)
class LabelSorted:
    """Rows are sorted by label and cut into nearly equal blocks: one or two classes for each client. Nothing is random."""

    idea: ClassVar[str] = "sorted by label and cut: one or two classes a client"
    cites: ClassVar[tuple[str, ...]] = ("drift-demo",)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        return evenly(np.argsort(labels, kind="stable"), num_clients)

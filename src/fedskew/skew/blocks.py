"""Label skew by construction: shards, a fixed number of classes a client, similarity, blocks of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.skew.partition import Ints, cut, evenly
from fedskew.skew.plain import check_clients


def by_owner(rows: Ints, owner: Ints, num_clients: int) -> list[Ints]:
    """The rows of each client; ``owner`` says whose each of the ``rows`` is."""
    return cut(rows[np.argsort(owner, kind="stable")], np.cumsum(np.bincount(owner, minlength=num_clients)))


def sorted_by_label(labels: Ints, rng: np.random.Generator) -> Ints:
    """All rows by class, within a class in a random order."""
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


@dataclass(frozen=True, kw_only=True)
class LabelShards:
    """Rows sorted by label are cut into ``shards`` x clients equal pieces, of which each client is dealt ``shards`` at random.

    All clients are of one size; the rows that do not fill a piece, fewer than pieces, are left out. A client holds at most
    ``shards`` classes if a piece divides every class, else at most twice as many (McMahan et al. 2017).
    """

    shards: int = 2

    face: ClassVar[str] = "label"
    idea: ClassVar[str] = "sorted by label, cut into equal shards, a few of them dealt to each client"
    cites: ClassVar[tuple[str, ...]] = ("fedavg",)

    def __post_init__(self) -> None:
        require(self.shards >= 1, f"shards must be at least 1 a client, got {self.shards}")

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        pieces = self.shards * num_clients
        size = len(labels) // pieces
        require(
            size > 0,
            f"{num_clients} clients with {self.shards} shards each need {pieces} rows, there are {len(labels)}; "
            "use fewer shards or clients",
        )
        rows = sorted_by_label(labels, rng)[: pieces * size].reshape(pieces, size)
        return [part.reshape(-1) for part in rows[rng.permutation(pieces)].reshape(num_clients, -1, size)]


@dataclass(frozen=True, kw_only=True)
class LabelClasses:
    """Each client holds exactly ``k`` classes: client i class i modulo the classes and k - 1 random others (NIID-Bench, #C=k).

    A class is split equally among its holders, so that sizes differ; the rows of a class that nobody holds are left out.
    Raises `BadInput` if a class has fewer rows than holders.
    """

    k: int = 2

    face: ClassVar[str] = "label"
    idea: ClassVar[str] = "each client holds exactly k classes"
    cites: ClassVar[tuple[str, ...]] = ("niid-bench",)

    def __post_init__(self) -> None:
        require(self.k >= 1, f"k must be at least 1 class a client, got {self.k}")

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        present = np.unique(labels)
        require(
            self.k <= len(present),
            f"a client cannot hold k = {self.k} of {len(present)} classes; use k={len(present)} or less",
        )
        turn = rng.random((num_clients, len(present)))
        turn[np.arange(num_clients), np.arange(num_clients) % len(present)] = -1
        holds = np.zeros(turn.shape, dtype=np.bool_)
        np.put_along_axis(holds, np.argsort(turn, axis=1)[:, : self.k], True, axis=1)
        rows, owners = [], []
        for c, label in enumerate(present):
            own, holders = rng.permutation(np.flatnonzero(labels == label)), np.flatnonzero(holds[:, c])
            require(
                len(own) >= len(holders),
                f"class {label} has {len(own)} rows for {len(holders)} clients that hold it; use fewer clients or a smaller k",
            )
            if len(holders):
                rows.append(own)
                owners.append(np.sort(holders[np.arange(len(own)) % len(holders)]))
        return by_owner(np.concatenate(rows), np.concatenate(owners), num_clients)


@dataclass(frozen=True, kw_only=True)
class LabelSimilarity:
    """A share ``similarity`` of the rows is dealt IID; the rest is sorted by label and chopped (SCAFFOLD's s % similarity)."""

    similarity: float = 0.1

    face: ClassVar[str] = "label"
    idea: ClassVar[str] = "a share of the rows is dealt IID, the others sorted by label and chopped"
    cites: ClassVar[tuple[str, ...]] = ("scaffold",)

    def __post_init__(self) -> None:
        require(0 <= self.similarity <= 1, f"similarity is a share, 0 to 1, got {self.similarity}")

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        order = rng.permutation(len(labels))
        alike = round(self.similarity * len(labels))
        rest = order[alike:][np.argsort(labels[order[alike:]], kind="stable")]
        # the parts that are one row longer go to the first clients of one half and to the last of the other
        fair = evenly(order[:alike], num_clients)[::-1]
        chopped = evenly(rest, num_clients)
        return [np.concatenate(pair) for pair in zip(fair, chopped, strict=True)]


@dataclass(frozen=True, kw_only=True)
class LabelBlocks:
    """Client i has a block of classes of its own, of whose rows it gets the share ``primary``.

    The classes fall into equal blocks in their order; those that are left go to the first clients, one each. What remains of
    the first ``secondary`` classes of a block goes to the client before its owner, what remains of the others to the other
    clients, each row by chance. The DualMetric report's eleven clients and 46 intents, read without the rows that its code
    deals twice.
    """

    primary: float = 0.9
    secondary: int = 2

    face: ClassVar[str] = "label"
    idea: ClassVar[str] = "each client has a block of classes to itself, up to a small share of their rows"
    cites: ClassVar[tuple[str, ...]] = ("dualmetric",)

    def __post_init__(self) -> None:
        require(0 <= self.primary <= 1, f"primary is a share, 0 to 1, got {self.primary}")
        require(self.secondary >= 0, f"secondary must be at least 0, got {self.secondary}")

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        check_clients(num_clients, len(labels))
        present = np.unique(labels)
        block = len(present) // num_clients
        require(
            block >= 1,
            f"{num_clients} clients cannot have classes of their own, there are {len(present)}; use fewer clients",
        )
        owner = np.zeros(len(labels), dtype=np.int64)
        for c, label in enumerate(present):
            inside = c < block * num_clients
            k = c // block if inside else (c - block * num_clients) % num_clients
            rows = rng.permutation(np.flatnonzero(labels == label))
            own = round(self.primary * len(rows)) if num_clients > 1 else len(rows)
            owner[rows[:own]] = k
            if inside and c % block < self.secondary:
                owner[rows[own:]] = (k - 1) % num_clients
            elif num_clients > 1:
                owner[rows[own:]] = (k + rng.integers(1, num_clients, size=len(rows) - own)) % num_clients
        return by_owner(np.arange(len(labels)), owner, num_clients)


def rounded(wanted: NDArray[np.float64], totals: Ints) -> Ints:
    """Whole numbers near ``wanted`` (K, C) whose rows sum to ``totals`` (K,): floors, then the largest fractional parts."""
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    left = totals - counts.sum(1)
    rank = np.argsort(np.argsort(counts - wanted, axis=1, kind="stable"), axis=1, kind="stable")
    return counts + (rank < left[:, None])


def fitted(counts: Ints, p: NDArray[np.float64], room: Ints, rng: np.random.Generator) -> Ints:
    """``counts`` (K, C) moved to what the classes hold, ``room`` (C,): row sums stay, no column sums to more than its room.

    Where a class is asked for more than it holds, who goes without is drawn among those who ask, and gets rows of other classes
    in its own proportions ``p`` (K, C), of any class if it has no other. No counts within these bounds are nearer in total
    variation: each row over a class's room has to move, and no other does. Needs counts that sum to at most the room.
    """
    sizes, spare = counts.sum(1), room.copy()
    taken, asked = np.zeros_like(counts), counts
    while True:
        for c in np.flatnonzero(asked.any(0)):
            mine = asked[:, c]
            if mine.sum() > spare[c]:
                mine = rng.multivariate_hypergeometric(mine, int(spare[c]), method="marginals")
            taken[:, c] += mine
            spare[c] -= mine.sum()
        short = np.flatnonzero(taken.sum(1) < sizes)
        if not len(short):
            return taken
        odds = p[short] * (spare > 0)
        odds[odds.sum(1) <= 0] = spare
        asked = np.zeros_like(counts)
        asked[short] = rng.multinomial((sizes - taken.sum(1))[short], odds / odds.sum(1, keepdims=True))


def dealt_by_counts(labels: Ints, counts: Ints, rng: np.random.Generator) -> list[Ints]:
    """Random rows of each class, as many as the (K, C) counts say."""
    rows, owners = [], []
    for c in range(counts.shape[1]):
        own = rng.permutation(np.flatnonzero(labels == c))
        rows.append(own[: counts[:, c].sum()])
        owners.append(np.repeat(np.arange(len(counts)), counts[:, c]))
    return by_owner(np.concatenate(rows), np.concatenate(owners), len(counts))

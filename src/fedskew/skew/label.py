"""Label skew: clients see the classes in different proportions, drawn from a Dirichlet or by construction."""

import heapq
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.core.limits import Concentration, NonNegativeInt, PositiveInt, Share
from fedskew.skew.partition import Ints, cut, evenly, sorted_by_label

Floats = NDArray[np.float64]


def by_owner(rows: Ints, owner: Ints, num_clients: int) -> list[Ints]:
    """Group the ``rows`` (n,) by their ``owner`` (n,)."""
    return cut(rows[np.argsort(owner, kind="stable")], np.cumsum(np.bincount(owner, minlength=num_clients)))


@dataclass(frozen=True, kw_only=True)
class LabelShards:
    """Rows are sorted by label and cut into ``shards`` x clients equal pieces; each client gets ``shards`` random pieces.

    All clients have the same size; rows that do not fill a piece are left out. If each class is a whole number of pieces, a client
    has at most ``shards`` classes, otherwise at most twice as many (McMahan et al. 2017).
    """

    shards: PositiveInt = 2

    idea: ClassVar[str] = "sorted by label, cut into equal shards, a few of them dealt to each client"
    deals_all: ClassVar[str] = "label-similarity:similarity=0 deals all rows in pieces that differ by one row"
    cites: ClassVar[tuple[str, ...]] = ("fedavg",)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        pieces = self.shards * num_clients
        size = len(labels) // pieces
        require(
            size > 0,
            f"{num_clients} clients with {self.shards} shards each need {pieces} rows, the data set has {len(labels)}; "
            "use fewer shards or clients",
        )
        rows = sorted_by_label(labels, rng)[: pieces * size].reshape(pieces, size)
        return [part.reshape(-1) for part in rows[rng.permutation(pieces)].reshape(num_clients, -1, size)]


@dataclass(frozen=True, kw_only=True)
class LabelClasses:
    """Each client has exactly ``k`` classes (NIID-Bench, #C=k).

    Client i has class i modulo the number of classes, and k - 1 random others. A class is divided equally among its clients, so
    client sizes differ. A class without a client is left out. Raises `BadInput` if a class has fewer rows than clients.
    """

    k: PositiveInt = 2

    idea: ClassVar[str] = "each client holds exactly k classes"
    deals_all: ClassVar[str] = "with more clients or a larger k every class has a client"
    cites: ClassVar[tuple[str, ...]] = ("niid-bench",)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        present = np.unique(labels)
        if self.k > len(present):
            raise BadInput(f"a client cannot hold k = {self.k} of {len(present)} classes; use k={len(present)} or less")
        turn = rng.random((num_clients, len(present)))
        turn[np.arange(num_clients), np.arange(num_clients) % len(present)] = -1
        holds = np.zeros(turn.shape, dtype=np.bool_)
        np.put_along_axis(holds, np.argsort(turn, axis=1)[:, : self.k], True, axis=1)
        counts = np.zeros((num_clients, labels.max() + 1), dtype=np.int64)
        for c, label in enumerate(present):
            rows, holders = int((labels == label).sum()), np.flatnonzero(holds[:, c])
            require(
                rows >= len(holders),
                f"class {label} has {rows} rows for {len(holders)} clients that hold it; use fewer clients or a smaller k",
            )
            each, longer = divmod(rows, max(len(holders), 1))
            counts[holders, label] = each + (np.arange(len(holders)) < longer)
        return dealt_by_counts(labels, counts, rng)


@dataclass(frozen=True, kw_only=True)
class LabelSimilarity:
    """A share ``similarity`` of the rows is dealt IID. The rest is sorted by label and cut (SCAFFOLD's s % similarity)."""

    similarity: Share = 0.1

    idea: ClassVar[str] = "a share of the rows is dealt IID, the others are sorted by label and cut"
    cites: ClassVar[tuple[str, ...]] = ("scaffold",)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        order = rng.permutation(len(labels))
        size = round(self.similarity * len(labels))
        rest = order[size:][np.argsort(labels[order[size:]], kind="stable")]
        # one half gives its longer parts to the last clients, the other to the first ones, so that sizes are nearly equal
        parts = zip(evenly(order[:size], num_clients)[::-1], evenly(rest, num_clients), strict=True)
        return [np.concatenate(pair) for pair in parts]


@dataclass(frozen=True, kw_only=True)
class LabelBlocks:
    """Each client has its own block of classes, and gets the share ``primary`` of their rows.

    The classes are divided into equal blocks in order; classes left over go to the first clients, one each. The other rows of the
    first ``secondary`` classes of a block go to the client before its owner. The other rows of the remaining classes go to random
    other clients. This is the DualMetric report's partition (11 clients, 46 intents), but no row is dealt twice as in its code.
    """

    primary: Share = 0.9
    secondary: NonNegativeInt = 2

    idea: ClassVar[str] = "each client has its own block of classes, except for a small share of the rows"
    cites: ClassVar[tuple[str, ...]] = ("dualmetric",)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        present = np.unique(labels)
        block = len(present) // num_clients
        require(
            block >= 1,
            f"{num_clients} clients need a class each, but the rows have {len(present)} classes; use fewer clients",
        )
        owner = np.zeros(len(labels), dtype=np.int64)
        for c, label in enumerate(present):
            inside = c < block * num_clients
            k = c // block if inside else (c - block * num_clients) % num_clients
            rows = rng.permutation(np.flatnonzero(labels == label))
            owned = round(self.primary * len(rows)) if num_clients > 1 else len(rows)
            owner[rows[:owned]] = k
            if inside and c % block < self.secondary:
                owner[rows[owned:]] = (k - 1) % num_clients
            elif num_clients > 1:
                owner[rows[owned:]] = (k + rng.integers(1, num_clients, size=len(rows) - owned)) % num_clients
        return by_owner(np.arange(len(labels)), owner, num_clients)


def rounded(exact: Floats, totals: Ints) -> Ints:
    """Round each row of ``exact`` (K, C) so that its sum is in ``totals`` (K,).

    All numbers are rounded down; then those with the largest fractional parts are rounded up.
    """
    counts = np.floor(exact + 1e-9).astype(np.int64)
    left = totals - counts.sum(1)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1, kind="stable")
    return counts + (rank < left[:, None])


def fitted(counts: Ints, p: Floats, room: Ints, rng: np.random.Generator) -> Ints:
    """Move ``counts`` (K, C) to other classes until no column sum is above ``room`` (C,). Row sums do not change.

    If clients request more rows of a class than it has, a random draw decides. The other requests become rows of other classes, in
    the client's proportions ``p`` (K, C), or of any class if the client has no other. Only counts above the room move, so that the
    result is as close as possible in total variation. The sum of all counts must be at most the sum of the room.
    """
    sizes, spare = counts.sum(1), room.copy()
    given_rows, requested = np.zeros_like(counts), counts
    while True:
        for c in np.flatnonzero(requested.any(0)):
            mine = requested[:, c]
            if mine.sum() > spare[c]:
                mine = rng.multivariate_hypergeometric(mine, int(spare[c]), method="marginals")
            given_rows[:, c] += mine
            spare[c] -= mine.sum()
        short = np.flatnonzero(given_rows.sum(1) < sizes)
        if not len(short):
            return given_rows
        odds = p[short] * (spare > 0)
        odds[odds.sum(1) <= 0] = spare
        requested = np.zeros_like(counts)
        requested[short] = rng.multinomial((sizes - given_rows.sum(1))[short], odds / odds.sum(1, keepdims=True))


def dealt_by_counts(labels: Ints, counts: Ints, rng: np.random.Generator) -> list[Ints]:
    """Deal random rows of each class by the counts (K, C); return the row numbers of each client."""
    rows, owners = [], []
    for c in range(counts.shape[1]):
        class_rows = rng.permutation(np.flatnonzero(labels == c))
        rows.append(class_rows[: counts[:, c].sum()])
        owners.append(np.repeat(np.arange(len(counts)), counts[:, c]))
    return by_owner(np.concatenate(rows), np.concatenate(owners), len(counts))


REDRAWS, DRAWN = 1000, 2 * 10**6
"""Limits of repeated draws: the number of draws, and the total number of counts drawn."""


def dirichlet(alpha: float | Floats, size: tuple[int, int], rng: np.random.Generator) -> Floats:
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

    alpha: Concentration = 0.1
    remainder: Literal["drop", "largest"] = "largest"

    idea: ClassVar[str] = "each client draws its class proportions from Dir(alpha)"
    deals_all: ClassVar[str] = "remainder=largest deals all rows"
    cites: ClassVar[tuple[str, ...]] = ("failure-modes",)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        room = np.bincount(labels)
        log_p = dirichlet(self.alpha, (num_clients, len(room)), rng)
        exact = room * np.exp(log_p - np.logaddexp.reduce(log_p, axis=0, keepdims=True))
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

    alpha: Concentration = 0.5
    min_size: NonNegativeInt = 10
    balance: bool = True

    idea: ClassVar[str] = "each class is cut among the clients by Dir(alpha)"
    cites: ClassVar[tuple[str, ...]] = ("probabilistic-federated-matching", "niid-bench")

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
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
        client_sizes = np.zeros(num_clients)
        counts = np.zeros((len(class_sizes), num_clients), dtype=np.int64)
        for c, size in enumerate(class_sizes):
            log_q = dirichlet(self.alpha, (1, num_clients), rng)[0]
            if self.balance:
                log_q = np.where(client_sizes < full, log_q, -np.inf)
            share = np.exp(log_q - log_q.max())
            cuts = np.floor(size * np.cumsum(share / share.sum())[:-1] + 1e-9).astype(np.int64)
            counts[c] = np.diff(np.concatenate([[0], cuts, [size]]))
            client_sizes += counts[c]
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
        return evenly(np.argsort(labels, kind="stable"), num_clients)


@dataclass(frozen=True, kw_only=True)
class LabelDirichletBalanced:
    """Label skew without quantity skew: clients have equal size, and draw the class of each row from p_k ~ Dir(alpha).

    ``prior="data"`` draws p_k ~ Dir(alpha C p) around the class frequencies p of the data set. If a class runs out, clients draw
    from their other classes; if these run out, too, they take any rows that are left. All rows are assigned.
    """

    alpha: Concentration = 0.1
    prior: Literal["even", "data"] = "even"

    idea: ClassVar[str] = "clients of equal size, each with class proportions from Dir(alpha)"
    cites: ClassVar[tuple[str, ...]] = ("feddyn",)

    def proportions(self, labels: Ints, num_clients: int, rng: np.random.Generator) -> Floats:
        """Draw the requested class proportions, (clients, classes)."""
        room = np.bincount(labels)
        present = room > 0
        weight = room[present] / len(labels) * present.sum() if self.prior == "data" else np.ones(int(present.sum()))
        p = np.zeros((num_clients, len(room)))
        p[:, present] = np.exp(dirichlet(self.alpha * weight, (num_clients, int(present.sum())), rng))
        return p

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        p = self.proportions(labels, num_clients, rng)
        sizes = np.diff(np.arange(num_clients + 1) * len(labels) // num_clients)
        requested = rng.multinomial(sizes, p / p.sum(1, keepdims=True))
        return dealt_by_counts(labels, fitted(requested, p, np.bincount(labels), rng), rng)


@dataclass(frozen=True, kw_only=True)
class LabelDirichletTopUp:
    """Each class is divided among the clients in proportions q_c ~ Dir(alpha). Then small clients get rows of the largest one.

    This is the code of Goel, Srivastava and Shah; their text describes `LabelDirichlet`. Each client gets floor(n_c q_ck) rows of a
    class, and the last client the rest. Then random rows of the largest client move until all clients have
    max(1, n / (10 clients)) rows.
    """

    alpha: Concentration = 0.1

    idea: ClassVar[str] = (
        "each class is cut by Dir(alpha), small clients get more rows (the code of Goel, Srivastava and Shah)"
    )
    cites: ClassVar[tuple[str, ...]] = ("failure-modes",)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        room = np.bincount(labels)
        share = np.exp(dirichlet(self.alpha, (len(room), num_clients), rng))
        counts = np.floor(room[:, None] * share + 1e-9).astype(np.int64)
        counts[:, -1] = room - counts[:, :-1].sum(1)
        return top_up(dealt_by_counts(labels, counts.T, rng), max(1, len(labels) // (10 * num_clients)), rng)

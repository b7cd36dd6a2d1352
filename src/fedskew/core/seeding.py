"""Independent random streams by (seed, purpose, round, client), and samples of rows. No global generator is read or set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import shake_256
from secrets import token_bytes
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedskew.core.sites import Ints

if TYPE_CHECKING:
    import torch
    from torch import Tensor


PURPOSES = (
    *("partition", "init", "select", "batches", "evaluate", "holdout", "split", "data"),
    *("mixture", "availability", "phase", "dropout", "stragglers", "devices"),
    *("server data", "codec", "refine", "shared data", "noise", "tuning", "clusters"),
    *("features", "concepts", "test clients", "public"),
    *("augment", "diagnose", "landscape"),
    *("faults", "attackers", "attack"),
    "unseen",
    "shuffled",
)


class Secret(bytes):
    """A secret seed of 256 bits. Printing does not reveal it."""

    @classmethod
    def fresh(cls) -> Secret:
        """Create a secret from the operating system's randomness."""
        return cls(token_bytes(32))

    def derived(self, size: int, *keys: int) -> bytes:
        """Derive ``size`` bytes for these keys. They reveal neither the secret nor the bytes for other keys."""
        return shake_256(self + repr(keys).encode()).digest(size)

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__


Seed = int | Secret


def stream(seed: Seed, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator for a purpose. ``keys`` are usually the round and the client.

    A new purpose at the end of `PURPOSES` does not change any other stream.
    """
    place = (PURPOSES.index(purpose), *keys)
    if isinstance(seed, Secret):
        return np.random.default_rng(int.from_bytes(seed.derived(32, *place), "little"))
    return np.random.default_rng(np.random.SeedSequence((seed, *place)))


def torch_stream(seed: Seed, purpose: str, *keys: int) -> torch.Generator:
    """Return a torch generator on the CPU for a purpose, like `stream`. It has only 32 bits; for secret numbers use `normals`."""
    import torch

    return torch.Generator().manual_seed(int(stream(seed, purpose, *keys).integers(2**63 - 1)))


def normals(seed: Seed, size: int, purpose: str, *keys: int) -> Tensor:
    """Draw standard normal numbers (size,) in float64. With a `Secret` they are as hard to predict as SHAKE-256."""
    if not isinstance(seed, Secret):
        import torch

        return torch.randn(size, generator=torch_stream(seed, purpose, *keys), dtype=torch.float64)
    return normals_of(np.frombuffer(seed.derived(8 * size, PURPOSES.index(purpose), *keys), dtype="<u8"))


def normals_of(words: NDArray[np.uint64]) -> Tensor:
    """Convert words (n,) of 64 random bits to standard normal numbers (n,), by the inverse distribution function."""
    import torch

    # with 52 bits, adding 0.5 is exact, and the result is never 0 or 1
    return torch.special.ndtri(torch.from_numpy(((words >> np.uint64(12)) + 0.5) * 2.0**-52))


def level(sizes: Ints, most: int) -> int:
    """Return the largest limit of rows per group for which all groups together have at most ``most`` rows; at least 1.

    In a stream the limit never rises, because groups only grow. A row that is dropped early would thus also be dropped at the end.
    """
    if sizes.sum() <= most:
        return int(sizes.max(initial=1))
    ascending = np.sort(sizes)
    # if the i smallest groups keep all rows, the other groups share the rest
    left = most - np.concatenate([[0], np.cumsum(ascending)[:-1]])
    shares = left // np.arange(len(ascending), 0, -1)
    return max(1, int(shares[np.argmax(shares < ascending)]))


def fair_sample(groups: Ints, priority: NDArray[np.generic], each: int) -> Ints:
    """Return the indices, ascending, of the ``each`` rows with the smallest priority in each group."""
    order = np.lexsort((priority, groups))
    sizes = np.bincount(groups)
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(groups)) - starts[groups[order]]
    return np.sort(order[rank < each])


def whole_units(
    unit: Ints, client: Ints, chance: NDArray[np.generic], quotas: Sequence[tuple[Ints, Ints]]
) -> NDArray[np.bool_]:
    """Return True for the rows (n,) of some units, such as persons. A unit gives all of its rows or none.

    ``quotas`` holds divisions of the rows into parts, the finest first: the part (n,) of each row, and how many rows each part
    should give. For each division, the units come in the order of their first row's ``chance`` (n,). A unit is taken if this
    brings the division nearer to its numbers of rows, and no coarser one farther away. If each unit has one row, the first rows of
    each part are taken. Two kinds of units are never taken: those below 0, and those without which a ``client`` (n,) has no rows
    left.
    """
    order = np.argsort(unit, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(unit[order])) + 1)
    members = sorted((rows for rows in members if unit[rows[0]] >= 0), key=lambda rows: chance[rows[0]])
    counts = [[Counter(part[rows].tolist()) for part in (client, *(of for of, _ in quotas))] for rows in members]
    left, *short = (numbers.tolist() for numbers in (np.bincount(client), *(quota for _, quota in quotas)))
    drawn = np.zeros(len(unit), dtype=np.bool_)
    for level in range(len(quotas)):
        for rows, (of_client, *parts) in zip(members, counts, strict=True):
            if drawn[rows[0]] or any(left[k] <= n for k, n in of_client.items()):
                continue
            coarser = zip(short[level:], parts[level:], strict=True)
            nearer = [sum(abs(need[k]) - abs(need[k] - n) for k, n in part.items()) for need, part in coarser]
            if nearer[0] > 0 and min(nearer) >= 0:
                drawn[rows] = True
                for need, part in zip((left, *short), (of_client, *parts), strict=True):
                    for k, n in part.items():
                        need[k] -= n
    return drawn

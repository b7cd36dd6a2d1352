"""Independent random streams by (seed, purpose, round, client). No global generator is ever read or set.

PyTorch is imported only by functions that need it, so that data sets and skews can be checked without it.
"""

from __future__ import annotations

from hashlib import shake_256
from secrets import token_bytes
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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

"""Independent random streams by (seed, purpose, round, client). No global generator is ever read or set."""

from __future__ import annotations

import numpy as np
import torch

PURPOSES = (
    *("partition", "init", "select", "batches", "evaluate", "holdout", "split", "data"),
    *("mixture", "availability", "phase", "dropout", "stragglers", "devices"),
    *("server data", "codec", "refine", "shared data", "noise", "tuning", "clusters"),
    *("features", "concepts", "test clients", "public"),
    *("augment", "diagnose", "landscape"),
    *("faults", "attackers", "attack"),
)


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The generator for one purpose; ``keys`` are usually the round and the client.

    Adding a purpose at the end of `PURPOSES` leaves all other streams as they are.
    """
    return np.random.default_rng(np.random.SeedSequence((seed, PURPOSES.index(purpose), *keys)))


def torch_stream(seed: int, purpose: str, *keys: int) -> torch.Generator:
    """The same as a torch generator on the CPU."""
    return torch.Generator().manual_seed(int(stream(seed, purpose, *keys).integers(2**63 - 1)))

"""Test rows drawn out of a table that has no test set of its own."""

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.seeding import stream
from fedskew.data.dataset import Ints

Source = TypeVar("Source")


def with_split(source: Source, seed: int) -> Source:
    """The data set with the test rows that this seed draws, if it says ``redraw``; else as it is.

    A data set that draws its test rows has the options ``split_seed`` and ``redraw``.
    """
    return replace(source, split_seed=seed) if getattr(source, "redraw", False) else source  # type: ignore[type-var]


def held_out(client: Ints, fraction: float, seed: int = 0, stratum: Ints | None = None) -> NDArray[np.bool_]:
    """(n,) whether a row is held out: a random fraction of each client's rows, rounded down.

    The rows of a client are taken from each ``stratum`` in proportion, up to rounding; which ones, the seed decides.
    """
    stratum = np.zeros_like(client) if stratum is None else stratum
    order = np.lexsort((stream(seed, "split").random(len(client)), stratum, client))
    cell, shape = (client, stratum), (int(client.max(initial=0)) + 1, int(stratum.max(initial=0)) + 1)
    sizes = np.zeros(shape, dtype=np.int64)
    np.add.at(sizes, cell, 1)
    upto = sizes.cumsum(1)
    wanted = np.floor(fraction * upto[:, -1:] + 1e-9)
    taken = np.diff(np.floor(upto * wanted / np.maximum(upto[:, -1:], 1) + 1e-9), prepend=0.0, axis=1)
    starts = (sizes.ravel().cumsum() - sizes.ravel()).reshape(shape)
    held = np.zeros(len(client), dtype=bool)
    held[order] = (np.arange(len(client)) - starts[cell][order]) < taken[cell][order]
    return held

"""Facts of rows that a diagnosis compares between clients, for tables, images, signals and texts, in the data's units."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.data.dataset import Dataset
from fedskew.data.preprocessing import Array, Tabular
from fedskew.data.tables.columns import of_table, of_texts
from fedskew.measure.heterogeneity.columns import Fact, Held
from fedskew.measure.heterogeneity.content import image_numbers, signal_numbers

BLOCK = 1024
"""Number of images or signals that are converted to floating-point numbers at a time."""

MOST_INPUTS = 1000
"""If the inputs have no names and there are more than this number, they are not compared."""


def of_inputs(data: Dataset, x: NDArray[Any], texts: Sequence[str] | None) -> Iterator[Fact | Held]:
    """Yield the facts of rows ``x`` (n, ...) of a data set, or of their texts. Numbers are in the units of the raw data.

    Sequences of symbols have no facts of inputs, because their symbols are the targets, too.
    """
    known = data.preprocessing
    decode = known.decode if isinstance(known, Array) else lambda rows: rows
    if texts is not None:
        yield from of_texts("text", texts)
    elif isinstance(known, Tabular):
        yield from of_table(x, known)
    elif x.ndim == 4:
        yield from in_blocks(x, lambda rows: image_numbers(decode(rows)))
    elif x.ndim == 3:
        yield from in_blocks(x, lambda rows: signal_numbers(decode(rows), data.columns))
    elif x.ndim == 2 and not data.vocabulary and x.shape[1] <= MOST_INPUTS:
        names = data.columns or [f"input {at + 1}" for at in range(x.shape[1])]
        for name, values in zip(names, decode(x).T, strict=True):
            yield name, "mean" if data.columns else "content", "", np.asarray(values, dtype=np.float64)


def in_blocks(x: NDArray[Any], numbers: Callable[[NDArray[Any]], dict[str, NDArray[np.float64]]]) -> Iterator[Fact]:
    """Apply ``numbers`` to `BLOCK` rows at a time; yield one fact for each name."""
    blocks = [numbers(x[lo : lo + BLOCK]) for lo in range(0, len(x), BLOCK)]
    for name in blocks[0]:
        yield name, "content", "", np.concatenate([block[name] for block in blocks])

"""Facts of rows that a diagnosis compares between clients, for tables, images, signals and texts, in the data's units."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.data.dataset import Dataset
from fedskew.data.preprocessing import Array, Tabular, Text
from fedskew.data.tables.columns import of_column, of_texts
from fedskew.measure.heterogeneity.columns import Fact, WordFact
from fedskew.measure.heterogeneity.rows import Floats, Ints

COLOURS = ("red", "green", "blue")

SYMBOLS = 100
"""Maximum number of symbols that are compared. The most frequent are taken."""


def image_numbers(x: NDArray[np.generic]) -> dict[str, Floats]:
    """Return brightness, contrast and sharpness (n,) of images (n, channels, height, width), and of each of several channels.

    Brightness is the mean of the pixels, contrast their standard deviation, sharpness the mean difference of neighbours. The
    balance of a channel is its brightness minus the mean of the other channels.
    """
    v = np.asarray(x, dtype=np.float64)
    channels = v.shape[1]
    values = of_image(v.mean(1), "")
    if channels > 1:
        names = COLOURS if channels == len(COLOURS) else [f"channel {at + 1}" for at in range(channels)]
        for at, name in enumerate(names):
            values |= of_image(v[:, at], f"{name} ")
        total = sum(values[f"{name} brightness"] for name in names)
        for name in names:
            channel = values[f"{name} brightness"]
            values[f"{name} balance"] = channel - (total - channel) / (channels - 1)
    return values


def of_image(v: Floats, prefix: str) -> dict[str, Floats]:
    """Return brightness, contrast and sharpness (n,) of images (n, height, width)."""
    steps = [np.abs(np.diff(v, axis=axis)).reshape(len(v), -1) for axis in (1, 2)]
    sharpness = np.concatenate(steps, axis=1).mean(1) if v[0].size > 1 else np.zeros(len(v))
    return {f"{prefix}brightness": v.mean((1, 2)), f"{prefix}contrast": v.std((1, 2)), f"{prefix}sharpness": sharpness}


def signal_numbers(x: NDArray[np.generic], names: Sequence[str] = ()) -> dict[str, Floats]:
    """Return mean, standard deviation and dominant frequency (n,) of each channel of windows (n, channels, time).

    The frequency is in periods a window; NaN for a constant window. Without ``names``, channels are numbered.
    """
    v = np.asarray(x, dtype=np.float64)
    power = np.abs(np.fft.rfft(v - v.mean(2, keepdims=True), axis=2)) ** 2
    scale = v.std(2)
    frequency = np.where(scale > 0, power.argmax(2), np.nan)
    values = {}
    for at, name in enumerate(names or [f"channel {at + 1}" for at in range(v.shape[1])]):
        values[f"mean of {name}"] = v[:, at].mean(1)
        values[f"scale of {name}"] = scale[:, at]
        values[f"dominant frequency of {name}"] = frequency[:, at]
    return values


def of_symbols(y: Ints, names: Sequence[str]) -> Iterator[Fact]:
    """Yield facts of rows (n, T) of symbols: the row's length, and its share of each frequent symbol. -1 is no symbol."""
    length = (y >= 0).sum(1)
    yield "length of a row", "content", "", length.astype(np.float64)
    counts = np.bincount(y[y >= 0], minlength=len(names))
    for at in np.argsort(-counts, kind="stable")[:SYMBOLS].tolist():
        share = np.divide((y == at).sum(1), length, where=length > 0, out=np.full(len(y), np.nan))
        yield "symbol", "symbol", names[at], share


BLOCK = 1024
"""Number of images or signals that are converted to floating-point numbers at a time."""

MOST_INPUTS = 1000
"""If the inputs have no names and there are more than this number, they are not compared."""


def of_inputs(data: Dataset, x: NDArray[Any], texts: Sequence[str] | None) -> Iterator[Fact | WordFact]:
    """Yield the facts of rows ``x`` (n, ...) of a data set, or of their texts. Numbers are in the units of the raw data.

    Sequences of symbols have no facts of inputs, because their symbols are the targets, too.
    """
    preprocessing = data.preprocessing
    decode = preprocessing.decode if isinstance(preprocessing, Array) else lambda rows: rows
    if texts is not None:
        yield from of_texts("text", texts)
    elif isinstance(preprocessing, Tabular):
        for part, inputs in preprocessing.parts(x):
            if not isinstance(part, Text):  # texts cannot be decoded
                yield from of_column(part, part.decode(inputs))
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

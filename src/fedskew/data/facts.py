"""Facts of rows by which clients are compared: numbers, words and gaps of a table's columns, and words of texts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedskew.data.preprocessing import Cells, Column, Number, Tabular, Text, Words
from fedskew.data.texts import words

Fact: TypeAlias = tuple[str, Literal["mean", "content", "share", "missing"], str, NDArray[np.float64]]
"""A column, what its values (rows,) say, the word if they say which rows have it, and the values, NaN where unknown."""
Held: TypeAlias = tuple[str, Literal["word"], tuple[str, ...], csr_array]
"""A text, its words, and which rows (rows, words) hold them."""

FREQUENT, FEWEST = 2000, 5
"""The most frequent words of texts are compared, at most this number; each is in at least `FEWEST` texts."""


def of_column(part: Column, cells: Cells) -> Iterator[Fact | Held]:
    """A column's numbers, words (1 for a row that has it) and gaps (1), in its own units. Numbers of times are left out."""
    if isinstance(part, Text):
        yield from of_texts(part.name, cells.tolist())
    gaps = cells == "" if part.text else np.isnan(part.raw(cells)[:, 0] if isinstance(part, Number) else cells)
    if not part.text and not (isinstance(part, Number) and part.time):
        yield part.name, "mean", "", np.where(gaps, np.nan, cells)
    if not isinstance(part, Number | Text):
        for word in part.known if isinstance(part, Words) else part.words:
            yield part.name, "share", word, np.where(gaps, np.nan, cells == word)
    if gaps.any():
        yield part.name, "missing", "", gaps.astype(np.float64)


def of_table(x: Cells, known: Tabular) -> Iterator[Fact | Held]:
    """The facts of columns that became these inputs (rows, width). Texts cannot be read from their inputs."""
    for part, made in known.parts(x):
        if not isinstance(part, Text):
            yield from of_column(part, part.decode(made))


def of_texts(name: str, texts: Sequence[str]) -> Iterator[Fact | Held]:
    """The number of words of each text, and which texts hold the frequent words."""
    found = [words(text) for text in texts]
    yield f"number of words of {name}", "content", "", np.array([len(own) for own in found], dtype=float)
    sets = [sorted(set(own)) for own in found]
    counts = Counter(chain.from_iterable(sets))
    kept = sorted((word for word in counts if counts[word] >= FEWEST), key=lambda word: (-counts[word], word))[
        :FREQUENT
    ]
    number = {word: at for at, word in enumerate(kept)}
    columns = [[number[word] for word in own if word in number] for own in sets]
    ends = np.cumsum([0, *map(len, columns)])
    places = np.fromiter(chain.from_iterable(columns), dtype=np.int64)
    yield name, "word", tuple(kept), csr_array((np.ones(len(places)), places, ends), shape=(len(texts), len(kept)))

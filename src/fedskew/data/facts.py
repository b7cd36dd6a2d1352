"""Facts of rows that are compared between clients: numbers, words and missing values of columns, and words of texts."""

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
"""(column, kind, word, values): one value for each row (rows,), NaN if unknown. ``word`` is for ``share`` only."""
Held: TypeAlias = tuple[str, Literal["word"], tuple[str, ...], csr_array]
"""(column, "word", words, held): ``held`` (rows, words) is 1 if the row's text has the word."""

FREQUENT, FEWEST = 2000, 5
"""At most `FREQUENT` words of texts are compared: the most frequent ones that occur in at least `FEWEST` texts."""


def of_column(part: Column, cells: Cells) -> Iterator[Fact | Held]:
    """Yield the facts of a column: numbers in its own units, 1 for rows that have a word, 1 for missing values.

    Times have no numbers.
    """
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
    """Yield the facts of columns, decoded from the inputs ``x`` (rows, width). Columns of texts cannot be decoded."""
    for part, made in known.parts(x):
        if not isinstance(part, Text):
            yield from of_column(part, part.decode(made))


def of_texts(name: str, texts: Sequence[str]) -> Iterator[Fact | Held]:
    """Yield two facts of texts: the number of words, and which frequent words each text has."""
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

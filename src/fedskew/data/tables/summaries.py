"""The summary of a site's columns: counts, mean and deviation of its numbers, and its words; and how to pool mean and deviation."""

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from fedskew.data.preprocessing import HASHES
from fedskew.data.tables.columns import Values, numbers, to_pandas
from fedskew.data.tables.mapping import NUMBERS, TIMES

Floats = NDArray[np.float64]


class Moments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The moments of ``rows`` numbers: their mean, standard deviation (root of the mean square), smallest and largest.

    Sums of squares would overflow from 1e154 on.
    """

    rows: int = 0
    mean: float = 0.0
    deviation: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def __post_init__(self) -> None:
        """Raise `ValueError` for impossible moments, which another machine might send."""
        low, high = (self.low, self.high) if self.rows else (0.0, 0.0)
        if not (
            0 <= self.rows < 1 << 50
            and all(map(math.isfinite, (self.mean, self.deviation, low, high)))
            and self.deviation >= 0
            and low <= high
        ):
            raise ValueError("moments of no numbers")


def moments(values: Floats) -> Moments:
    """Return the moments of finite numbers (n,). Their order does not change a bit."""
    if not len(values):
        return Moments()
    values = np.sort(values)
    low, high = float(values[0]), float(values[-1])
    largest = max(-low, high)
    unit = unit_of(largest)
    # equal numbers have no deviation if each is measured from the smallest
    above = values / unit - low / unit
    mean, deviation = (low / unit + float(above.mean())) * unit, float(above.std()) * unit
    return Moments(rows=len(values), mean=mean, deviation=min(deviation, largest), low=low, high=high)


def pooled(parts: Iterable[Moments]) -> Moments:
    """Return the moments of the numbers of all parts together (Chan, Golub and LeVeque 1983).

    One part keeps its bits. Another order or split changes the last digits: by less than 1e-12 of the largest number.
    """
    parts = [part for part in parts if part.rows]
    if not parts:
        return Moments()
    rows, means, deviations = (
        np.array([getattr(part, name) for part in parts]) for name in ("rows", "mean", "deviation")
    )
    unit = unit_of(float(max(np.abs(means).max(), deviations.max())))
    shares, first = rows / rows.sum(), means[0] / unit
    steps = means / unit - first
    step = (shares * steps).sum()
    variance = (shares * ((deviations / unit) ** 2 + (steps - step) ** 2)).sum()
    return Moments(
        rows=int(rows.sum()),
        mean=float(first + step) * unit,
        deviation=min(math.sqrt(variance) * unit, sys.float_info.max),
        low=min(part.low for part in parts),
        high=max(part.high for part in parts),
    )


def unit_of(largest: float) -> float:
    """Return a power of two. Numbers up to ``largest``, divided by it, have squares that do not overflow; the division is exact."""
    return 2.0 ** (math.frexp(largest)[1] - 1)


CATEGORIES = 40
"""A column with up to this many different words is categorical (one-hot). With more, it is text."""

NUMBERED, SPELLING = "numbered", "spelling"
"""Marks of a field in a table's schema: 1 if the column numbers the rows of the whole file, else 0; and how the file spells it."""
MOST_STEPS, FEWEST = 10_000, 10
"""A column with more different steps between its rows does not number them. From `FEWEST` steps on, others than 1 count."""
NAMELESS = re.compile(r"|Unnamed: \d+")
"""Names of the column of row numbers that pandas writes, and then reads."""


@dataclass
class Steps:
    """The differences between successive whole numbers of a file's column. Other columns have ``counts`` of None."""

    counts: Counter[int] | None = field(default_factory=Counter)
    last: list[int] = field(default_factory=list)  # the last number so far

    def add(self, column: pa.ChunkedArray) -> None:
        """Add the next rows."""
        if self.counts is None or not pa.types.is_integer(column.type) or column.null_count:
            self.counts = None
            return
        values = np.asarray(column).astype(np.int64)
        steps, times = np.unique(np.diff(values, prepend=np.array(self.last, dtype=np.int64)), return_counts=True)
        self.counts.update(dict(zip(steps.tolist(), times.tolist(), strict=True)))
        self.last = values[-1:].tolist() or self.last
        if len(self.counts) > MOST_STEPS or min(self.counts, default=1) <= 0 <= max(self.counts, default=1):
            self.counts = None


def number_rows(name: str, files: Iterable[Steps]) -> bool:
    """Whether a column numbers the rows of each file: its numbers only rise or only fall, most often by the same step.

    A file of few rows has steps of 1 or -1 only. pandas writes the numbers of rows, in any order, as a column without a name.
    """
    known = [file.counts for file in files]
    return NAMELESS.fullmatch(name) is not None or (any(known) and all(map(regular, known)))


def regular(counts: Counter[int] | None) -> bool:
    """Whether the numbers step as row numbers do."""
    if counts is None:
        return False
    rows = counts.total()
    return counts.keys() <= {1} or counts.keys() <= {-1} or (rows >= FEWEST and max(counts.values()) > rows / 2)


class ColumnSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The summary of a column at one site.

    ``type`` is ``number``, ``time``, ``text``, or the name of a type that cannot be used. ``valid`` is the number of rows that are
    not missing. ``words`` counts each word, if there are at most `CATEGORIES` different ones; otherwise ``buckets`` counts the
    texts in each hash bucket. ``unique``: all texts are different single words, or all numbers are whole and
    different. ``whole``: all numbers are whole. ``numbered``: the column numbers the rows. ``spelling``: how the site's file
    spells its numbers or times, see `fedskew.data.tables.mapping`.
    """

    type: str
    rows: int
    valid: int
    numbers: Moments = Moments()
    words: dict[str, int] = {}
    buckets: dict[int, int] = {}
    different: int = 0
    unique: bool = False
    whole: bool = False
    numbered: bool = False
    spelling: str = ""

    def __post_init__(self) -> None:
        """Raise `ValueError` for impossible counts, which another machine might send."""
        counts = (*self.words.values(), *self.buckets.values())
        if not (
            0 <= self.numbers.rows <= self.valid <= self.rows
            and all(0 <= number <= self.valid for number in (self.different, *counts))
            and len(self.words) <= CATEGORIES
            and all(0 <= at < HASHES for at in self.buckets)
            and self.spelling in ("", *NUMBERS, *TIMES)
        ):
            raise ValueError("counts of no column")


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The columns of a site's table, in order."""

    columns: dict[str, ColumnSummary]


def summary(table: pa.Table) -> Summary:
    """Summarise a table."""
    frame = to_pandas(table)
    return Summary(columns={name: of_column(frame[name], table.schema.field(name)) for name in table.column_names})


def is_text(kind: pa.DataType) -> bool:
    """Whether the cells of this type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def marks_of(field: pa.Field) -> dict[str, str]:
    """Return the marks of a field in a table's schema."""
    return {key.decode(): mark.decode() for key, mark in (field.metadata or {}).items()}


def of_column(values: Values, field: pa.Field) -> ColumnSummary:
    """Summarise a column. ``field`` is its place in the table's schema."""
    kind, marks = field.type, marks_of(field)
    valid = values.dropna()
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return ColumnSummary(type=str(kind), rows=len(values), valid=len(valid))
    found = numbers(valid)
    known = moments(found[~np.isnan(found)])
    if is_text(kind):
        return replace(of_texts(valid.astype(str), len(values), known), spelling=marks.get(SPELLING, ""))
    whole = pa.types.is_integer(kind)
    if NUMBERED in marks:
        numbered = marks[NUMBERED] == "1"
    else:
        steps = Steps()
        steps.add(pa.chunked_array([pa.Array.from_pandas(values)]))
        numbered = number_rows(field.name, [steps])
    return ColumnSummary(
        type="time" if pd.api.types.is_datetime64_any_dtype(values) else "number",
        rows=len(values),
        valid=len(valid),
        numbers=known,
        whole=bool((np.mod(found[~np.isnan(found)], 1) == 0).all()),
        unique=whole and len(np.unique(found)) == len(values),
        numbered=numbered,
        spelling=marks.get(SPELLING, ""),
    )


def of_texts(texts: Values, rows: int, known: Moments) -> ColumnSummary:
    """Summarise a column of ``rows`` texts. ``texts`` has no missing ones; ``known`` are the moments of texts that are numbers."""
    often = {str(word): int(number) for word, number in texts.value_counts().sort_index().items()}
    few = len(often) <= CATEGORIES
    return ColumnSummary(
        type="text",
        rows=rows,
        valid=len(texts),
        numbers=known,
        words=often if few else {},
        buckets={} if few else buckets_of(often),
        different=len(often),
        unique=len(often) == len(texts) and not texts.str.contains(r"\s").any(),
    )


def buckets_of(texts: Mapping[str, int]) -> dict[int, int]:
    """Count the texts that have a word in each hash bucket. ``texts`` says how often each text occurs."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(n_features=HASHES, alternate_sign=False).transform(texts)
    often = np.repeat(np.fromiter(texts.values(), dtype=np.int64, count=len(texts)), np.diff(hashed.indptr))
    counts = np.bincount(hashed.indices, weights=often)
    return {int(at): int(counts[at]) for at in np.flatnonzero(counts)}

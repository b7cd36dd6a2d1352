"""Exact sums of floating-point numbers. Mean and deviation are bit-identical however rows are split over sites."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from fedskew.data.preprocessing import HASHES
from fedskew.data.tables.columns import Values, numbers, to_pandas
from fedskew.data.tables.spellings import NUMBERS, TIMES

Floats = NDArray[np.float64]

SPLIT = 2.0**27 + 1
"""Veltkamp's factor. It splits a number into two halves of its digits; products of halves are exact."""

MOST_POWER, MOST_PARTS = 1100, 10_000
"""Limits of `Moments`. No valid moments have a larger power or more parts."""

BLOCK = 1 << 14
"""Number of values that are added at a time, so that they fit into the processor's cache."""


class Moments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The moments of ``rows`` numbers, from which mean and deviation follow.

    ``sum`` and ``squares`` are exact sums of the numbers and of their squares, after division of the numbers by 2^``power``.
    Each is a list of numbers that add up to the sum. ``low`` and ``high`` are the smallest and the largest number.
    """

    rows: int = 0
    power: int = 0
    sum: tuple[float, ...] = ()
    squares: tuple[float, ...] = ()
    low: float = math.inf
    high: float = -math.inf

    def __post_init__(self) -> None:
        """Raise `ValueError` for impossible moments, which another machine might send to use up memory or cause overflow."""
        if (
            not 0 <= self.rows < 1 << 50
            or abs(self.power) > MOST_POWER
            or max(len(self.sum), len(self.squares)) > MOST_PARTS
        ):
            raise ValueError("moments of no numbers")
        total, squares = math.fsum(self.sum), math.fsum(self.squares)
        if not (abs(total) <= self.rows and -1e-9 <= squares <= self.rows and (not self.rows or self.low <= self.high)):
            raise ValueError("moments of no numbers")
        if self.rows and not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError("moments of no numbers")


def moments(values: Floats) -> Moments:
    """Return the moments of finite numbers (n,)."""
    if not len(values):
        return Moments()
    low, high = float(values.min()), float(values.max())
    # squares of large numbers would overflow; division by a power of two is exact
    power = int(np.frexp(max(-low, high))[1])
    scaled = np.ldexp(values, -power)
    a = SPLIT * scaled
    a = a - (a - scaled)
    b = scaled - a
    total = exact(exact_sum(scaled), power)
    squares = sum((exact(exact_sum(product), 2 * power) for product in (a * a, 2 * a * b, b * b)), Fraction())
    # a power and parts that follow from the sums alone: the power of the largest number would tell that number
    power = math.frexp(root(squares / len(values)))[1]
    scale = Fraction(2) ** power
    return Moments(
        rows=len(values),
        power=power,
        sum=parts_of(total / scale),
        squares=parts_of(squares / scale**2),
        low=low,
        high=high,
    )


def parts_of(number: Fraction) -> tuple[float, ...]:
    """Return floating-point numbers, the largest first, that add up to ``number`` exactly. It must be a sum of powers of 2."""
    found = []
    # a rest too small for floating point is left out
    while part := float(number):
        found.append(part)
        number -= Fraction(part)
    return tuple(found)


def exact_sum(values: Floats) -> tuple[float, ...]:
    """Return a few numbers whose exact sum is the exact sum of ``values`` (Rump, Ogita and Oishi 2008).

    Absolute values must be at most 1. Each pass takes the leading digits of all numbers, which add up without rounding error.
    """
    if len(values) > BLOCK:
        blocks = np.split(values, range(BLOCK, len(values), BLOCK))
        return exact_sum(np.array([part for block in blocks for part in exact_sum(block)]))
    found = []
    while len(values) and (largest := float(np.abs(values).max())):
        grid = math.ldexp(1, math.frexp(largest * (len(values) + 2))[1])
        leading = (grid + values) - grid
        found.append(float(leading.sum()))
        values = values - leading
    return tuple(found)


def mean_and_deviation(parts: Iterable[Moments]) -> tuple[float, float]:
    """Return mean and standard deviation of the numbers of all parts together, in any order of the parts."""
    held = [part for part in parts if part.rows]
    rows, power = sum(part.rows for part in held), max(part.power for part in held)
    total = sum((exact(part.sum, part.power - power) for part in held), Fraction())
    squares = sum((exact(part.squares, 2 * (part.power - power)) for part in held), Fraction())
    mean = total / rows
    variance = max(squares / rows - mean * mean, Fraction())
    return math.ldexp(float(mean), power), math.ldexp(root(variance), power)


def exact(parts: Iterable[float], power: int) -> Fraction:
    """Return the sum of the parts times 2^power."""
    return sum(map(Fraction, parts), Fraction()) * Fraction(2) ** power


def root(square: Fraction) -> float:
    """Return the square root of a fraction, which may be too small for floating point."""
    if not square:
        return 0.0
    half = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(square / Fraction(4) ** half), half)


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
    spells its numbers or times, see `fedskew.data.tables.spellings`.
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

"""The summary of a site's table, in which no number is about fewer than ``fewest`` rows: the site first changes its table."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field as default

import numpy as np
import pandas as pd
import pyarrow as pa
from msgspec.structs import replace

from fedskew.core.errors import require
from fedskew.data.tables.columns import Values, numbers, to_pandas
from fedskew.data.tables.summaries import CATEGORIES, ColumnSummary, Floats, Moments, Summary, buckets_of, unit_of


def shared(table: pa.Table, fewest: int) -> tuple[Summary, list[str]]:
    """The summary that leaves a site for the preprocessing of a run, and notes on what it hides.

    With ``fewest`` 1 it hides nothing.
    """
    table, notes = guarded(table, fewest)
    return summary(table, fewest), notes


def guarded(table: pa.Table, fewest: int) -> tuple[pa.Table, list[str]]:
    """The table, and notes on what was changed.

    First, words with fewer than ``fewest`` rows become missing: see `without_rare_words`. Then a column with fewer than ``fewest``
    values becomes empty. If it has fewer than ``fewest`` missing values, they become its mean or its most frequent word. The mean
    is rounded if all numbers of the column are whole.
    """
    notes: list[str] = []
    frame = to_pandas(table)
    for at, field in enumerate(table.schema) if fewest > 1 else ():
        if not countable(field.type) or frame[field.name].isna().all():
            continue
        text = is_text(field.type)
        values = frame[field.name].astype(object) if text else finite(frame[field.name])
        changed = without_rare_words(values, fewest) if text else values
        gaps = int(changed.isna().sum())
        if 0 < len(changed) - gaps < fewest:
            changed = changed.mask(changed.notna())
        elif 0 < gaps < fewest:
            present = changed.dropna()
            usual = present.mode()[0] if text or pa.types.is_boolean(field.type) else present.mean()
            if present.dtype.kind in "iuf" and (present % 1 == 0).all():
                usual = round(usual)  # codes must stay whole: they have no unit
            changed = changed.astype(object if text else values.dtype).fillna(usual)
        if not changed.equals(frame[field.name].astype(object) if text else frame[field.name]):
            notes.append(f"column {field.name!r}: words and gaps of fewer than {fewest} rows are hidden")
            table = with_cells(table, at, changed.map(str, na_action="ignore") if text else changed)
    return table, notes


def without_rare_words(texts: Values, fewest: int) -> Values:
    """The texts without words of fewer than ``fewest`` rows.

    Of more than `CATEGORIES` different texts, those that are no numbers become missing if they are fewer than ``fewest``.
    """
    if texts.nunique() <= CATEGORIES:
        return texts.mask(texts.map(texts.value_counts()) < fewest)
    odd = texts.notna() & np.isnan(numbers(texts))
    return texts.mask(odd) if odd.sum() < fewest else texts


def without_rare_values(x: Floats, fewest: int) -> Floats:
    """Return rows (n, d) without values of fewer than ``fewest`` rows in columns of two values: such a column becomes constant.

    Raises `BadInput` if there are fewer than ``fewest`` rows.
    """
    require(len(x) >= fewest, f"this site has {len(x)} training rows, and sends no sums of fewer than {fewest}")
    low, high = (x == x.min(0)), (x == x.max(0))
    below, above = low.sum(0), high.sum(0)
    rare = (low | high).all(0) & (np.minimum(below, above) < fewest)
    return np.where(rare, np.where(below < above, x.max(0), x.min(0)), x)


def with_cells(table: pa.Table, at: int, cells: Values) -> pa.Table:
    """The table with other cells in one column. Its field keeps the marks."""
    array = pa.Array.from_pandas(cells)
    return table.set_column(at, table.schema.field(at).with_type(array.type), array)


def countable(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers, times, texts or nothing. Of others only the number of rows leaves."""
    of = pa.types
    number = of.is_boolean(kind) or of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind)
    return number or of.is_timestamp(kind) or of.is_date(kind) or is_text(kind) or of.is_null(kind)


def finite(values: Values) -> Values:
    """The numbers or times, with infinite ones as missing values."""
    if values.dtype == object:
        values = pd.to_numeric(values)
    return values.where(np.isfinite(values)) if values.dtype.kind == "f" else values


def as_own_file(table: pa.Table) -> pa.Table:
    """The table of one site with the types of a file of its own: texts that are all numbers become numbers."""
    frame = to_pandas(table)
    for at, field in enumerate(table.schema):
        values = frame[field.name]
        if is_text(field.type) and not (values.notna() & np.isnan(numbers(values))).any():
            table = with_cells(table, at, pd.to_numeric(values))
    return table


def summary(table: pa.Table, fewest: int = 1) -> Summary:
    """Summarise a table, or one that `guarded` returned with this ``fewest``.

    At least ``fewest`` rows lie at or beyond each end of the range of numbers. Each bucket of texts counts at least ``fewest``
    rows. If a column has too few numbers for such a range, both ends are its mean.
    """
    frame = to_pandas(table)
    return Summary(columns={field.name: of_column(frame[field.name], field, fewest) for field in table.schema})


def of_column(values: Values, field: pa.Field, fewest: int) -> ColumnSummary:
    """Summarise a column. ``field`` is its place in the table's schema."""
    kind, marks, valid = field.type, marks_of(field), values.dropna()
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return ColumnSummary(type=str(kind), rows=len(values), valid=len(values) if fewest > 1 else len(valid))
    cells = numbers(valid)
    floats = np.sort(cells[~np.isnan(cells)])
    spelling, of_numbers = marks.get(SPELLING, ""), moments(floats, fewest)
    if is_text(kind):
        return replace(of_texts(valid.astype(str), len(values), of_numbers, fewest), spelling=spelling)
    if NUMBERED in marks:
        numbered = marks[NUMBERED] == "1"
    else:
        steps = RowSteps()
        steps.add(pa.chunked_array([pa.Array.from_pandas(values)]))
        numbered = number_rows(field.name, [steps])
    return ColumnSummary(
        type="time" if pd.api.types.is_datetime64_any_dtype(values) else "number",
        rows=len(values),
        valid=len(values) if fewest > 1 and not countable(kind) else len(valid),
        numbers=of_numbers,
        whole=bool((np.mod(floats, 1) == 0).all()),
        unique=pa.types.is_integer(kind) and len(np.unique(cells)) == len(values),
        numbered=numbered,
        spelling=spelling,
    )


def moments(values: Floats, fewest: int = 1) -> Moments:
    """Return the moments of finite numbers (n,); their order does not change a bit.

    Fewer than ``fewest`` numbers give `Moments` of no rows.
    """
    if len(values) < fewest:
        return Moments()
    values = np.sort(values)
    low, high = float(values[0]), float(values[-1])
    largest = max(-low, high)
    unit = unit_of(largest)
    # equal numbers have no deviation if each is measured from the smallest
    above = values / unit - low / unit
    mean, deviation = (low / unit + float(above.mean())) * unit, float(above.std()) * unit
    low, high = float(values[fewest - 1]), float(values[-fewest])
    low, high = (low, high) if low <= high else (mean, mean)
    return Moments(rows=len(values), mean=mean, deviation=min(deviation, largest), low=low, high=high)


def is_text(kind: pa.DataType) -> bool:
    """Whether the cells of this type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def marks_of(field: pa.Field) -> dict[str, str]:
    """Return the marks of a field in a table's schema."""
    return {key.decode(): mark.decode() for key, mark in (field.metadata or {}).items()}


def of_texts(texts: Values, rows: int, of_numbers: Moments, fewest: int = 1) -> ColumnSummary:
    """Summarise a column of ``rows`` texts. None is missing; ``of_numbers`` are the moments of those that are numbers."""
    counts = {str(word): int(number) for word, number in texts.value_counts().sort_index().items()}
    few = len(counts) <= CATEGORIES
    return ColumnSummary(
        type="text",
        rows=rows,
        valid=len(texts),
        numbers=of_numbers,
        words=counts if few else {},
        buckets={} if few else {at: number for at, number in buckets_of(counts).items() if number >= fewest},
        different=len(counts),
        unique=len(counts) == len(texts) and not texts.str.contains(r"\s").any(),
    )


NUMBERED, SPELLING = "numbered", "spelling"
"""Marks of a field in a table's schema: 1 if the column numbers the rows of the whole file, else 0; and how the file spells it."""
MOST_STEPS, FEWEST = 10_000, 10
"""A column with more different steps between its rows does not number them. From `FEWEST` steps on, others than 1 count."""
NAMELESS = re.compile(r"|Unnamed: \d+")
"""Names of the column of row numbers that pandas writes, and then reads."""


@dataclass
class RowSteps:
    """The differences between successive whole numbers of a file's column. Other columns have ``counts`` of None."""

    counts: Counter[int] | None = default(default_factory=Counter)
    last: list[int] = default(default_factory=list)  # the last number so far

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


def number_rows(name: str, files: Iterable[RowSteps]) -> bool:
    """Whether a column numbers the rows of each file: its numbers only rise or only fall, most often by the same step.

    A file of few rows has steps of 1 or -1 only. pandas writes the numbers of rows, in any order, as a column without a name.
    """
    counts = [file.counts for file in files]
    return NAMELESS.fullmatch(name) is not None or (any(counts) and all(map(regular, counts)))


def regular(counts: Counter[int] | None) -> bool:
    """Whether the numbers step as row numbers do."""
    if counts is None:
        return False
    rows = counts.total()
    return counts.keys() <= {1} or counts.keys() <= {-1} or (rows >= FEWEST and max(counts.values()) > rows / 2)

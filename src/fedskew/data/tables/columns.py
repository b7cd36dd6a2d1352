"""Facts of rows that are compared between clients: numbers, words and missing values of columns, and words of texts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedskew.data.preprocessing import MISSING, Cells, Column, Floats, Number, Tabular, Text, Unseen, Words
from fedskew.data.tables.mapping import GAPS, Values
from fedskew.data.texts import by_frequency, words

Fact: TypeAlias = tuple[str, Literal["mean", "content", "share", "missing"], str, NDArray[np.float64]]
"""(column, kind, word, values): one value for each row (rows,), NaN if unknown. ``word`` is for ``share`` only."""
Held: TypeAlias = tuple[str, Literal["word"], tuple[str, ...], csr_array]
"""(column, "word", words, held): ``held`` (rows, words) is 1 if the row's text has the word."""

MOST_ODD = 0.1
"""Share of rows with cells such as no training row had from which on `Columns.gaps` says so."""

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


def of_texts(name: str, texts: Sequence[str]) -> Iterator[Fact | Held]:
    """Yield two facts of texts: the number of words, and which frequent words each text has."""
    of_rows = [words(text) for text in texts]
    yield f"number of words of {name}", "content", "", np.array([len(row) for row in of_rows], dtype=float)
    sets = [sorted(set(row)) for row in of_rows]
    counts = Counter(chain.from_iterable(sets))
    frequent = [word for word in by_frequency(counts) if counts[word] >= FEWEST][:FREQUENT]
    number = {word: at for at, word in enumerate(frequent)}
    columns = [[number[word] for word in row if word in number] for row in sets]
    ends = np.cumsum([0, *map(len, columns)])
    places = np.fromiter(chain.from_iterable(columns), dtype=np.int64)
    held = csr_array((np.ones(len(places)), places, ends), shape=(len(texts), len(frequent)))
    yield name, "word", tuple(frequent), held


@dataclass(frozen=True)
class Columns:
    """The preprocessing of the used columns, and notes for the user about columns."""

    preprocessing: Tabular
    notes: tuple[str, ...]

    def __call__(self, table: pa.Table) -> NDArray[np.float32]:
        """Turn the rows of a table into standardised inputs (rows, width). A missing number becomes 0, the mean."""
        return self.preprocessing(cells_of(to_pandas(table), self.preprocessing))

    def features(self, table: pa.Table) -> Iterator[Fact | Held]:
        """Yield the facts of each column, in its own units."""
        cells = cells_of(to_pandas(table), self.preprocessing)
        for part in self.preprocessing.columns:
            yield from of_column(part, cells[part.name])

    def gaps(self, table: pa.Table, known: str = "no training row") -> list[str]:
        """Return notes on these rows: missing numbers in columns that had none, and cells such as no ``known`` row had."""
        cells, notes = cells_of(to_pandas(table), self.preprocessing), []
        for part in self.preprocessing.columns:
            values = cells[part.name]
            present = values != "" if part.text else ~np.isnan(values)
            if isinstance(part, Number) and not part.marked and (missing := int(np.isnan(part.raw(values)).sum())):
                notes.append(f"column {part.name!r}: {missing} missing, not numbers or too large, set to the mean")
            for at, what in part.unseen(values):
                if (odd := int((at & present).sum())) >= max(FEWEST, MOST_ODD * len(values)):
                    notes.append(f"column {part.name!r}: {odd} of {len(values)} rows {what}; {known} was like that")
        return notes


def cells_of(frame: pd.DataFrame, preprocessing: Tabular) -> dict[str, Cells]:
    """Return the cells of each column that the preprocessing reads, by name."""
    return {part.name: cells_for(part, frame[part.name]) for part in preprocessing.columns}


def cells_for(part: Column, values: Values) -> Cells:
    """Return a column's cells (n,) in the form that its preprocessing reads: words, numbers, or times as seconds in UTC."""
    if part.text:
        words = strings(values).str.strip()
        return words.mask(words.isin(MISSING.difference(getattr(part, "known", ()))), "").to_numpy(dtype=object)
    if isinstance(part, Number) and values.dtype.kind not in "iufbM" and (part.low, part.high) == (0, 1):
        # an odd cell makes a column of truth values text
        truth = values.astype(str).str.casefold().map({"true": 1, "false": 0})
        values = truth.where(truth.notna(), values)
    if isinstance(part, Number) and part.time and not pd.api.types.is_numeric_dtype(values):
        values = pd.to_datetime(values, errors="coerce", format="ISO8601", utc=True)
    return numbers(values)


def unseen(part: Column, values: Values) -> list[Unseen]:
    """Return what no training row held in a column's cells. A cell that is no number is not called missing."""
    cells = cells_for(part, values)
    unseen = part.unseen(cells)
    if not isinstance(part, Number):
        return unseen
    texts = values.astype(str).where(values.notna(), "").str.strip()
    odd = np.isnan(cells) & ~(texts.str.casefold().isin(GAPS) if part.gaps else texts.eq("")).to_numpy()
    unseen = [(at & ~odd, what) for at, what in unseen]
    kind = "a time" if part.time else "a number"
    return [*unseen, (odd, f"not {kind}, such as {str(values[odd].iloc[0])!r}")] if odd.any() else unseen


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Convert the table to a data frame. Dates become times."""
    return table.to_pandas(date_as_object=False)


def numbers(values: Values) -> Floats:
    """Convert values to floating-point numbers (n,). Times become seconds in UTC; any other value becomes NaN."""
    if pd.api.types.is_datetime64_any_dtype(values):
        times = pd.to_datetime(values, utc=True).dt.tz_localize(None).to_numpy().astype("datetime64[us]")
        return np.where(values.isna(), np.nan, times.astype(np.int64) / 1e6)
    try:
        floats = pd.to_numeric(values.astype(object), errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    except TypeError:  # times of the day, which pandas cannot convert
        return np.full(len(values), np.nan)
    return np.where(np.isfinite(floats), floats, np.nan)


def strings(column: Values) -> Values:
    """Return the values as strings. A missing value becomes an empty string. Whole numbers have no decimal point."""
    present = column.dropna()
    if pd.api.types.is_float_dtype(column) and ((present % 1 == 0) & (present.abs() < 2**63)).all():
        column = column.astype("Int64")
    return column.astype(object).where(column.notna(), "").astype(str)

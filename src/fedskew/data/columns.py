"""Columns of the user's own tables as numbers: which preprocessing each column gets, and its cells in a data frame."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from fedskew.core.counting import count
from fedskew.core.errors import require
from fedskew.data.preprocessing import HASHES, TEXT_WIDTH, Cells, Column, Number, Tabular, Text, Words

Floats = NDArray[np.float64]
Values: TypeAlias = "pd.Series[Any]"
Fact: TypeAlias = tuple[str, Literal["mean", "share", "missing"], str, Floats]
"""A column, what its values (rows,) say, the word if they say which rows have it, and the values, NaN where unknown."""

CATEGORIES = 40
"""Up to this many different words a column is categorical, one-hot; above, it is text."""
MOSTLY_NUMBERS = 0.9
"""A text column is numeric from this share of numbers on; its other values are missing."""


@dataclass(frozen=True)
class Columns:
    """The preprocessing of the columns that are used, and notes on the columns."""

    preprocessing: Tabular
    notes: tuple[str, ...]

    def __call__(self, table: pa.Table) -> NDArray[np.float32]:
        """(rows, width) standardised numbers; missing ones are 0, the mean."""
        return self.preprocessing(cells_of(to_pandas(table), self.preprocessing))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The name of each input: a column of numbers, or "column = word"; the inputs of a text are numbered."""
        names: list[str] = []
        for part in self.preprocessing.columns:
            if isinstance(part, Number):
                names += [part.name, *([f"{part.name} is missing"] if part.marked else [])]
            elif isinstance(part, Words):
                names += [f"{part.name} = {word}" for word in part.known]
            else:
                names += [f"{part.name} ({number})" for number in range(TEXT_WIDTH)]
        return tuple(names)

    def features(self, table: pa.Table) -> Iterator[Fact]:
        """Each column's numbers, words (1 for a row that has it) and gaps (1), in their own units. Texts and times are left out."""
        frame = to_pandas(table)
        for part in self.preprocessing.columns:
            values = frame[part.name]
            if isinstance(part, Number):
                made = numbers(values)
                if not part.time:
                    yield part.name, "mean", "", made
                gaps = np.isnan(made)
            else:
                gaps = values.isna().to_numpy()
                for word in part.known if isinstance(part, Words) else ():
                    yield part.name, "share", word, np.where(gaps, np.nan, strings(values) == word)
            if gaps.any():
                yield part.name, "missing", "", gaps.astype(np.float64)

    def gaps(self, table: pa.Table) -> list[str]:
        """Notes on numbers that are missing in these rows, in columns where no fitted row had a missing number."""
        cells, notes = cells_of(to_pandas(table), self.preprocessing), []
        for part in self.preprocessing.columns:
            if isinstance(part, Number) and not part.marked:
                missing = int(np.isnan(part.raw(cells[part.name])).sum())
                if missing:
                    notes.append(f"column {part.name!r}: {missing} missing, not numbers or too large, set to the mean")
        return notes


def fit(table: pa.Table, where: str, target: str = "") -> Columns:
    """Choose and fit the preprocessing of each column. Raises `BadInput`, naming ``where``, if no column can be used."""
    frame = to_pandas(table)
    fitted = [(name, *fit_column(frame[name], table.schema.field(name).type)) for name in table.column_names]
    parts = tuple(part for _, part, _ in fitted if part)
    notes = tuple(f"column {name!r}: {note}" for name, _, note in fitted if note)
    require(
        bool(parts),
        f"{where}: no column besides label and client can be used: {'; '.join(notes) or 'there is none'}",
    )
    return Columns(Tabular(columns=parts, target=target), notes)


def cells_of(frame: pd.DataFrame, preprocessing: Tabular) -> dict[str, Cells]:
    """The cells of the columns that the preprocessing reads."""
    return {part.name: cells_for(part, frame[part.name]) for part in preprocessing.columns}


def cells_for(part: Column, values: Values) -> Cells:
    """A column's cells as its preprocessing reads them: words, numbers, or times as seconds."""
    if part.text:
        return strings(values).to_numpy(dtype=object)
    if isinstance(part, Number) and part.time and not pd.api.types.is_numeric_dtype(values):
        values = pd.to_datetime(values, errors="coerce", format="ISO8601")
    return numbers(values)


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The table as a data frame, with dates as times."""
    return table.to_pandas(date_as_object=False)


def fit_column(values: Values, kind: pa.DataType) -> tuple[Column | None, str]:
    """The preprocessing of a column, or None if it is left out, and a note for the user, or an empty string."""
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return None, f"left out, {kind} is neither number nor text"
    valid = values.dropna()
    if valid.empty:
        return None, "left out, it is empty"
    if valid.nunique() < 2 and len(valid) == len(values):
        return None, "left out, all values are the same"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        texts = valid.astype(str)
        if pd.to_numeric(texts, errors="coerce").notna().mean() < MOSTLY_NUMBERS:
            missing = len(values) - len(valid)
            part, note = fit_words(texts, missing > 0)
            gone = f"{count(missing, 'value')} missing, all zeros" if part and missing else ""
            return part, "; ".join(filter(None, (note, gone)))
    elif pa.types.is_integer(kind) and len(valid) == len(values) and (np.diff(valid.to_numpy()) == 1).all():
        return None, "left out, it numbers the rows"
    return fit_numbers(values)


def numbers(values: Values) -> Floats:
    """(n,) floating-point numbers, times as seconds; NaN for other values."""
    if pd.api.types.is_datetime64_any_dtype(values):
        seconds = values.dt.tz_localize(None).to_numpy().astype("datetime64[us]").astype(np.int64) / 1e6
        return np.where(values.isna(), np.nan, seconds)
    made = pd.to_numeric(values.astype(object), errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    return np.where(np.isfinite(made), made, np.nan)


def fit_numbers(values: Values) -> tuple[Column | None, str]:
    fitted = numbers(values)
    missing = int(np.isnan(fitted).sum())
    if missing == len(fitted):
        return None, "left out, it holds no finite number"
    # divide by a power of two, which changes no digit: squares of large numbers would overflow
    power = np.frexp(np.nanmax(np.abs(fitted)))[1]
    scaled = np.ldexp(fitted, -power)
    mean, deviation = np.ldexp(np.nanmean(scaled), power), np.ldexp(np.nanstd(scaled), power)
    part = Number(
        name=str(values.name),
        mean=float(mean),
        scale=float(deviation) or 1.0,
        low=float(np.nanmin(fitted)),
        high=float(np.nanmax(fitted)),
        marked=missing > 0,
        gaps=missing > 0,
        time=pd.api.types.is_datetime64_any_dtype(values),
    )
    return part, f"{missing} missing or not numbers, set to the mean and marked" if missing else ""


def fit_words(texts: Values, gaps: bool) -> tuple[Column | None, str]:
    known = sorted(texts.unique())
    if len(known) <= CATEGORIES:
        return Words(name=str(texts.name), known=tuple(known), gaps=gaps), ""
    if len(known) == len(texts) and not texts.str.contains(r"\s").any():
        return None, "left out, every value is a different single word"
    return fit_texts(texts), f"text, {len(known)} different values: hashed words in {TEXT_WIDTH} random directions"


def fit_texts(fitted: Values) -> Text:
    """Encode texts as hashed words, weighted by tf-idf of the fitted texts, in random directions; a missing text as zeros."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(n_features=HASHES, alternate_sign=False).transform(fitted)
    buckets, counts = np.unique(hashed.indices, return_counts=True)
    found = dict(zip(buckets.tolist(), counts.tolist(), strict=True))
    return Text(name=str(fitted.name), documents=len(fitted), counts=found)


def strings(column: Values) -> Values:
    """The values as strings, missing ones as empty strings; whole numbers without a decimal point."""
    if pd.api.types.is_float_dtype(column) and (column.dropna() % 1 == 0).all():
        column = column.astype("Int64")
    return column.astype(object).where(column.notna(), "").astype(str)

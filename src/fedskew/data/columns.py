"""Columns as numbers: numeric, categorical and text columns, fitted on some rows and applied to others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from fedskew.core.counting import count
from fedskew.core.errors import require

Floats = NDArray[np.float64]
Values: TypeAlias = "pd.Series[Any]"
Encoder: TypeAlias = Callable[[Values], Floats]
Fact: TypeAlias = tuple[str, Literal["mean", "share", "missing"], str, Floats]
"""A column, what its values (rows,) say, the word if they say which rows have it, and the values, NaN where unknown."""

CATEGORIES = 40
"""Up to this many different words a column is categorical, one-hot; above, it is text."""
MOSTLY_NUMBERS = 0.9
"""A text column is numeric from this share of numbers on; its other values are missing."""
HASHES, TEXT_WIDTH = 2**14, 32
"""Text: hash buckets of the words, which are weighted by tf-idf, and random directions to which they are projected."""


@dataclass(frozen=True)
class Columns:
    """The encoder of each column that is used, and notes on the columns."""

    encoders: tuple[tuple[str, Encoder], ...]
    notes: tuple[str, ...]

    def __call__(self, table: pa.Table) -> NDArray[np.float32]:
        """(rows, width) standardised numbers; missing ones are 0, the mean."""
        frame = to_pandas(table)
        return np.column_stack([encode(frame[name]) for name, encode in self.encoders]).astype(np.float32)

    def features(self, table: pa.Table) -> Iterator[Fact]:
        """Each column's numbers, words (1 for a row that has it) and gaps (1), in their own units. Texts and times are left out."""
        frame = to_pandas(table)
        for name, encode in self.encoders:
            values = frame[name]
            if isinstance(encode, Numbers):
                made = numbers(values)
                if not pd.api.types.is_datetime64_any_dtype(values):
                    yield name, "mean", "", made
                gaps = np.isnan(made)
            else:
                gaps = values.isna().to_numpy()
                texts = strings(values.dropna())
                for word in texts.unique() if texts.nunique() <= CATEGORIES else ():
                    yield name, "share", word, np.where(gaps, np.nan, strings(values) == word)
            if gaps.any():
                yield name, "missing", "", gaps.astype(np.float64)

    def gaps(self, table: pa.Table) -> list[str]:
        """Notes on numbers that are missing in these rows, in columns where no fitted row had a missing number."""
        frame, notes = to_pandas(table), []
        for name, encode in self.encoders:
            if isinstance(encode, Numbers) and not encode.marked:
                missing = int(np.isnan(encode.standardised(frame[name])).sum())
                if missing:
                    notes.append(f"column {name!r}: {missing} missing, not numbers or too large, set to the mean")
        return notes


def fit(table: pa.Table, where: str) -> Columns:
    """Choose and fit an encoder for each column. Raises `BadInput`, naming ``where``, if no column can be used."""
    frame = to_pandas(table)
    fitted = [(name, *fit_column(frame[name], table.schema.field(name).type)) for name in table.column_names]
    encoders = tuple((name, encode) for name, encode, _ in fitted if encode)
    notes = tuple(f"column {name!r}: {note}" for name, _, note in fitted if note)
    require(
        bool(encoders),
        f"{where}: no column besides label and client can be used: {'; '.join(notes) or 'there is none'}",
    )
    return Columns(encoders, notes)


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The table as a data frame, with dates as times."""
    return table.to_pandas(date_as_object=False)


def fit_column(values: Values, kind: pa.DataType) -> tuple[Encoder | None, str]:
    """The encoder of a column, or None if it is left out, and a note for the user, or an empty string."""
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
            encode, note = fit_words(texts)
            missing = len(values) - len(valid)
            gone = f"{count(missing, 'value')} missing, all zeros" if encode and missing else ""
            return encode, "; ".join(filter(None, (note, gone)))
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


@dataclass(frozen=True)
class Numbers:
    """Standardised numbers; if ``marked``, a second column holds 1 for missing ones."""

    mean: float
    deviation: float
    marked: bool

    def standardised(self, values: Values) -> Floats:
        """(n,) standardised numbers; NaN for missing ones, and for those that are then too large for float32."""
        with np.errstate(over="ignore"):
            made = (numbers(values) - self.mean) / self.deviation
        return np.where(np.abs(made) <= np.finfo(np.float32).max, made, np.nan)

    def __call__(self, values: Values) -> Floats:
        made = self.standardised(values)
        missing = np.isnan(made)
        made = np.where(missing, 0.0, made)
        return np.column_stack([made, missing]) if self.marked else made[:, None]


def fit_numbers(values: Values) -> tuple[Encoder | None, str]:
    fitted = numbers(values)
    missing = int(np.isnan(fitted).sum())
    if missing == len(fitted):
        return None, "left out, it holds no finite number"
    # divide by a power of two, which changes no digit: squares of large numbers would overflow
    power = np.frexp(np.nanmax(np.abs(fitted)))[1]
    scaled = np.ldexp(fitted, -power)
    mean, deviation = np.ldexp(np.nanmean(scaled), power), np.ldexp(np.nanstd(scaled), power)
    encode = Numbers(float(mean), float(deviation) or 1.0, missing > 0)
    return encode, f"{missing} missing or not numbers, set to the mean and marked" if missing else ""


def fit_words(texts: Values) -> tuple[Encoder | None, str]:
    known = sorted(texts.unique())
    if len(known) <= CATEGORIES:
        return lambda column: np.equal.outer(strings(column).to_numpy(), known).astype(float), ""
    if len(known) == len(texts) and not texts.str.contains(r"\s").any():
        return None, "left out, every value is a different single word"
    return fit_texts(texts), f"text, {len(known)} different values: hashed words in {TEXT_WIDTH} random directions"


def fit_texts(fitted: Values) -> Encoder:
    """Encode texts as hashed words, weighted by tf-idf of the fitted texts, in random directions; a missing text as zeros."""
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from sklearn.pipeline import make_pipeline
    from sklearn.random_projection import GaussianRandomProjection

    hashing = HashingVectorizer(n_features=HASHES, alternate_sign=False)
    steps = make_pipeline(hashing, TfidfTransformer(), GaussianRandomProjection(TEXT_WIDTH, random_state=0)).fit(fitted)
    return lambda column: np.asarray(steps.transform(strings(column)))


def strings(column: Values) -> Values:
    """The values as strings, missing ones as empty strings."""
    return column.astype(object).where(column.notna(), "").astype(str)

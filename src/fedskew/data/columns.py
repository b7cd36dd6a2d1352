"""Columns of any kind as numbers: numeric, categorical and text, fitted on some rows and applied to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from fedskew.core.counting import count
from fedskew.core.errors import require

Floats = NDArray[np.float64]

CATEGORIES = 40
"""Up to so many different words a column is categorical, one-hot; above it is text."""
MOSTLY_NUMBERS = 0.9
"""A column of text in which this share of the values are numbers is numeric; the other values count as missing."""
HASHES, TEXT_WIDTH = 2**14, 32
"""Text: words hashed to so many places, weighted by tf-idf, and projected to so many random directions."""


@dataclass(frozen=True)
class Columns:
    """How each column becomes numbers."""

    makers: tuple[tuple[str, Callable[[pd.Series[Any]], Floats]], ...]
    notes: tuple[str, ...]

    def __call__(self, table: pa.Table) -> NDArray[np.float32]:
        """(rows, width) standardised numbers, missing ones at the mean."""
        frame = framed(table)
        return np.column_stack([make(frame[name]) for name, make in self.makers]).astype(np.float32)

    def gaps(self, table: pa.Table) -> list[str]:
        """What a reader should know of other rows: numbers that are missing there only, where no column can mark them."""
        frame, found = framed(table), []
        for name, make in self.makers:
            if (
                isinstance(make, Numbers)
                and not make.marked
                and (missing := int(np.isnan(make.known(frame[name])).sum()))
            ):
                found.append(f"column {name!r}: {missing} missing, not numbers or too large, set to the mean")
        return found


def fit(table: pa.Table, where: str) -> Columns:
    """Look at the columns of some rows. Raises `BadInput`, naming ``where``, if none can be used."""
    frame = framed(table)
    makers, notes = [], []
    for name in table.column_names:
        make, note = column(frame[name], table.schema.field(name).type)
        if make:
            makers.append((name, make))
        if note:
            notes.append(f"column {name!r}: {note}")
    require(
        bool(makers), f"{where}: no column besides label and client can be used: {'; '.join(notes) or 'there is none'}"
    )
    return Columns(tuple(makers), tuple(notes))


def framed(table: pa.Table) -> pd.DataFrame:
    """As pandas has it, days as times."""
    return table.to_pandas(date_as_object=False)


def column(values: pd.Series[Any], kind: pa.DataType) -> tuple[Callable[[pd.Series[Any]], Floats] | None, str]:
    """What makes numbers of a column, or nothing, and what a reader should know."""
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return None, f"left out, {kind} is neither number nor text"
    there = values.dropna()
    if there.nunique() < 2 and len(there) == len(values):
        return None, "left out, all values are the same"
    if there.empty:
        return None, "left out, it is empty"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        share = float(np.mean(pd.to_numeric(there.astype(str), errors="coerce").notna()))
        if share < MOSTLY_NUMBERS:
            make, note = of_words(there.astype(str))
            missing = len(values) - len(there)
            gone = f"{count(missing, 'value')} missing, all zeros" if make and missing else ""
            return make, "; ".join(filter(None, (note, gone)))
    elif not pa.types.is_boolean(kind) and there.nunique() == len(values) > 1 and pa.types.is_integer(kind):
        ordered = np.diff(there.to_numpy())
        if (ordered == 1).all():
            return None, "left out, it numbers the rows"
    return of_numbers(values)


def numbers(values: pd.Series[Any]) -> Floats:
    """As floating-point numbers; times as seconds; what is none is NaN."""
    if pd.api.types.is_datetime64_any_dtype(values):
        seconds = values.dt.tz_localize(None).to_numpy().astype("datetime64[us]").astype(np.int64) / 1e6
        return np.where(values.isna(), np.nan, seconds)
    made = pd.to_numeric(values.astype(object), errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    return np.where(np.isfinite(made), made, np.nan)


@dataclass(frozen=True)
class Numbers:
    """Standardised numbers; with a column that marks the missing ones, if there were any among the fitted rows."""

    mean: float
    spread: float
    marked: bool

    def known(self, values: pd.Series[Any]) -> Floats:
        """Standardised; what is missing, no number, or then too large for float32, which no fitted one is, is NaN."""
        with np.errstate(over="ignore"):
            made = (numbers(values) - self.mean) / self.spread
        return np.where(np.abs(made) <= np.finfo(np.float32).max, made, np.nan)

    def __call__(self, values: pd.Series[Any]) -> Floats:
        made = self.known(values)
        gone = np.isnan(made)
        made = np.where(gone, 0.0, made)
        return np.column_stack([made, gone]) if self.marked else made[:, None]


def of_numbers(values: pd.Series[Any]) -> tuple[Callable[[pd.Series[Any]], Floats] | None, str]:
    fitted = numbers(values)
    missing = int(np.isnan(fitted).sum())
    if missing == len(fitted):
        return None, "left out, it holds no finite number"
    # by a power of two, which changes no digit: sums of squares of large numbers overflow
    power = np.frexp(np.nanmax(np.abs(fitted)))[1]
    scaled = np.ldexp(fitted, -power)
    mean, spread = np.ldexp(np.nanmean(scaled), power), np.ldexp(np.nanstd(scaled), power)
    make = Numbers(float(mean), float(spread) or 1.0, missing > 0)
    return make, f"{missing} missing or not numbers, set to the mean and marked" if missing else ""


def of_words(there: pd.Series[Any]) -> tuple[Callable[[pd.Series[Any]], Floats] | None, str]:
    known = sorted(there.unique())
    if len(known) <= CATEGORIES:
        return lambda column: np.equal.outer(
            column.astype(object).where(column.notna(), "").astype(str).to_numpy(), known
        ).astype(float), ""
    if len(known) == len(there) and not there.str.contains(r"\s").any():
        return None, "left out, every value is a different single word"
    return of_texts(there), f"text, {len(known)} different values: hashed words in {TEXT_WIDTH} random directions"


def of_texts(fitted: pd.Series[Any]) -> Callable[[pd.Series[Any]], Floats]:
    """Hashed words, weighted by their rarity among the fitted texts, in random directions; a missing text is zeros."""
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from sklearn.random_projection import GaussianRandomProjection

    hashing = HashingVectorizer(n_features=HASHES, alternate_sign=False)
    weights = TfidfTransformer().fit(hashing.transform(fitted))
    project = GaussianRandomProjection(TEXT_WIDTH, random_state=0).fit(weights.transform(hashing.transform(fitted[:2])))

    def make(column: pd.Series[Any]) -> Floats:
        texts = column.astype(object).where(column.notna(), "").astype(str)
        return np.asarray(project.transform(weights.transform(hashing.transform(texts))))

    return make

"""What sites count in their columns, and the one fitter: the preprocessing of all rows together, from these counts alone."""

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedskew.data.preprocessing import HASHES, SPELLINGS, Angle, Cells, Column, Floats, Number, Tabular, Text, Words

CATEGORIES = 40
"""A column with up to this many different words is categorical (one-hot). With more, it is text."""


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


def pooled(parts: Iterable[Moments]) -> Moments:
    """Return the moments of the numbers of all parts together (Chan, Golub and LeVeque 1983).

    One part keeps its bits. Another order or split changes the last digits: by less than 1e-12 of the largest number.
    """
    parts = [part for part in parts if part.rows]
    if len(parts) < 2:
        return parts[0] if parts else Moments()
    rows, means, deviations = np.array([(part.rows, part.mean, part.deviation) for part in parts]).T
    unit = unit_of(float(max(np.abs(means).max(), deviations.max())))
    shares, first = rows / rows.sum(), means[0] / unit
    steps = means / unit - first
    step = (shares * steps).sum()
    variance = (shares * ((deviations / unit) ** 2 + (steps - step) ** 2)).sum()
    mean, deviation = float(first + step) * unit, min(math.sqrt(variance) * unit, sys.float_info.max)
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    return Moments(rows=int(rows.sum()), mean=mean, deviation=deviation, low=low, high=high)


def unit_of(largest: float) -> float:
    """Return a power of two. Numbers up to ``largest``, divided by it, have squares that do not overflow; the division is exact."""
    return 2.0 ** (math.frexp(largest)[1] - 1)


class ColumnSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The summary of a column at one site.

    ``type`` is ``number``, ``time``, ``text``, or the name of a type that cannot be used. ``valid`` is the number of rows that are
    not missing. ``words`` counts each word, if there are at most `CATEGORIES` different ones; otherwise ``buckets`` counts the
    texts in each hash bucket. ``unique``: all texts are different single words, or all numbers are whole and
    different. ``whole``: all numbers are whole. ``numbered``: the column numbers the rows. ``spelling``: how the site's file
    spells its numbers or times, see `SPELLINGS`.
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
            and self.spelling in SPELLINGS
        ):
            raise ValueError("counts of no column")


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The columns of a site's table, in order."""

    columns: dict[str, ColumnSummary]


def buckets_of(texts: Mapping[str, int]) -> dict[int, int]:
    """Count the texts that have a word in each hash bucket. ``texts`` says how often each text occurs."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(n_features=HASHES, alternate_sign=False).transform(texts)
    occurrences = np.repeat(np.fromiter(texts.values(), dtype=np.int64, count=len(texts)), np.diff(hashed.indptr))
    counts = np.bincount(hashed.indices, weights=occurrences)
    return {int(at): int(counts[at]) for at in np.flatnonzero(counts)}


def fit(part: Column, sites: Sequence[ColumnSummary], inputs: Sequence[Moments] = ()) -> Column:
    """Fit a column to what the sites counted in it; one site gives the preprocessing of its own rows.

    ``inputs`` are the moments of each input, if words or angles are standardised. ``marked`` numbers get their second input only if
    some values are missing. Words without known ones get all words of the sites.
    """
    rows, valid = sum(site.rows for site in sites), sum(site.valid for site in sites)
    if isinstance(part, Number):
        numbers = pooled(site.numbers for site in sites)
        low, high = (numbers.low, numbers.high) if numbers.rows else (0.0, 0.0)
        gaps, scale = numbers.rows < rows, numbers.deviation or 1.0
        return replace(part, mean=numbers.mean, scale=scale, low=low, high=high, marked=part.marked and gaps, gaps=gaps)
    if isinstance(part, Text):
        counts = Counter[int]()
        for site in sites:
            counts.update(site.buckets or (buckets_of(site.words) if site.words else {}))
        return replace(part, documents=valid, counts=dict(sorted(counts.items())))
    means, scales = tuple(each.mean for each in inputs), tuple(each.deviation or 1.0 for each in inputs)
    if isinstance(part, Words):
        words = part.known or tuple(sorted({word for site in sites for word in site.words}))
        return replace(part, known=words, mean=means, scale=scales, gaps=valid < rows)
    return replace(part, mean=means, scale=scales, gaps=valid < rows)


def fitted(
    columns: Sequence[Number | Words | Angle],
    cells: Mapping[str, Cells],
    train: Cells | slice,
    target: str = "",
    one_hot: bool = True,
) -> tuple[Tabular, NDArray[np.float32]]:
    """Fit columns to the rows ``train``; return the preprocessing and the inputs (n, width) of all rows.

    With ``one_hot``, inputs of words stay 0 and 1; otherwise they are standardised.
    """
    raw = [part.raw(cells[part.name])[train] for part in columns]
    moments = input_moments(np.concatenate(raw, axis=1))
    parts: list[Column] = []
    for part, values in zip(columns, raw, strict=True):
        inputs = [moments.pop(0) for _ in range(values.shape[1])]
        site = ColumnSummary(type="number", rows=len(values), valid=inputs[0].rows, numbers=inputs[0])
        parts.append(fit(part, [site], () if one_hot and isinstance(part, Words) else inputs))
    tabular = Tabular(columns=tuple(parts), target=target)
    return tabular, tabular(cells)


def text_encoder(texts: Sequence[str]) -> Text:
    """Fit the preprocessing of texts."""
    site = ColumnSummary(type="text", rows=len(texts), valid=len(texts), buckets=buckets_of(Counter(texts)))
    encoder = fit(Text(name="text", documents=0, counts={}), [site])
    assert isinstance(encoder, Text)
    return encoder


def input_moments(raw: Floats) -> list[Moments]:
    """Return the moments of each input's known numbers. ``raw`` (rows, inputs) has NaN for missing ones."""
    facts = (f(raw, axis=0).tolist() for f in (np.nanmean, np.nanstd, np.nanmin, np.nanmax))
    return [
        Moments(rows=rows, mean=mean, deviation=deviation, low=low, high=high)
        for rows, mean, deviation, low, high in zip((~np.isnan(raw)).sum(0).tolist(), *facts, strict=True)
    ]

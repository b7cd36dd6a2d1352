"""The summary of a site's table: counts, sums and words. With summaries, sites agree on a preprocessing without pooling rows.

A node sends ``summary(table)``. The server calls `fedskew.data.schema.merged` with the summaries of all sites, and sends back the
`Tabular` in ``Columns.preprocessing``, with which each node turns its rows into inputs: ``Columns(preprocessing, ())(table)``.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa

from fedskew.data.columns import Values, numbers, to_pandas
from fedskew.data.exact import Moments, moments
from fedskew.data.preprocessing import HASHES

CATEGORIES = 40
"""Up to this many different words a column is categorical, one-hot; above, it is text."""
MOSTLY_NUMBERS = 0.9
"""A text column is numeric from this share of numbers on; its other values are missing."""


class ColumnSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column at one site.

    ``type`` is ``number``, ``time``, ``text``, or the name of a type that no preprocessing takes. ``valid`` rows are not missing.
    ``words`` counts each of at most `CATEGORIES` different words. Of more words, ``buckets`` counts the texts in each bucket of a
    hash. ``unique``: every text is a different single word. ``whole``: every number is a whole one. ``numbered``: the numbers are
    the rows' own.
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

    def __post_init__(self) -> None:
        """Refuse counts that no column gives, in a message of another machine."""
        counts = (*self.words.values(), *self.buckets.values())
        if not (
            0 <= self.numbers.rows <= self.valid <= self.rows
            and all(0 <= number <= self.valid for number in (self.different, *counts))
            and len(self.words) <= CATEGORIES
            and all(0 <= at < HASHES for at in self.buckets)
        ):
            raise ValueError("counts of no column")


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The columns of a site's table, in their order."""

    columns: dict[str, ColumnSummary]


def summary(table: pa.Table) -> Summary:
    """Summarise a table. The rows stay where they are."""
    frame = to_pandas(table)
    return Summary(columns={name: of_column(frame[name], table.schema.field(name).type) for name in table.column_names})


def of_column(values: Values, kind: pa.DataType) -> ColumnSummary:
    """Summarise a column of an Arrow type."""
    valid = values.dropna()
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return ColumnSummary(type=str(kind), rows=len(values), valid=len(valid))
    found = numbers(valid)
    known = moments(found[~np.isnan(found)])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return of_texts(valid.astype(str), len(values), known)
    counting = pa.types.is_integer(kind) and len(valid) == len(values)
    return ColumnSummary(
        type="time" if pd.api.types.is_datetime64_any_dtype(values) else "number",
        rows=len(values),
        valid=len(valid),
        numbers=known,
        whole=bool((np.mod(found[~np.isnan(found)], 1) == 0).all()),
        numbered=counting and bool((np.diff(found) == 1).all()),
    )


def of_texts(texts: Values, rows: int, known: Moments) -> ColumnSummary:
    """Summarise the texts of ``rows`` rows, without missing ones, that hold the numbers ``known``."""
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
    """The number of texts in each bucket of a hash of their words, from how often each text occurs."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(n_features=HASHES, alternate_sign=False).transform(texts)
    often = np.repeat(np.fromiter(texts.values(), dtype=np.int64, count=len(texts)), np.diff(hashed.indptr))
    counts = np.bincount(hashed.indices, weights=often)
    return {int(at): int(counts[at]) for at in np.flatnonzero(counts)}

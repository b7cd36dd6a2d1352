"""Columns of a diagnosis without pooling: moments and histograms of the sites, and how the sites differ in them."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedskew.data.preprocessing import Number, Tabular, Words
from fedskew.data.tables.columns import Columns
from fedskew.data.tables.summaries import ColumnSummary, Moments
from fedskew.measure.heterogeneity.columns import ClientMoments, Tested, of_numbers, of_shares

Floats = NDArray[np.float64]


def moments_of(parts: Sequence[ColumnSummary]) -> ClientMoments:
    """Return rows, mean, deviation, smallest and largest number of a column at each site, each (sites,)."""
    of_parts = [[getattr(part.numbers, name) for part in parts] for name in Moments.__struct_fields__]
    rows, mean, deviation, low, high = map(np.array, of_parts)
    return ClientMoments(rows, mean, deviation, low, high, np.array([part.whole for part in parts]))


def facts_of(preprocessing: Tabular) -> list[tuple[str, str, str]]:
    """Column, kind and word of each fact that sites add by class, in their order."""
    names: list[tuple[str, str, str]] = []
    for part in preprocessing.columns:
        names += [(part.name, "mean", ""), (part.name, "missing", "")]
        names += [(part.name, "share", word) for word in part.known] if isinstance(part, Words) else []
    return names


def in_columns(
    encode: Columns,
    columns: Mapping[str, Sequence[ColumnSummary]],
    moments: Mapping[str, ClientMoments],
    histograms: Mapping[str, tuple[Floats, Floats]],
    computed: Collection[str] = (),
) -> list[Tested]:
    """Compare the sites' columns: numbers, words and missing values. Those that are ``computed`` from rows have no unit."""
    found: list[Tested] = []
    for part in encode.preprocessing.columns:
        name, held = part.name, columns[part.name]
        rows = np.array([one.rows for one in held])
        valid = np.array([one.numbers.rows if isinstance(part, Number) else one.valid for one in held])
        if name in moments:
            counts, inner = histograms[name]
            found += of_numbers(
                name, "content" if name in computed else "mean", "", moments[name], counts.astype(np.int64), inner
            )
        for word in part.known if isinstance(part, Words) else ():
            found += of_shares(name, "share", word, valid, np.array([one.words.get(word, 0) for one in held]))
        found += of_shares(name, "missing", "", rows, rows - valid)
    return found

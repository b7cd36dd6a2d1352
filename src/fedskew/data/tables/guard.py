"""No number that leaves a site is about fewer than ``fewest`` rows: the site changes its table before it counts anything."""

import numpy as np
import pandas as pd
import pyarrow as pa
from msgspec.structs import replace

from fedskew.data.tables.columns import Values, numbers, to_pandas
from fedskew.data.tables.summaries import (
    CATEGORIES,
    ColumnSummary,
    Moments,
    Summary,
    is_text,
    of_column,
)


def guarded(table: pa.Table, fewest: int) -> tuple[pa.Table, list[str]]:
    """The table, and notes on what was changed.

    Words with fewer than ``fewest`` rows become missing, and so do fewer words than that between numbers. Of a column with fewer
    missing values than ``fewest``, the gaps become its mean, rounded if all its numbers are whole, or its most frequent word; with
    fewer values, it is left empty.
    """
    notes: list[str] = []
    frame = to_pandas(table)
    for at, field in enumerate(table.schema):
        kind = field.type
        if fewest < 2 or not countable(kind):
            continue
        text = is_text(kind)
        values = frame[field.name].astype(object) if text else finite(frame[field.name])
        rare = values.isna()
        if text and values.nunique() <= CATEGORIES:
            rare = values.map(values.value_counts()) < fewest
        elif text and (odd := values.notna() & np.isnan(numbers(values))).sum() < fewest:
            rare = odd
        changed = values.mask(rare) if text else values
        gaps = int(changed.isna().sum())
        if 0 < len(changed) - gaps < fewest:
            changed = changed.mask(changed.notna())
        elif 0 < gaps < fewest:
            known = changed.dropna()
            if text or pa.types.is_boolean(kind):
                usual = known.mode()[0]
            else:
                usual = known.mean()
                # codes must stay whole: they have no unit
                usual = round(usual) if known.dtype.kind in "iuf" and (known % 1 == 0).all() else usual
            changed = changed.astype(object if text else values.dtype).fillna(usual)
        if not changed.equals(frame[field.name].astype(object) if text else frame[field.name]):
            notes.append(f"column {field.name!r}: words and gaps of fewer than {fewest} rows are hidden")
            table = table.set_column(
                at, *with_marks(field, pa.Array.from_pandas(changed.map(str, na_action="ignore") if text else changed))
            )
    return table, notes


def with_marks(field: pa.Field, cells: pa.Array) -> tuple[pa.Field, pa.Array]:
    """Return the cells with their field of the schema, which keeps the marks of ``field``."""
    return field.with_type(cells.type), cells


def countable(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers, times, texts or nothing. Of others only the number of rows leaves."""
    known = (
        pa.types.is_null,
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        is_text,
    )
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind) or any(of(kind) for of in known)


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
            table = table.set_column(at, *with_marks(field, pa.Array.from_pandas(pd.to_numeric(values))))
    return table


def shared(table: pa.Table, fewest: int) -> tuple[Summary, list[str]]:
    """The summary that leaves a site for the preprocessing of a run, and notes on what it hides. With 1 it hides nothing."""
    held, notes = guarded(table, fewest)
    return guarded_summary(held, fewest), notes


def guarded_summary(table: pa.Table, fewest: int) -> Summary:
    """The summary of a guarded table: the range has ``fewest`` rows at or beyond each end, and texts as many in each bucket.

    The range of a column with fewer than twice as many numbers is its mean.
    """
    frame = to_pandas(table)
    made: dict[str, ColumnSummary] = {}
    for name in table.column_names:
        one = of_column(frame[name], table.schema.field(name))
        if fewest > 1 and not countable(table.schema.field(name).type):
            one = replace(one, valid=one.rows)
        if one.numbers.rows < fewest:
            one = replace(one, numbers=Moments())
        else:
            found = np.sort(numbers(frame[name]))
            low, high = found[fewest - 1], found[one.numbers.rows - fewest]
            if low > high:
                low = high = one.numbers.mean
            ends = {"low": float(low), "high": float(high)}
            one = replace(one, numbers=replace(one.numbers, **ends))
        made[name] = replace(one, buckets={at: n for at, n in one.buckets.items() if n >= fewest})
    return Summary(columns=made)

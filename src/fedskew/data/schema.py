"""Fit one preprocessing to the tables of several sites, from their summaries. A single table is the same with one site."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa

from fedskew.core.counting import count
from fedskew.core.errors import require
from fedskew.data.columns import Columns, Values
from fedskew.data.conflicts import check, doubts
from fedskew.data.exact import Moments, mean_and_deviation
from fedskew.data.preprocessing import TEXT_WIDTH, Column, Number, Tabular, Text, Words
from fedskew.data.summaries import CATEGORIES, MOSTLY_NUMBERS, ColumnSummary, Summary, buckets_of, of_texts, summary


def fit(table: pa.Table, where: str, target: str = "") -> Columns:
    """Choose and fit the preprocessing of each column of a table.

    Raises `BadInput`, which names ``where``, if no column can be used.
    """
    return merged({where: summary(table)}, target)


def merged(sites: Mapping[str, Summary], target: str = "") -> Columns:
    """Fit the preprocessing of all sites' rows. It is bit-identical to the preprocessing of one table with all rows.

    Two rules look at each site separately. A column is left out if it numbers the rows at every site, or if at every site all
    its texts are different single words. Raises `BadInput` if a column is missing at a site or has different types, and if no
    column can be used.
    """
    first, *_ = sites
    check(sites)
    fitted = [(name, *fit_column(name, [s.columns[name] for s in sites.values()])) for name in sites[first].columns]
    parts = tuple(part for _, part, _ in fitted if part)
    notes = tuple(f"column {name!r}: {note}" for name, _, note in fitted if note)
    require(
        bool(parts),
        f"{first}: no column besides label and client can be used: {'; '.join(notes) or 'there is none'}",
    )
    return Columns(Tabular(columns=parts, target=target), (*notes, *doubts(sites)))


def fit_column(name: str, parts: Sequence[ColumnSummary]) -> tuple[Column | None, str]:
    """Fit one column; return its preprocessing (None: left out) and a note for the user (may be empty)."""
    held = [part for part in parts if part.valid] or parts[:1]
    rows, valid = (sum(getattr(part, field) for part in parts) for field in ("rows", "valid"))
    known = sum(part.numbers.rows for part in parts)
    if held[0].type not in ("number", "time", "text"):
        return None, f"left out, {held[0].type} is neither number nor text"
    if not valid:
        return None, "left out, it is empty"
    if all(part.type == "text" for part in held) and known < MOSTLY_NUMBERS * valid:
        return fit_words(name, held, rows - valid)
    if all(part.numbered for part in held):
        return None, "left out, it numbers the rows"
    return fit_numbers(name, held, rows - known)


def fit_numbers(name: str, parts: Sequence[ColumnSummary], missing: int) -> tuple[Column | None, str]:
    found = [part.numbers for part in parts if part.numbers.rows]
    if not found:
        return None, "left out, it holds no finite number"
    mean, deviation = mean_and_deviation(found)
    if not deviation and not missing:
        return None, "left out, all values are the same"
    part = Number(
        name=name,
        mean=mean,
        scale=deviation or 1.0,
        low=min(part.low for part in found),
        high=max(part.high for part in found),
        marked=missing > 0,
        gaps=missing > 0,
        time=parts[0].type == "time",
    )
    return part, f"{missing} missing or not numbers, set to the mean and marked" if missing else ""


def fit_words(name: str, parts: Sequence[ColumnSummary], missing: int) -> tuple[Column | None, str]:
    often = Counter[str]()
    for part in parts:
        often.update(part.words)
    gone = f"{count(missing, 'value')} missing, all zeros" if missing else ""
    different = max(len(often), *(part.different for part in parts))
    if different <= CATEGORIES:
        if len(often) < 2 and not missing:
            return None, "left out, all values are the same"
        return Words(name=name, known=tuple(sorted(often)), gaps=missing > 0), gone
    if all(part.unique for part in parts):
        return None, "left out, every value is a different single word"
    least = "at least " if len(parts) > 1 and any(part.buckets for part in parts) else ""
    note = f"text, {least}{different} different values: hashed words in {TEXT_WIDTH} random directions"
    return fit_texts(name, parts), "; ".join(filter(None, (note, gone)))


def fit_texts(name: str, parts: Sequence[ColumnSummary]) -> Text:
    """Fit a column of texts, see `Text`."""
    counts = Counter[int]()
    for part in parts:
        counts.update(part.buckets or (buckets_of(part.words) if part.words else {}))
    return Text(name=name, documents=sum(part.valid for part in parts), counts=dict(sorted(counts.items())))


def encoder_of(texts: Values) -> Text:
    """Fit the preprocessing of these texts."""
    return fit_texts(str(texts.name), [of_texts(texts, len(texts), Moments())])

"""A preprocessing that sites agree on: merged from their summaries. Of one summary it is the preprocessing of a table."""

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
    """Choose and fit the preprocessing of each column. Raises `BadInput`, naming ``where``, if no column can be used."""
    return merged({where: summary(table)}, target)


def merged(sites: Mapping[str, Summary], target: str = "") -> Columns:
    """The preprocessing of all sites' rows. It equals the preprocessing of one table of these rows to the last bit.

    Two rules look at each site alone: columns that number a site's rows, and columns in which all texts of a site are different
    single words, are left out if they are so at every site. Raises `BadInput` for columns that are missing at a site or of
    different types, and if no column can be used.
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
    """The preprocessing of a column, or None if it is left out, and a note for the user, or an empty string."""
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
    """Encode texts as hashed words, weighted by tf-idf of the fitted texts, in random directions; a missing text as zeros."""
    counts = Counter[int]()
    for part in parts:
        counts.update(part.buckets or buckets_of(part.words))
    return Text(name=name, documents=sum(part.valid for part in parts), counts=dict(sorted(counts.items())))


def encoder_of(texts: Values) -> Text:
    """The encoder of these texts."""
    return fit_texts(str(texts.name), [of_texts(texts, len(texts), Moments())])

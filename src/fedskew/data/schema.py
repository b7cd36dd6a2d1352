"""Fit one preprocessing to the tables of several sites, from their summaries. A single table is the same with one site."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from fedskew.core.counting import count
from fedskew.core.errors import require
from fedskew.data.columns import Columns, Values
from fedskew.data.conflicts import check, doubts
from fedskew.data.exact import Moments, mean_and_deviation
from fedskew.data.mapping import entry
from fedskew.data.preprocessing import TEXT_WIDTH, Column, Number, Tabular, Text, Words
from fedskew.data.spellings import MOSTLY_NUMBERS
from fedskew.data.summaries import CATEGORIES, ColumnSummary, Summary, buckets_of, of_texts, summary

Kind: TypeAlias = tuple[type[Number | Words | Text] | None, str]
"""The preprocessing of a column (None: left out), and a note for the user (may be empty)."""


MANY_IDS = 20
"""Minimum number of rows for the note that all whole numbers of a column are different."""


def fit(table: pa.Table, where: str, target: str = "") -> Columns:
    """Choose and fit the preprocessing of each column of a table.

    Raises `BadInput`, which names ``where``, if no column can be used.
    """
    return merged({where: summary(table)}, target)


def kinds_of(sites: Mapping[str, Summary]) -> dict[str, Kind]:
    """Decide what each column is, from the summaries of all rows. Raises `BadInput` if sites do not fit together.

    Two rules look at each site separately. A column is left out if it numbers the rows at every site, or if at every site all
    its texts are different single words.
    """
    first, *_ = sites
    check(sites)
    return {name: kind_of(name, [s.columns[name] for s in sites.values()]) for name in sites[first].columns}


def merged(sites: Mapping[str, Summary], target: str = "", kinds: Mapping[str, Kind] | None = None) -> Columns:
    """Fit the preprocessing of all sites' rows. It is bit-identical to the preprocessing of one table with all rows.

    ``kinds`` says what each column is, if these are not all rows of the sites' files. Raises `BadInput` if sites do not fit
    together, and if no column can be used.
    """
    first, *_ = sites
    fitted = []
    for name, (kind, note) in (kinds or kinds_of(sites)).items():
        part, gaps = fit_column(name, kind, [site.columns[name] for site in sites.values()])
        fitted.append((name, part, "; ".join(filter(None, (note, gaps)))))
    parts = tuple(part for _, part, _ in fitted if part)
    notes = tuple(f"column {name!r}: {note}" for name, _, note in fitted if note)
    require(
        bool(parts),
        f"{first}: no column besides label and client can be used: {'; '.join(notes) or 'there is none'}",
    )
    return Columns(Tabular(columns=parts, target=target), (*notes, *doubts(sites)))


def kind_of(name: str, parts: Sequence[ColumnSummary]) -> Kind:
    """Decide what a column is."""
    held = [part for part in parts if part.valid] or parts[:1]
    rows, valid = (sum(getattr(part, field) for part in parts) for field in ("rows", "valid"))
    known = [part.numbers for part in held if part.numbers.rows]
    if held[0].type not in ("number", "time", "text"):
        return None, f"left out, {held[0].type} is neither number nor text"
    if not valid:
        return None, "left out, it is empty"
    if all(part.type == "text" for part in held) and sum(part.rows for part in known) < MOSTLY_NUMBERS * valid:
        return kind_of_texts(held, rows - valid)
    if not known:
        return None, "left out, it holds no finite number"
    low, high = min(part.low for part in known), max(part.high for part in known)
    if all(part.numbered for part in held):
        return None, (
            f"left out, it numbers the rows; if it is a quantity, in NAME.columns.toml write {entry('units', name, 1)}"
        )
    if low == high and sum(part.rows for part in known) == rows:
        return None, "left out, all values are the same"
    if rows >= MANY_IDS and all(part.unique and part.type == "number" for part in held):
        return Number, "an input, though each row has another whole number; if it is an id, remove it from the file"
    return Number, ""


def kind_of_texts(parts: Sequence[ColumnSummary], missing: int) -> Kind:
    often = {word for part in parts for word in part.words}
    different = max(len(often), *(part.different for part in parts))
    if different <= CATEGORIES:
        return (Words, "") if len(often) > 1 or missing else (None, "left out, all values are the same")
    if all(part.unique for part in parts):
        return None, "left out, every value is a different single word"
    least = "at least " if len(parts) > 1 and any(part.buckets for part in parts) else ""
    return Text, f"text, {least}{different} different values: hashed words in {TEXT_WIDTH} random directions"


def fit_column(name: str, kind: type[Column] | None, parts: Sequence[ColumnSummary]) -> tuple[Column | None, str]:
    """Fit one column; return its preprocessing (None: left out) and a note on missing values (may be empty)."""
    rows, valid, known = (
        sum(counts) for counts in zip(*((p.rows, p.valid, p.numbers.rows) for p in parts), strict=True)
    )
    if kind is Number:
        return fit_numbers(name, parts, rows - known)
    gone = f"{count(rows - valid, 'value')} missing, all zeros" if valid < rows else ""
    if kind is Words:
        words = tuple(sorted({word for part in parts for word in part.words}))
        return Words(name=name, known=words, gaps=valid < rows), gone
    return (fit_texts(name, parts), gone) if kind is Text else (None, "")


def fit_numbers(name: str, parts: Sequence[ColumnSummary], missing: int) -> tuple[Number, str]:
    known = [part.numbers for part in parts if part.numbers.rows]
    mean, deviation = mean_and_deviation(known) if known else (0.0, 0.0)
    part = Number(
        name=name,
        mean=mean,
        scale=deviation or 1.0,
        low=min((part.low for part in known), default=0.0),
        high=max((part.high for part in known), default=0.0),
        marked=missing > 0,
        gaps=missing > 0,
        time=any(part.type == "time" for part in parts),
        spelling=spellings.pop() if len(spellings := {part.spelling for part in parts} - {""}) == 1 else "",
    )
    return part, f"{missing} missing or not numbers, set to the mean and marked" if missing else ""


def fit_texts(name: str, parts: Sequence[ColumnSummary]) -> Text:
    """Fit a column of texts, see `Text`."""
    counts = Counter[int]()
    for part in parts:
        counts.update(part.buckets or (buckets_of(part.words) if part.words else {}))
    return Text(name=name, documents=sum(part.valid for part in parts), counts=dict(sorted(counts.items())))


def encoder_of(texts: Values) -> Text:
    """Fit the preprocessing of these texts."""
    return fit_texts(str(texts.name), [of_texts(texts, len(texts), Moments())])

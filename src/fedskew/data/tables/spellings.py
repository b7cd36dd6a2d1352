"""How a column of a file spells its numbers and times. All cells of the file decide, and become plain numbers and ISO 8601.

A spelling is the decimal sign, "." or ",", or the format of a time, such as ``%d.%m.%Y``. It is empty for
plain cells and for texts.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa

from fedskew.data.tables.mapping import entry, key

GAPS = frozenset(("", *"? - -- --- . .. * #n/a n/a na nan <na> n.a. k.a. null nil none unknown missing".split()))  # noqa: SIM905
"""Cells in small letters that are missing values between numbers or times."""

MOSTLY_NUMBERS = 0.9
"""If at least this share of a text column's values are numbers, it is numeric, and its other values are missing."""

SIGNS = {".": ",'’ \u00a0\u202f", ",": ".'’ \u00a0\u202f"}
"""The signs between thousands, by decimal sign."""
MONEY = r"(?:[$€£¥]|CHF|EUR|GBP|USD)"
NUMBERS = {
    sign: rf"([-+]?)\s?{MONEY}?\s?([-+]?)((?:[1-9]\d{{0,2}}(?:[{thousands}]\d{{3}})+|\d+)(?:[{sign}]\d*)?|[{sign}]\d+)"
    rf"([eE][-+]?\d+)?\s?(?:%|{MONEY})?"
    for sign, thousands in SIGNS.items()
}
"""A number, with currency or percent. The groups are two signs, digits and exponent."""

DAYS = (
    *(order.replace(" ", sign) for order in ("%d %m %Y", "%m %d %Y", "%d %m %y", "%m %d %y") for sign in "/-"),
    *("%d.%m.%Y", "%d.%m.%y", "%Y/%m/%d", "%Y.%m.%d", "%Y-%m"),
    *("%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
CLOCKS = ("%H:%M:%S", "%H:%M", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
TIMES = (*CLOCKS, *DAYS, *(f"{day} {clock}" for day in DAYS for clock in CLOCKS))

AMOUNT = (
    rf"[-+~<>=≤≥#]{{0,2}}\s?{MONEY}?\s?(?:\d{{1,3}}(?:[.,'’ ]\d{{3}})+|\d+)(?:[.,]\d+)?\s?[%°]?(?:\s?[^\W\d]{{1,3}})?"
)
LOOKS = rf"{AMOUNT}|\d{{1,2}}[./-]\d{{1,2}}[./-](?:\d{{4}}|\d\d)\b.*|\d{{4}}[./-]\d{{1,2}}[./-]\d{{1,2}}\b.*|\d{{1,2}}:\d\d\b.*"
"""What looks like a number with a unit, a date or a time of the day."""

Cells: TypeAlias = "pd.Series[Any]"


def read(cells: Cells, spelling: str) -> Cells:
    """Return plain numbers and times for cells without spaces around them, NaN for cells in another spelling.

    Times of the day become seconds.
    """
    if spelling in NUMBERS:
        parts = cells.str.extract(rf"^{NUMBERS[spelling]}$")
        digits = parts[2].str.translate(dict.fromkeys(map(ord, SIGNS[spelling]))).str.replace(",", ".")
        return parts[0] + parts[1] + digits + parts[3].fillna("")
    times = pd.to_datetime(cells, format=spelling, errors="coerce")
    if spelling in CLOCKS:
        seconds = (times - pd.Timestamp("1900-01-01")).dt.total_seconds()
        return seconds.map(repr, na_action="ignore").astype(object)
    return times.dt.strftime("%Y-%m-%dT%H:%M:%S.%f").astype(object)


def is_time(cell: str, form: str) -> bool:
    """Whether the cell is a time of this format. It is faster than `read` for a single cell."""
    try:
        return bool(datetime.strptime(cell, form))
    except ValueError:
        return False


def plain(cells: Cells, spelling: str) -> Cells:
    """Return plain numbers and times for cells of a column. Cells in another spelling stay; `GAPS` are missing."""
    cells = cells.str.strip()
    known = read(cells, spelling)
    return known.where(known.notna(), cells.mask(cells.str.casefold().isin(GAPS), None))


def in_plain(column: pa.ChunkedArray, spelling: str) -> pa.ChunkedArray:
    """Return the column (n,) of texts with plain numbers and times."""
    coded = column.combine_chunks().dictionary_encode()
    words = plain(pd.Series(coded.dictionary.to_pylist(), dtype=object), spelling)
    return pa.chunked_array([pa.array(words, pa.string(), from_pandas=True).take(coded.indices)])


CELLS, BEGINS = 100, rf"^(?:[A-Z][a-z]{{2,8}}\.? )?[-+~<>=≤≥#(]?\s?{MONEY}?\s?[-+]?[.,]?\d"
"""Number of first cells of a block, and how they begin if they may be numbers or times."""


@dataclass
class Tally:
    """What the cells of a column of texts look like. `add` takes the next rows."""

    rows: int = 0  # without missing values
    fits: Counter[str] = field(default_factory=Counter)  # rows by decimal sign
    times: tuple[str, ...] = TIMES  # formats that fit all cells so far
    looks: Counter[str] = field(default_factory=Counter)  # rows that look like numbers or times, by their letters
    shown: dict[str, str] = field(default_factory=dict)  # a cell that is not plain, by spelling; "look" and "odd" ones

    def add(self, column: pa.ChunkedArray) -> None:
        counted = column.drop_null().combine_chunks().value_counts()
        cells = pd.Series(counted.field("values").to_pylist(), dtype=object).str.strip()
        valid = ~cells.str.casefold().isin(GAPS)
        self.show("gap", cells[~valid])
        rows, cells = counted.field("counts").to_numpy(zero_copy_only=False)[valid], cells[valid]
        if not len(cells) or (self.rows > 1000 and not self.times and self.looks.total() < self.rows / 4):
            self.rows += int(rows.sum())
            return
        self.rows += int(rows.sum())
        for sign in NUMBERS:
            known = read(cells, sign)
            self.fits[sign] += int(rows[known.notna()].sum())
            self.show(sign, cells[known.notna() & (known != cells)])
        self.show("time", cells)
        self.times = tuple(form for form in self.times if is_time(str(cells.iloc[0]), form))
        self.times = tuple(form for form in self.times if read(cells, form).notna().all())
        if self.orders:
            first, second = (read(cells, form) for form in self.orders)
            self.show("order", cells[first != second])
        look = cells.str.fullmatch(LOOKS)
        for letters, number in zip(cells[look].str.replace(r"[\W\d_]", "", regex=True), rows[look], strict=True):
            self.looks[letters] += int(number)
        self.show("look", cells[look])
        self.show("odd", cells[~look])

    def show(self, what: str, cells: Cells) -> None:
        if len(cells):
            self.shown.setdefault(what, str(cells.iloc[0]))

    def only(self, sign: str) -> bool:
        """Whether the cells are numbers with this decimal sign, and not with the other one."""
        return self.mostly(sign) and not any(self.mostly(other) for other in NUMBERS if other != sign)

    def mostly(self, sign: str) -> bool:
        return self.rows > 0 and self.fits[sign] >= MOSTLY_NUMBERS * self.rows

    @property
    def orders(self) -> tuple[str, ...]:
        """Two formats with day and month in different order that fit all cells; empty if there are none."""
        return next(
            ((form, other) for form in self.times if (other := swapped(form)) in self.times and other != form), ()
        )


def swapped(form: str) -> str:
    """Return the format with day and month exchanged."""
    return re.sub("%[dm]", lambda part: "%m" if part[0] == "%d" else "%d", form)


def decide(tallies: Mapping[str, Tally], semicolons: bool) -> dict[str, str]:
    """Return the spelling of each column of a file. Cells such as 1,200 have the decimal sign of the file's other columns.

    Without other columns, it is a point, or a comma in a file with ``semicolons``.
    """
    signs = {sign for tally in tallies.values() for sign in NUMBERS if tally.only(sign)}
    usual = "," if signs == {","} or (semicolons and not signs) else "."
    found = {}
    for name, tally in tallies.items():
        fits = [sign for sign in NUMBERS if tally.mostly(sign)]
        times = () if tally.orders or not tally.rows else tally.times
        sign = usual if len(fits) > 1 else "".join(fits)
        found[name] = times[0] if times else sign if tally.shown.keys() & {sign, "gap"} else ""
    return found


def shown(cell: str, spelling: str) -> str:
    """Return the plain cell; of a date without time its day."""
    return str(plain(pd.Series([cell]), spelling)[0]).removesuffix("T00:00:00.000000").removesuffix(".000000")


def note(name: str, tally: Tally, spelling: str, is_text: bool) -> str:
    """Say how a column is read, with one of its cells and what to write instead; empty for plain cells."""
    cell = tally.shown.get("time" if spelling in TIMES else spelling or "look", "")
    if spelling and cell:
        if spelling in CLOCKS:
            return f"column {name!r}: {cell!r} is read as {float(shown(cell, spelling)):g} seconds of the day"
        cure = "write dates as 2020-01-31" if spelling in TIMES else "write numbers as 1200.5"
        return f"column {name!r}: {cell!r} is read as {shown(cell, spelling)}; if it is not, {cure}"
    if not is_text or spelling or max(tally.looks.values(), default=0) < tally.rows / 2:
        return ""
    if tally.orders:
        cell = tally.shown.get("order", cell)
        days = " or ".join(str(read(pd.Series([cell]), form)[0])[:10] for form in tally.orders)
        return f"column {name!r}: text, because {cell!r} may be {days}; write dates as 2020-01-31"
    odd = tally.shown.get("odd", "")
    gap = f"; if {odd!r} is a missing value, in NAME.columns.toml write {entry(f'words.{key(name)}', odd, '')}"
    return (
        f"column {name!r}: text, though most cells look like numbers or times, such as {cell!r}; write numbers as 1200.5 and "
        f"times as 2020-01-31T13:08:00{gap if odd else ''}"
    )

"""Map a site's table to the columns that the sites agreed on. The file ``rows.columns.toml`` beside ``rows.csv`` says how.

``sheet`` names the sheet of an Excel file. ``absent = ["ca"]`` names columns that the site does not have. ``[rename]`` maps the
site's names: ``cholesterol = "chol"``.
``[dates]`` has the format of a column's dates: ``visit = "%d/%m/%Y"``. ``[units]`` has factors: ``chol = 38.67`` multiplies the
numbers, below ``[units.hospital.bern]`` only in rows in which ``hospital`` is ``bern``. ``[words.sex]`` maps the site's words:
``m = "male"``. An empty word is a missing value: ``unknown = ""``. Spaces around words do not count.
"""

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.files import numbers_in, read_small
from fedskew.core.text import listed
from fedskew.data.preprocessing import CLOCKS, SIGNS, TIMES

T = TypeVar("T")


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of a site's TOML file. Names in ``dates``, ``units`` and ``words`` are agreed names."""

    sheet: str = ""
    absent: tuple[str, ...] = ()
    rename: dict[str, str] = {}
    dates: dict[str, str] = {}
    units: dict[str, float | dict[str, dict[str, float]]] = {}
    words: dict[str, dict[str, str]] = {}

    @property
    def expected(self) -> dict[str, list[str]]:
        """The words that some cells should have, by table of the file: ``words.sex``, ``units.hospital``."""
        rows = {f"units.{name}": [*values] for name, values in self.units.items() if isinstance(values, dict)}
        return rows | {f"words.{name}": [*words] for name, words in self.words.items()}

    def __call__(
        self,
        part: pa.Table,
        path: Path,
        seen: dict[str, set[str]],
        read: Callable[[str, pa.ChunkedArray], pa.ChunkedArray],
    ) -> pa.Table:
        """Return the table with the agreed columns. ``path`` is its file. Raises `BadInput` if a column to map is missing.

        The words in columns with mapped words are added to ``seen``. ``read(name, cells)`` turns mapped words into numbers.
        """
        where = written if (written := mapping_path(path)).is_file() else path
        for name in self.rename:
            if name not in part.column_names:
                raise BadInput(f"{where}: rename: no column {name!r}; {suggestion(name, part.column_names)}")
        names = [self.rename.get(name, name) for name in part.column_names]
        twice = [name for name in self.rename.values() if names.count(name) > 1]
        require(not twice, f"{where}: column {twice[:1]} would be there twice; rename the other one, too")
        there = [name for name in self.absent if name in names]
        require(not there, f"{where}: absent: {path.name} has a column {''.join(there[:1])!r}; leave it out of absent")
        part = part.rename_columns(names)
        for name in dict.fromkeys(self.absent):
            part = part.append_column(name, pa.nulls(len(part)))
        for name in (*self.dates, *self.units, *self.words):
            require(name in names, f"{where}: no column {name!r}; {suggestion(name, names)}")
        for name, words in self.words.items():
            cells = trimmed(part[name].cast(pa.string()))
            seen.setdefault(name, set()).update(cells.drop_null().unique().to_pylist())
            mapped = cells
            for word, agreed in words.items():
                other = agreed.strip() or pa.scalar(None, pa.string())
                mapped = pc.if_else(pc.equal(cells, word.strip()), other, mapped)
            part = replaced(part, name, mapped)
        for name, form in self.dates.items():
            part = replaced(part, name, dated(part[name], form, f"{where}: dates: column {name!r}"))
        part = pa.Table.from_arrays([read(name, part[name]) for name in part.column_names], names=part.column_names)
        for name, factor in self.units.items():
            if isinstance(factor, float):
                part = replaced(part, name, scaled(part[name], factor, f"{where}: units: column {name!r}"))
                continue
            cells = trimmed(part[name].cast(pa.string()))
            seen.setdefault(name, set()).update(cells.drop_null().unique().to_pylist())
            for value, factors in factor.items():
                here = pc.fill_null(pc.equal(cells, value), False)
                for column, number in factors.items():
                    require(column in names, f"{where}: no column {column!r}; {suggestion(column, names)}")
                    numbers = scaled(part[column], number, f"{where}: units: column {column!r}")
                    part = replaced(part, column, pc.if_else(here, numbers, part[column].cast(numbers.type)))
        return part

    def fitting(self, columns: Collection[str]) -> "Mapping":
        """Return the entries that apply to a table with these columns. New rows may lack some, such as the target's."""
        rename = {old: new for old, new in self.rename.items() if old in columns and new not in columns}
        names = {rename.get(name, name) for name in columns}

        def present(entries: dict[str, T]) -> dict[str, T]:
            return {name: entry for name, entry in entries.items() if name in names}

        units = {
            name: factor if isinstance(factor, float) else {value: present(of) for value, of in factor.items()}
            for name, factor in present(self.units).items()
        }
        absent = tuple(name for name in self.absent if name not in names)
        return replace(
            self, absent=absent, rename=rename, dates=present(self.dates), units=units, words=present(self.words)
        )

    @property
    def numbers(self) -> frozenset[str]:
        """The columns whose numbers are multiplied."""
        names = [name for name, factor in self.units.items() if isinstance(factor, float)]
        by_value = [factor for factor in self.units.values() if isinstance(factor, dict)]
        return frozenset([*names, *(name for values in by_value for changed in values.values() for name in changed)])

    @property
    def brief(self) -> str:
        """What it changes, for a line; empty if it changes nothing."""
        factors = {"": [name for name, factor in self.units.items() if isinstance(factor, float)]}
        for name, values in self.units.items():
            for value, columns in values.items() if isinstance(values, dict) else ():
                factors[f" where {name} is {value}"] = [*columns]
        texts = [f"units of {listed(columns)}{where}" for where, columns in factors.items() if columns]
        names: list[tuple[str, Iterable[str]]] = [("names", self.rename), ("dates", self.dates), ("words", self.words)]
        changed = [*names, ("absent columns", self.absent)]
        return "; ".join([*texts, *(f"{what} {listed([*columns])}" for what, columns in changed if columns)])


class Mappings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the files of training were mapped. `of` says what this means for new rows without a TOML file of their own."""

    files: dict[str, Mapping] = {}  # by the file's name without extension
    column: str = ""  # of the clients, if they are not the files
    clients: tuple[str, ...] = ()

    @property
    def brief(self) -> str:
        """Three of the files with changed cells, and what was changed; empty if there are none."""
        changed = [f"{name} ({brief})" for name, mapping in self.files.items() if (brief := mapping.brief)]
        return listed([*changed[:3], *[f"{len(changed) - 3} more"] * (len(changed) > 3)])

    def of(self, where: str, stem: str, columns: Collection[str], client: str = "") -> tuple[Mapping, str]:
        """Return the mapping of new rows with these columns, and one line on it; empty if there is nothing to say.

        It is the mapping of the file of the ``client``, or else of the file ``stem``, or else the one that all files have.
        """
        files = self.files
        if not self.brief:
            return Mapping(), ""
        same = next((name for name in (client, stem) if name in files), None)
        if same is None and all(mapping == next(iter(files.values())) for mapping in files.values()):
            same = next(iter(files), None)
        if same is None:
            return Mapping(), (
                f"{where}: read as it is, but in training the cells of {self.brief} were changed; for rows of such a site write "
                f"its lines into the {mapping_path(Path(where)).name} of these rows"
            )
        mapping = files[same]
        by_value = mapping.units.get(self.column)
        if self.column not in columns and isinstance(by_value, dict):
            mapping = replace(mapping, units=mapping.units | by_value.get(client, {}))
        mapping = mapping.fitting(columns)
        units = files[same].units.items()
        lost = {name: of_values for name, of_values in units if name not in columns and isinstance(of_values, dict)}
        lines = [f"changed as {same} was for training: {mapping.brief}"] if mapping.brief else []
        if lost and not client:
            left_out = Mapping(units={**lost}).brief
            lines.append(f"no column {next(iter(lost))!r}, so these cells stay as they are: {left_out}")
        return mapping, f"{where}: {'; '.join(lines)}" * bool(lines)


def holds_strings(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def trimmed(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts without spaces around them. A text of spaces is missing. Other cells stay as they are."""
    if not holds_strings(cells.type):
        return cells
    text = pc.utf8_trim_whitespace(cells)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, cells.type), text)


def replaced(part: pa.Table, name: str, cells: pa.ChunkedArray) -> pa.Table:
    return part.set_column(part.column_names.index(name), name, cells)


def scaled(cells: pa.ChunkedArray, factor: float, where: str) -> pa.ChunkedArray:
    """Multiply the numbers by a factor. Missing numbers stay missing, and words among texts of numbers stay words."""
    kind = cells.type
    texts = pd.Series(cells.to_pylist() if holds_strings(kind) else [], dtype=object)
    numbers = pd.to_numeric(texts, errors="coerce")
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind) or numbers.count() > 0
    require(numeric, f"{where} holds {kind}, not numbers; correct its cells, or leave out its unit")
    if len(texts):
        return pa.chunked_array([pa.array((numbers * factor).map(repr).where(numbers.notna(), texts), kind)])
    return pc.multiply(cells.cast(pa.float64()), factor)


def dated(cells: pa.ChunkedArray, form: str, where: str) -> pa.ChunkedArray:
    """Return plain times for cells of this format. Raises `BadInput` for other cells. `GAPS` are missing."""
    texts = trimmed(cells.cast(pa.string()))
    words = pd.Series(texts.drop_null().unique().to_pylist(), dtype=object)
    odd = words[read(words, form).isna() & ~words.str.casefold().isin(GAPS)] if len(words) else words
    require(
        odd.empty, f"{where} holds {str(*odd[:1])!r}, which is no date as in {form!r}; correct the cell or the format"
    )
    return in_plain(texts, form)


def mapping_path(path: Path) -> Path:
    """Return ``rows.columns.toml`` for ``rows.csv`` and ``rows.csv.gz``."""
    return path.with_name(f"{path.name.partition('.')[0]}.columns.toml")


def mapping_of(path: Path) -> Mapping:
    """Read the mapping for a table's file. Without a TOML file, it changes nothing. Raises `BadInput` for a wrong file."""
    where = mapping_path(path)
    if not where.is_file():
        return Mapping()
    try:
        mapping = msgspec.toml.decode(read_small(where).removeprefix(codecs.BOM_UTF8), type=Mapping)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadInput(
            f"{where}: {error}; write absent, [rename], [units], [dates] and [words.COLUMN], each once, each entry on a line "
            'of its own below its table, and names other than letters, digits, _ and - in quotes: "Größe" = "size"'
        ) from None
    require(not mapping.sheet or path.suffix.lower() == ".xlsx", f"{where}: sheet is for Excel files; leave it out")
    for name, form in mapping.dates.items():
        if not re.fullmatch(DATE_FORMAT, form):
            raise BadInput(f"{where}: dates: {name!r} needs a format such as %d/%m/%Y or %Y-%m-%d %H:%M, got {form!r}")
    for name, factor in numbers_in(mapping.units):
        require(0 < factor < math.inf, f"{where}: units: {name!r} must have a finite factor above 0, got {factor:g}")
    return mapping


DATE_FORMAT = r"([^%]*%[YmydbBjHIMSfp])+[^%]*"
"""A format of dates, in the signs of Python's `strptime`. Zones are missing, because all times of a column are in one."""


def key(name: str) -> str:
    """Return the name as a TOML key, quoted if necessary."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else quoted(name)


def quoted(text: str) -> str:
    """Return the text as a TOML string."""
    return json.dumps(text, ensure_ascii=False)


def entry(table: str, name: str, value: str | float, *more: tuple[str, str]) -> str:
    """Say how to write an entry of a TOML table, or several, in one line."""
    pairs = ((name, value), *more)
    written = [f"{key(name)} = {quoted(part) if isinstance(part, str) else f'{part:.4g}'}" for name, part in pairs]
    return f"[{table}] and on the next line{'s' if more else ''} {' and '.join(written)}"


GAPS = frozenset(("", *"? - -- --- . .. * #n/a n/a na nan <na> n.a. k.a. null nil none unknown missing".split()))  # noqa: SIM905
"""Cells in small letters that are missing values between numbers or times."""

MOSTLY_NUMBERS = 0.9
"""If at least this share of a text column's values are numbers, it is numeric, and its other values are missing."""

MONEY = r"(?:[$€£¥]|CHF|EUR|GBP|USD)"
NUMBERS = {
    sign: rf"([-+]?)\s?{MONEY}?\s?([-+]?)((?:[1-9]\d{{0,2}}(?:[{thousands}]\d{{3}})+|\d+)(?:[{sign}]\d*)?|[{sign}]\d+)"
    rf"([eE][-+]?\d+)?\s?(?:%|{MONEY})?"
    for sign, thousands in SIGNS.items()
}
"""A number, with currency or percent. The groups are two signs, digits and exponent."""

AMOUNT = (
    rf"[-+~<>=≤≥#]{{0,2}}\s?{MONEY}?\s?(?:\d{{1,3}}(?:[.,'’ ]\d{{3}})+|\d+)(?:[.,]\d+)?\s?[%°]?(?:\s?[^\W\d]{{1,3}})?"
)
LOOKS = rf"{AMOUNT}|\d{{1,2}}[./-]\d{{1,2}}[./-](?:\d{{4}}|\d\d)\b.*|\d{{4}}[./-]\d{{1,2}}[./-]\d{{1,2}}\b.*|\d{{1,2}}:\d\d\b.*"
"""What looks like a number with a unit, a date or a time of the day."""

Values: TypeAlias = "pd.Series[Any]"


def read(cells: Values, spelling: str) -> Values:
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


def plain(cells: Values, spelling: str) -> Values:
    """Return plain numbers and times for cells of a column. Cells in another spelling stay; `GAPS` are missing."""
    cells = cells.str.strip()
    converted = read(cells, spelling)
    return converted.where(converted.notna(), cells.mask(cells.str.casefold().isin(GAPS), None))


def in_plain(column: pa.ChunkedArray, spelling: str) -> pa.ChunkedArray:
    """Return the column (n,) of texts with plain numbers and times."""
    coded = column.combine_chunks().dictionary_encode()
    words = plain(pd.Series(coded.dictionary.to_pylist(), dtype=object), spelling)
    return pa.chunked_array([pa.array(words, pa.string(), from_pandas=True).take(coded.indices)])


CELLS, BEGINS = 100, rf"^(?:[A-Z][a-z]{{2,8}}\.? )?[-+~<>=≤≥#(]?\s?{MONEY}?\s?[-+]?[.,]?\d"
"""Number of first cells of a block, and how they begin if they may be numbers or times."""


@dataclass
class CellTally:
    """What the cells of a column of texts look like. `add` takes the next rows."""

    rows: int = 0  # without missing values
    fits: Counter[str] = field(default_factory=Counter)  # rows by decimal sign
    times: tuple[str, ...] = TIMES  # formats that fit all cells so far
    looks: Counter[str] = field(default_factory=Counter)  # rows that look like numbers or times, by their letters
    shown: dict[str, str] = field(default_factory=dict)  # a cell that is not plain, by spelling; "look", "odd", "not ."

    def add(self, column: pa.ChunkedArray) -> None:
        counted = column.drop_null().combine_chunks().value_counts()
        cells = pd.Series(counted.field("values").to_pylist(), dtype=object).str.strip()
        valid = ~cells.str.casefold().isin(GAPS)
        self.show("gap", cells[~valid])
        rows, cells = counted.field("counts").to_numpy(zero_copy_only=False)[valid], cells[valid]
        before, self.rows = self.rows, self.rows + int(rows.sum())
        if not len(cells) or (before > 1000 and not self.times and self.looks.total() < before / 4):
            return
        for sign in NUMBERS:
            converted = read(cells, sign)
            self.fits[sign] += int(rows[converted.notna()].sum())
            self.show(sign, cells[converted.notna() & (converted != cells)])
            self.show(f"not {sign}", cells[converted.isna()])
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
        shapes = cells[look].str.replace(r"\d+", "0", regex=True)
        self.show("other look", cells[look][shapes != re.sub(r"\d+", "0", self.shown.get("look", ""))])
        self.show("odd", cells[~look])

    def show(self, what: str, cells: Values) -> None:
        if len(cells):
            self.shown.setdefault(what, str(cells.iloc[0]))

    def only(self, sign: str) -> bool:
        """Whether the cells are numbers with this decimal sign, and fewer of them with the other one."""
        return self.mostly(sign) and all(self.fits[sign] > self.fits[other] for other in NUMBERS if other != sign)

    def mostly(self, sign: str) -> bool:
        return self.rows > 0 and self.fits[sign] >= MOSTLY_NUMBERS * self.rows

    @property
    def orders(self) -> tuple[str, ...]:
        """Two formats with day and month in different order that fit all cells; empty if there are none."""
        both = ((form, swapped(form)) for form in self.times)
        return next(((form, other) for form, other in both if other in self.times and other != form), ())


def swapped(form: str) -> str:
    """Return the format with day and month exchanged."""
    return re.sub("%[dm]", lambda part: "%m" if part[0] == "%d" else "%d", form)


def decide(tallies: dict[str, CellTally], semicolons: bool, agreed: dict[str, str]) -> dict[str, str]:
    """Return the spelling of each column of a file. Cells such as 1,200 have the decimal sign of the file's other columns.

    Without other columns, it is a point, or a comma in a file with ``semicolons``. Cells that fit the spelling ``agreed`` in
    training, too, have that one, unless the file has another one in columns that were spelt so.
    """
    signs = {name: sign for name, tally in tallies.items() for sign in NUMBERS if tally.only(sign)}
    usual = "," if {*signs.values()} == {","} or (semicolons and not signs) else "."
    spelling_of = {}
    for name, tally in tallies.items():
        before = agreed.get(name, "")
        others = {sign for other, sign in signs.items() if agreed.get(other) == before} - {before}
        sign = signs.get(name) or (before if before in NUMBERS and not others else usual)
        spelling_of[name] = sign if tally.shown.keys() & {sign, "gap"} else ""
        if tally.times and tally.rows and not tally.orders:
            spelling_of[name] = tally.times[0]
        elif before in TIMES or not any(map(tally.mostly, NUMBERS)):
            spelling_of[name] = before
    return spelling_of


def plainly_spelt(rows: pd.DataFrame, agreed: dict[str, str]) -> pd.DataFrame:
    """Return rows that come from no file with plain numbers and times in text columns that have another spelling in training."""
    texts, tallies = dict[str, Values](), dict[str, CellTally]()
    for name in agreed.keys() & {*rows.columns[~rows.columns.duplicated(keep=False)]}:
        if rows[name].dtype.kind not in "iufbM":
            texts[name] = rows[name].astype(object).where(rows[name].notna(), "").astype(str)
            tallies[name] = CellTally()
            tallies[name].add(pa.chunked_array([pa.array(texts[name], pa.string())]))
    spelling_of = decide(tallies, False, agreed)
    return rows.assign(**{name: plain(cells, spelling_of[name]) for name, cells in texts.items() if spelling_of[name]})


def note(name: str, tally: CellTally, spelling: str, is_text: bool) -> str:
    """Say how a column is read, with one of its cells and what to write instead; empty for plain cells."""
    cell = tally.shown.get("time" if spelling in TIMES else spelling or "look", "")
    if spelling and cell:
        value = str(plain(pd.Series([cell]), spelling)[0]).removesuffix("T00:00:00.000000").removesuffix(".000000")
        if value == cell:  # training rows were spelt in another way
            return ""
        if spelling in CLOCKS:
            return f"column {name!r}: {cell!r} is read as {float(value):g} seconds of the day"
        cure = "write dates as 2020-01-31" if spelling in TIMES else "write numbers as 1200.5"
        return f"column {name!r}: {cell!r} is read as {value}; if it is not, {cure}"
    if not is_text or spelling or max(tally.looks.values(), default=0) < tally.rows / 2:
        return ""
    if tally.orders:
        cell = tally.shown.get("order", cell)
        days = " or ".join(str(read(pd.Series([cell]), form)[0])[:10] for form in tally.orders)
        first, second = (entry("dates", name, form) for form in tally.orders)
        return f"column {name!r}: text, because {cell!r} may be {days}; in NAME.columns.toml write {first}, or {second}"
    odd, other = tally.shown.get("odd", ""), tally.shown.get("other look", "")
    gap = f"; if {odd!r} is a missing value, in NAME.columns.toml write {entry(f'words.{key(name)}', odd, '')}"
    if wrong := tally.shown.get("".join(f"not {sign}" for sign in NUMBERS if tally.only(sign))):
        return f"column {name!r}: {wrong!r} is no number, so it is a missing value; write numbers as 1200.5"
    such = f"{cell!r} and {other!r}" if other else repr(cell)
    return (
        f"column {name!r}: text, though most cells look like numbers or times, such as {such}; write all numbers as 1200.5, all "
        f"dates as 2020-01-31 or 2020-01-31T13:08:00{gap if odd else ''}"
    )

"""Read CSV, JSON lines, Parquet and Arrow files as a stream of small tables, and find stray quotes. Memory use does not grow."""

import csv
import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
from msgspec import structs

from fedskew.core.errors import DAMAGED, BadInput, require, suggestion
from fedskew.core.files import require_exists
from fedskew.data.find import LARGEST, opened
from fedskew.data.preprocessing import MISSING
from fedskew.data.tables import mapping

LONGEST = 4 << 20
"""Maximum number of characters in a cell, and of bytes in a line."""

INNER_LINES = 3
"""A cell probably contains rows if it has at least this many inner lines, each with as many delimiters as a row."""

NOTED = 100
"""A cell of the text column with more lines than this gets a note."""

ADVICE = "close the quote, or double it where it is part of the text"


def without_views(table: pa.Table) -> pa.Table:
    """Return the table with ordinary texts in place of Arrow's views of texts, for which PyArrow lacks functions."""

    def ordinary(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            return pa.dictionary(kind.index_type, ordinary(kind.value_type), kind.ordered)
        return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)

    return table.cast(pa.schema([field.with_type(ordinary(field.type)) for field in table.schema]))


def has_line_breaks(part: pa.Table) -> bool:
    """True if any text cell has a line break."""
    texts = (column for column in part.columns if pa.types.is_string(column.type))
    return any(pc.any(pc.match_substring(column, "\n")).as_py() for column in texts)


def ends_in_quotes(path: Path) -> bool:
    """True if the last line has an odd number of quotes, so that the last quote may be open."""
    with opened(path) as file:
        if path.suffix != ".gz":
            file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST))
        tail = b""
        while block := file.read(LONGEST):
            tail = (tail + block)[-LONGEST:]
    return tail.rstrip(b"\r\n").rpartition(b"\n")[2].count(b'"') % 2 == 1


def check_quotes(path: Path, delimiter: str, words: Collection[str], text: str = "", before: int = 0) -> list[str]:
    """Read the file strictly by RFC 4180, after ``before`` lines.

    Return notes on cells of the column ``text`` with more than `NOTED` lines.

    Raises `BadInput`, which names the line, for a quote that is never closed or that closes within a cell. Also raises it for a
    cell with line breaks, if the row has too few or too many cells, if the cell looks like rows, or if it is in a column of
    ``words`` other than ``text``.
    """
    limit, notes, line = csv.field_size_limit(LONGEST), [], 1
    try:
        with opened(path) as file:
            rows = csv.reader(decoded(file, path), delimiter=delimiter, strict=True)
            for _ in range(before):
                next(rows)
            header = [name.strip() for name in next(rows, [])]
            line = rows.line_num + 1
            for row in rows:
                lines = rows.line_num - line + 1
                if lines > 1:
                    problem = problem_of(row, header, delimiter, words, text)
                    require(
                        not problem,
                        f"{path}: line {line}: a quote opens and closes {lines - 1} lines later, {problem}; {ADVICE}",
                    )
                    if lines > NOTED:
                        notes.append(f"{path.name}: lines {line} to {rows.line_num} are one row with a quoted text")
                line = rows.line_num + 1
    except csv.Error as error:
        what = "is never closed" if "end of data" in str(error) else f"does not close before the next one: {error}"
        raise BadInput(f"{path}: line {line}: a quote opens that {what}; {ADVICE}") from None
    finally:
        csv.field_size_limit(limit)
    return notes


def problem_of(row: list[str], header: list[str], delimiter: str, words: Collection[str], text: str) -> str:
    """Say why a row over several lines must come from a stray quote; empty if it need not."""
    if len(row) != len(header):
        return f"in a row of {len(row)} cells instead of {len(header)}"
    for name, cell in zip(header, row, strict=True):
        inner = cell.splitlines()[1:-1]
        rows = len(inner) >= INNER_LINES and all(line.count(delimiter) == len(row) - 1 for line in inner)
        if name != text and (rows or (name in words and "\n" in cell.strip())):
            return f"in column {name!r}"
    return ""


def decoded(file: IO[bytes], path: Path) -> Iterator[str]:
    """Yield the lines as text. Bytes that are not UTF-8 become surrogates. Raises `BadInput` for a line that is too long."""
    while line := file.readline(LONGEST + 1):
        require(len(line) <= LONGEST, f"{path}: a line is longer than {LONGEST >> 20} MiB; is it another kind of file?")
        yield line.decode(errors="surrogateescape")


FORMATS = {
    **dict.fromkeys((".csv", ".csv.gz"), "csv"),
    **dict.fromkeys((".tsv", ".tsv.gz"), "tsv"),
    **dict.fromkeys((".jsonl", ".jsonl.gz", ".ndjson"), "JSON lines"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".xlsx": "Excel",
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
}
BLOCK = 4 << 20
"""Number of bytes of a text file that are read at a time. It also limits a line of a CSV file."""
COLUMN_BUFFER = 1 << 18
"""Number of bytes of a Parquet file that are read at a time for each column."""
ROWS = 50_000
"""Number of rows of a Parquet or Arrow file that are read at a time."""
LONGEST_LINE = 64 << 20
"""Maximum size of one JSON object in bytes. It must fit into memory."""
DEEPEST = 60
"""Maximum depth of nested objects and lists in a JSON line. The parser is recursive."""
DELIMITERS, FIRST_LINES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "|", " ": "spaces"}, 20
"""Delimiters of CSV files with their names, and the number of lines that decide between them."""
CELL_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
"""Types that are tried for a CSV column, in this order. If none fits, the column is text."""


@dataclass
class Reading:
    """One pass over files, which may have different formats, with notes on rows that cannot be read.

    Each site's TOML file maps its columns (`fedskew.data.tables.mapping`). Files without one are mapped as ``training`` says.
    """

    files: Sequence[Path]
    words: frozenset[str] = frozenset()  # CSV columns that stay text, so that 01 does not become 1
    text: str = ""  # the column in which cells may contain line breaks
    # how numbers and times are spelt, by column (fedskew.data.tables.mapping)
    spellings: dict[str, str] = field(default_factory=dict)
    missing: frozenset[str] = MISSING  # further cells that are missing values
    drop: frozenset[str] = frozenset()  # columns that are left out, by their agreed names
    training: mapping.Mappings = field(default_factory=mapping.Mappings)
    client: str = ""  # of all rows, if it is known
    raw: bool = False  # keep names and cells as the file has them: no mapping, no check of quotes, CSV cells stay text
    untyped: frozenset[str] = frozenset()  # CSV columns whose numbers and times stay text, in plain spelling
    # by CSV column: whether its cells became numbers or times (False) or stayed text (True), or both
    are_texts: dict[str, set[bool]] = field(default_factory=dict)
    malformed: int = 0  # lines of CSV files with too few or too many cells
    empty: list[str] = field(default_factory=list)  # names of files without rows
    notes: list[str] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)  # columns of ``drop`` that a file had
    unused: list[str] = field(default_factory=list)  # error messages: no cell is a word that a file's TOML file maps
    # how files with cells that are not plain spell numbers and times, by column
    spelt: dict[Path, dict[str, str]] = field(default_factory=dict)
    fraction: float = 0.0  # share of the bytes that is read so far

    def tables(self) -> Iterator[tuple[Path, pa.Table]]:
        """Yield (file, rows) in order, at most `ROWS` rows or `BLOCK` bytes at a time. Raises `BadInput`."""
        total = max(1, sum(path.stat().st_size for path in self.files))
        before, columns = 0, None
        for path in self.files:
            size, rows = path.stat().st_size, 0
            cells: FileCells | None = None
            try:
                for part, fraction in self.parts(path) if size else ():
                    if not self.raw:
                        part = with_plain_names(part, path)
                        cells = cells or FileCells(self, path, part.column_names)
                        part = cells.agreed(part)
                    columns = columns or set(part.column_names)
                    if set(part.column_names) != columns:
                        raise BadInput(self.differing(path, columns, set(part.column_names)))
                    rows += len(part)
                    self.fraction = (before + fraction * size) / total
                    if len(part):
                        yield path, part
            except UnicodeDecodeError:
                raise BadInput(
                    f"{path}: cannot be read as {format_of(path)}: line {first_bad_line(path)} is not UTF-8 text; "
                    "convert the file to UTF-8"
                ) from None
            except (OSError, EOFError, pa.ArrowException) as error:
                reason = " ".join(str(error).split())[:200]
                raise BadInput(f"{path}: cannot be read as {format_of(path)}: {reason}") from None
            if not rows:
                self.empty.append(path.name)
            elif cells:
                self.notes += headerless(path)
                cells.note_unused()
                cells.note_spellings()
            before += size

    def mapping_at(self, path: Path, columns: Sequence[str]) -> mapping.Mapping:
        """Return the mapping of the file's TOML file, or else what ``training`` says, with a note."""
        if mapping.mapping_path(path).is_file():
            return mapping.mapping_of(path)
        as_in_training, line = self.training.of(path.name, stem(path), columns, self.client)
        if line:
            self.notes.append(line)
        return as_in_training

    def common_spellings(self) -> dict[str, str]:
        """Return, by column, the special spelling on which the files agree. Files with plain cells do not count."""
        by_column: dict[str, set[str]] = {}
        for file in self.spelt.values():
            for name, spelling in file.items():
                by_column.setdefault(name, set()).update([spelling] if spelling else [])
        return self.spellings | {name: min(spellings) for name, spellings in by_column.items() if len(spellings) == 1}

    def differing(self, path: Path, columns: set[str], others: set[str]) -> str:
        """Say how the columns of a file differ from the first file's columns, and what to write."""
        differ = ", ".join(sorted(columns ^ others))[:200]
        start = f"{path}: its columns differ from {self.files[0].name}'s in {differ}; all files need the same ones; in "
        if not (lacks := sorted(columns - others)):
            absent = mapping.quoted(min(others - columns))
            return f"{start}{mapping.mapping_path(self.files[0]).name} write absent = [{absent}] if it has none"
        rename = mapping.entry("rename", min(others - columns, default="ITS-NAME"), lacks[0])
        return f"{start}{mapping.mapping_path(path).name} write {rename}; or absent = [{mapping.quoted(lacks[0])}] if it has none"

    def parts(self, path: Path) -> Iterator[tuple[pa.Table, float]]:
        """Yield tables, each with the share of the file that is read so far. All columns of CSV files are text."""
        kind = format_of(path)
        if kind == "parquet":
            # pre-buffering would read a whole row group at once, which may be the whole file; each column has a buffer
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=COLUMN_BUFFER)
            done = 0
            for batch in file.iter_batches(batch_size=ROWS):
                batch.validate(full=True)  # PyArrow does not check that text is UTF-8
                done += len(batch)
                yield pa.Table.from_batches([batch]), done / max(1, file.metadata.num_rows)
        elif kind == "arrow":
            with pa.memory_map(str(path)) as mapped:
                try:
                    file = pa.ipc.open_file(mapped)
                    batches = (file.get_batch(i) for i in range(file.num_record_batches))
                except pa.ArrowInvalid:
                    mapped.seek(0)
                    batches = iter(pa.ipc.open_stream(mapped))
                for batch in batches:
                    batch.validate(full=True)  # PyArrow does not check offsets and text
                    for lo in range(0, len(batch), ROWS):
                        part = without_views(pa.Table.from_batches([batch[lo : lo + ROWS]]))
                        yield part, mapped.tell() / max(1, mapped.size())
        elif kind == "Excel":
            yield excel_table(path, mapping.mapping_of(path).sheet), 1.0
        else:
            with pa.OSFile(str(path)) as raw:
                for part in json_lines(path, raw) if kind == "JSON lines" else self.csv(path, raw):
                    yield part, raw.tell() / max(1, raw.size())

    def csv(self, path: Path, raw: pa.NativeFile) -> Iterator[pa.Table]:
        """Yield the rows. Lines with too few or too many cells are skipped and counted in ``malformed``."""
        delimiter, header, before = first_line(path)
        suspect = False
        renamed = mapping.mapping_of(path).rename.items()
        words = self.words | {written for written, name in renamed if name in self.words}

        def skip(row: pacsv.InvalidRow) -> str:
            nonlocal suspect
            lines = 1 + row.text.count("\n")
            suspect |= lines > 1
            self.malformed += lines
            return "skip"

        try:
            reader = pacsv.open_csv(
                # PyArrow finds bytes that are not UTF-8 only if it converts between two encodings
                pa.transcoding_input_stream(unpacked(path, raw), "utf-8-sig", "utf-8"),
                pacsv.ReadOptions(block_size=BLOCK, skip_rows=before),
                pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip),
                pacsv.ConvertOptions(strings_can_be_null=not self.raw, column_types=dict.fromkeys(header, pa.string())),
            )
            for batch in reader:
                part = pa.Table.from_batches([batch])
                suspect |= has_line_breaks(part)
                yield part
        except pa.ArrowInvalid:
            # a stray quote may have made a cell longer than a block
            check_quotes(path, delimiter, words, self.text, before)
            raise
        if not self.raw and (suspect or ends_in_quotes(path)):
            self.notes += check_quotes(path, delimiter, words, self.text, before)


class FileCells:
    """The cells of one file of a reading: how they are read, and what the blocks so far have shown."""

    def __init__(self, reading: Reading, path: Path, columns: Sequence[str]) -> None:
        self.reading, self.path, self.mapping = reading, path, reading.mapping_at(path, columns)
        self.present: dict[str, set[str]] = {}  # words of the columns whose words are mapped
        self.types: dict[str, pa.DataType] = {}  # of the columns in the previous block
        self.tallies: dict[str, mapping.CellTally] | None = None  # of all cells of the file, if some are not plain

    def agreed(self, part: pa.Table) -> pa.Table:
        """Return the table with the agreed columns and words, without spaces around words, except in the column ``text``.

        Texts become numbers or times if all are.
        """
        text, plain = self.reading.text, self.tallies is None
        cells = [part[name] if name == text != "" else mapping.trimmed(part[name]) for name in part.column_names]
        part = pa.Table.from_arrays(cells, names=part.column_names)
        agreed = self.mapping(part, self.path, self.present, self.typed)
        if plain and self.tallies is not None:
            # the cells of one column said how to read an earlier column
            agreed = self.mapping(part, self.path, self.present, self.typed)
        dropped = self.reading.drop.intersection(agreed.column_names)
        self.reading.dropped |= dropped
        return agreed.drop_columns(sorted(dropped))

    def typed(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a column's cells as numbers or times, if all texts are and the column does not hold words."""
        reading, before = self.reading, self.types.get(name, pa.string())
        if not mapping.holds_strings(column.type):  # a column without a cell may have the type of numbers
            return pa.nulls(len(column)) if column.null_count == len(column) else column
        if name == reading.text != "":
            return column
        missing = pa.array(sorted(reading.missing), column.type)
        column = pc.if_else(pc.is_in(column, missing), pa.scalar(None, column.type), column)
        if name in reading.words:
            return column
        cells = typed(column, before)
        maybe = mapping.holds_strings(cells.type) and may_be_spelt(cells)
        if self.tallies is None and (maybe or reading.spellings.get(name) in mapping.NUMBERS):
            self.tally()
        if spelling := self.spelling(name):
            cells = typed(mapping.in_plain(column, spelling), before)
        self.types[name] = cells.type
        if not pa.types.is_null(cells.type):
            reading.are_texts.setdefault(name, set()).add(mapping.holds_strings(cells.type))
        if name in reading.untyped:
            return mapping.in_plain(column, spelling) if spelling else column
        return cells

    def spelling(self, name: str) -> str:
        """Return how the file spells the numbers or times of a column."""
        return self.reading.spelt.get(self.path, self.reading.spellings).get(name, "")

    def tally(self) -> None:
        """Read the whole file to learn how it spells numbers and times."""
        tallies = self.tallies = dict[str, mapping.CellTally]()

        def add(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
            if mapping.holds_strings(column.type) and name not in {*self.reading.words, self.reading.text or None}:
                tallies.setdefault(name, mapping.CellTally()).add(column)
            return column

        for part, _ in Reading([self.path]).parts(self.path):
            structs.replace(self.mapping, units={})(with_plain_names(part, self.path), self.path, {}, add)
        semicolons = format_of(self.path) == "csv" and first_line(self.path)[0] == ";"
        self.reading.spelt[self.path] = mapping.decide(tallies, semicolons, self.reading.spellings)

    def note_spellings(self) -> None:
        """Note how specially spelt numbers and times are read, and which texts look like numbers or times."""
        for name, tally in (self.tallies or {}).items():
            is_text = mapping.holds_strings(self.types.get(name, pa.null()))
            line = mapping.note(name, tally, self.spelling(name), is_text)
            if line and name not in self.reading.drop:
                self.reading.notes.append(f"{self.path.name}: {line}")

    def note_unused(self) -> None:
        """Note words to map that the file does not hold."""
        where = mapping.mapping_path(self.path)
        for table, words in self.mapping.expected.items() if where.is_file() else ():
            present = self.present[table.partition(".")[2]]
            absent = [word for word in words if word.strip() not in present]
            for word in absent[:1]:
                near = suggestion(word, sorted(present)[:20])
                line = f"{where}: [{table}]: no cell of {self.path.name} is {word!r}; {near}"
                (self.reading.unused if absent == words else self.reading.notes).append(line)


def excel_table(path: Path, sheet: str) -> pa.Table:
    """Return the rows of a sheet; an empty name is the only sheet. Raises `BadInput` for other files and names."""
    try:
        with zipfile.ZipFile(path) as parts:
            unpacked_size = sum(part.file_size for part in parts.infolist())
        require(unpacked_size <= LARGEST, f"{path}: more than {LARGEST:,} bytes when unpacked; save the sheet as CSV")
        with pd.ExcelFile(path, engine="openpyxl") as book:
            names = list(map(str, book.sheet_names))
            where = f"{path}: its sheets are {', '.join(map(repr, names))}; in {mapping.mapping_path(path).name} write"
            sheet = sheet or (names[0] if len(names) == 1 else "")
            require(sheet in names, f"{where} sheet = {mapping.quoted(names[0])} in the first line")
            nulls = pacsv.ConvertOptions().null_values  # pandas has None, too, which is a word in CSV files
            names_of_columns = pd.read_excel(book, sheet, header=None, nrows=1, dtype=str).dropna(axis=1)
            check_names(names_of_columns.to_numpy().ravel(), path)  # pandas would number equal names
            frame = pd.read_excel(book, sheet, dtype=object, keep_default_na=False, na_values=nulls)
    except ImportError:
        raise BadInput(
            f"{path}: Excel files need openpyxl; pip install '.[excel]' in the clone, or save as CSV"
        ) from None
    except DAMAGED as error:
        raise pa.ArrowInvalid(str(error)) from None
    frame = frame.dropna(how="all").rename(columns=str).infer_objects()
    for name in (name for name in frame if frame[name].dtype == object):  # numbers and words
        frame[name] = frame[name].map(str, na_action="ignore")
    return pa.Table.from_pandas(frame, preserve_index=False)


def typed(column: pa.ChunkedArray, before: pa.DataType) -> pa.ChunkedArray:
    """Convert texts to the first of `CELL_TYPES` that fits all of them; leave others unchanged.

    If the previous block was floating point (``before``), this type is tried first.
    """
    if column.null_count == len(column):
        return pa.nulls(len(column))
    for kind in (pa.float64(), *CELL_TYPES) if before == pa.float64() else CELL_TYPES:
        with suppress(pa.ArrowInvalid):
            column[:10].cast(kind)  # try a few cells first, because a failing cast takes 20 times as long
            return column.cast(kind)
    return column


def may_be_spelt(column: pa.ChunkedArray) -> bool:
    """Whether a quarter of the first texts begin like numbers, so that the file may spell numbers or times in its own way."""
    cells = column.drop_null()[: mapping.CELLS].cast(pa.string())
    return 4 * (pc.sum(pc.match_substring_regex(cells, mapping.BEGINS)).as_py() or 0) >= len(cells) > 0


def first_line(path: Path) -> tuple[str, list[str], int]:
    """Return the delimiter and the column names of a CSV or TSV file, and the number of lines before the names.

    A first line ``sep=;`` names the delimiter. Otherwise it is tab in TSV files. In CSV files it is the one in `DELIMITERS` that
    splits the largest share of the first lines into as many cells as there are names; of equals, the one with the most names.
    Delimiters in quotes do not count.
    """
    with opened(path) as file:
        lines = [file.readline(BLOCK).decode("utf-8-sig", errors="replace") for _ in range(FIRST_LINES)]
    if "\0" in lines[0]:
        raise BadInput(f"{path}: cannot be read as csv: it is not text; name the file after its format, or convert it")
    written = re.fullmatch(r'"?sep=(.)"?\s*', lines[0])
    lines = [line for text in lines[bool(written) :] for line in re.split("[\r\n]+", text) if line]

    def cells(delimiter: str) -> list[list[str]]:
        with suppress(csv.Error):
            return list(csv.reader(lines, delimiter=delimiter)) or [[]]
        return [[]]

    def fit(delimiter: str) -> tuple[bool, float, int]:
        names, *rows = map(len, cells(delimiter))
        return names > 1, float(np.mean([names == width for width in rows] or [True])), names

    usual = "\t" if format_of(path) == "tsv" else max(DELIMITERS, key=fit)
    delimiter = written[1] if written else usual
    return delimiter, cells(delimiter)[0], int(bool(written))


def headerless(path: Path) -> list[str]:
    """Return a note if half of the names in a CSV or TSV file are numbers. Numbers with equal steps, such as years, are names."""
    names = first_line(path)[1] if format_of(path) in ("csv", "tsv") else []
    numbers = [float(name) for name in names if re.fullmatch(r"\s*[-+]?\d+(\.\d+)?\s*", name)]
    if not numbers or 2 * len(numbers) < len(names) or len({*np.diff(numbers)}) == 1:
        return []
    return [f"{path.name}: {as_names(names)}; is it a row?"]


def as_names(names: Sequence[str]) -> str:
    return f"its first line, {', '.join(names[:5])[:80]}, was taken as the names of columns"


def assumed(path: Path) -> str:
    """Say what was assumed of a CSV or TSV file; empty for others."""
    if format_of(path) not in ("csv", "tsv"):
        return ""
    delimiter, names, _ = first_line(path)
    return f"; {as_names(names)}, separated by {DELIMITERS.get(delimiter, delimiter)}"


def first_bad_line(path: Path) -> int:
    """Return the number of the first line that is not UTF-8, counted from 1."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.decode(errors="ignore").encode() != line:
                return number
    return 0


def unpacked(path: Path, raw: pa.NativeFile) -> pa.NativeFile:
    return pa.CompressedInputStream(raw, "gzip") if path.suffix == ".gz" else raw


def json_lines(path: Path, raw: pa.NativeFile) -> Iterator[pa.Table]:
    """Yield tables from a file with one JSON object in each line. A missing key becomes an empty cell."""
    columns: dict[str, pa.DataType] = {}
    done = 0
    for lines in whole_lines(unpacked(path, raw)):
        check_depth(lines, done)
        # read as one block, because a column must have the same type in all of it
        options = pajson.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        try:
            part = pajson.read_json(pa.BufferReader(lines), options)
        except pa.ArrowInvalid as error:
            what, at, row = str(error).rpartition(" in row ")
            where = f"{what}{at}{done + int(row) + 1}" if row.isdigit() else str(error)
            raise pa.ArrowInvalid(f"{where}; each line must be one object") from None
        done += len(part)
        new = [name for name in part.column_names if name not in columns]
        require(
            not (columns and new),
            f"{path}: the key {new[:1]} is missing in the first lines; give it to the first line too, as null",
        )
        columns = columns or {field.name: field.type for field in part.schema}
        for name in columns.keys() - set(part.column_names):
            part = part.append_column(name, pa.nulls(len(part), columns[name]))
        yield part


def whole_lines(stream: pa.NativeFile) -> Iterator[bytes]:
    """Yield a stream's bytes in blocks of about `BLOCK` bytes that end at line ends. Blank blocks are left out.

    Raises `pyarrow.ArrowInvalid` for a line of more than `LONGEST_LINE` bytes.
    """
    rest = b""
    while block := stream.read(BLOCK):
        lines, end, rest = (rest + block).rpartition(b"\n")
        if len(rest) > LONGEST_LINE:
            raise pa.ArrowInvalid(f"a line is longer than {LONGEST_LINE >> 20} MiB; each line must be one object")
        if lines.strip():
            yield lines + end
    if rest.strip():
        yield rest


def check_depth(lines: bytes, done: int) -> None:
    """Raise `pyarrow.ArrowInvalid` for JSON nested more than `DEEPEST` levels, which could overflow PyArrow's stack."""
    for line in lines.split(b"\n"):
        if line.count(b"[") + line.count(b"{") > DEEPEST:
            try:
                deep = depth(json.loads(line)) > DEEPEST
            except ValueError as error:
                raise pa.ArrowInvalid(f"after row {done}: {error}; each line must be one object") from None
            except RecursionError:
                deep = True
            if deep:
                raise pa.ArrowInvalid(f"after row {done}: more than {DEEPEST} nested objects or lists; write fewer")


def depth(value: object) -> int:
    """Return the depth of nested objects and lists; 0 for a plain value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def check_names(names: Iterable[str], path: Path) -> None:
    """Raise `BadInput` for equal names of columns."""
    twice = next((name for name, number in Counter(names).items() if number > 1), None)
    require(twice is None, f"{path}: two columns are called {twice!r}; the first line must give each its own name")


def with_plain_names(part: pa.Table, path: Path) -> pa.Table:
    """Strip spaces from column names, and drop index columns that pandas wrote. Raises `BadInput` for equal names."""
    check_names(names := [name.strip() for name in part.column_names], path)
    index = [name for name in names if re.fullmatch(r"__index_level_\d+__", name)]
    return part.rename_columns(names).drop_columns(index).replace_schema_metadata()


def format_of(path: Path) -> str:
    """Return ``csv``, ``tsv``, ``JSON lines``, ``parquet`` or ``arrow`` by the file's name; empty for any other file."""
    name = path.name.lower()
    return next((kind for end, kind in FORMATS.items() if name.endswith(end)), "")


TEST = ".test"
"""A folder's file ``NAME.test.csv`` has the test rows of the client in ``NAME.csv``."""


def stem(path: Path) -> str:
    """Return the file's name without its extension, and without `TEST`."""
    name = next((path.name[: -len(end)] for end in FORMATS if path.name.lower().endswith(end)), path.name)
    return name.removesuffix(TEST)


def files_of(paths: Sequence[Path], test: bool = False) -> list[Path]:
    """Return the files in ``paths``, and the data files directly in its folders. Raises `BadInput` if there are none.

    In a folder, training files have no `TEST` in their names. With ``test``, return the files that have it, or all if none has.
    """
    files: list[Path] = []
    for path in paths:
        require_exists(path)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and format_of(p))
            tests = [p for p in inside if f"{TEST}." in p.name]
            inside = (tests or inside) if test else [p for p in inside if p not in tests]
            require(bool(inside), f"{path}: no {', '.join(FORMATS)} file in this folder")
            files += inside
        else:
            if not format_of(path):
                raise BadInput(f"{path}: fedskew cannot read this kind of file; use one of {', '.join(FORMATS)}")
            files.append(path)
    return files

"""Find stray quotes in CSV files. After an unclosed quote, parsers read all rows up to the next quote as one cell."""

import csv
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from fedskew.core.errors import BadInput, require
from fedskew.data.find import opened

LONGEST = 4 << 20
"""Maximum number of characters in a cell, and of bytes in a line."""

ROWS = 3
"""A cell probably contains rows if it has at least this many inner lines, each with as many delimiters as a row."""

NOTED = 100
"""A cell of the text column with more lines than this gets a note."""

ADVICE = "close the quote, or double it where it is part of the text"


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
                        f"{path}: line {line}: a quote opens that closes {lines - 1} lines later, {problem}; {ADVICE}",
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
        rows = len(inner) >= ROWS and all(line.count(delimiter) == len(row) - 1 for line in inner)
        if name != text and (rows or (name in words and "\n" in cell.strip())):
            return f"in column {name!r}"
    return ""


def decoded(file: IO[bytes], path: Path) -> Iterator[str]:
    """Yield the lines as text. Bytes that are not UTF-8 become surrogates. Raises `BadInput` for a line that is too long."""
    while line := file.readline(LONGEST + 1):
        require(len(line) <= LONGEST, f"{path}: a line is longer than {LONGEST >> 20} MiB; is it another kind of file?")
        yield line.decode(errors="surrogateescape")

"""Stray quotes in CSV files: a quote that is not closed makes one cell of all rows up to the next one, which parsers accept."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from fedskew.core.errors import BadInput, require

LONGEST = 4 << 20
"""Characters of a cell at most."""

ROWS = 3
"""A cell whose inner lines are so many, each with as many cells as a row, holds rows; the column of texts may have such cells."""

NOTED = 100
"""Lines of a cell of the column of texts from which it is worth a note."""

ADVICE = "close the quote, or double it where it is part of the text"


def spans_lines(part: pa.Table) -> bool:
    """Whether a cell holds a line break."""
    return any(
        pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\n")).as_py() for column in part.columns
    )


def ends_in_quotes(path: Path) -> bool:
    """Whether the last line has an odd number of quotes: the last one may be open."""
    with opened(path) as file:
        if path.suffix != ".gz":
            file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST))
        tail = b""
        while block := file.read(LONGEST):
            tail = (tail + block)[-LONGEST:]
    return tail.rstrip(b"\r\n").rpartition(b"\n")[2].count(b'"') % 2 == 1


def check_quotes(path: Path, delimiter: str, words: Collection[str], text: str = "") -> list[str]:
    """Walk through the file as strictly as RFC 4180; notes on cells of the column ``text`` that span very many lines.

    Raises `BadInput` with the line for a quote that is never closed, or that closes within a cell; for a cell over several lines
    in one of the columns ``words``, or in a row with too few or too many cells; and for one that looks like rows of the file.
    """
    limit, notes, line = csv.field_size_limit(LONGEST), [], 1
    try:
        with opened(path) as file:
            rows = csv.reader(decoded(file, path), delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(rows, [])]
            line = rows.line_num + 1
            for row in rows:
                lines = rows.line_num - line + 1
                if lines > 1:
                    name = problem(row, header, delimiter, words, text)
                    if name is not None:
                        later = f"a quote opens that closes {lines - 1} lines later{name}"
                        raise BadInput(f"{path}: line {line}: {later}; {ADVICE}")
                    if lines > NOTED:
                        notes.append(f"{path.name}: lines {line} to {rows.line_num} are one row with a quoted text")
                line = rows.line_num + 1
    except csv.Error as error:
        what = "is never closed" if "end of data" in str(error) else f"does not close before the next one: {error}"
        raise BadInput(f"{path}: line {line}: a quote opens that {what}; {ADVICE}") from None
    finally:
        csv.field_size_limit(limit)
    return notes


def problem(row: list[str], header: list[str], delimiter: str, words: Collection[str], text: str) -> str | None:
    """Where a row over several lines is not what somebody meant, or nothing."""
    if len(row) != len(header):
        return f", in a row of {len(row)} cells instead of {len(header)}"
    for name, cell in zip(header, row, strict=True):
        inner = cell.splitlines()[1:-1]
        alike = len(inner) >= ROWS and name != text and all(line.count(delimiter) == len(row) - 1 for line in inner)
        if alike or (name in words and "\n" in cell.strip()):
            return f", in column {name!r}"
    return None


def decoded(file: IO[bytes], path: Path) -> Iterator[str]:
    """The lines as text; bytes that are not UTF-8 stay what they are. Raises `BadInput` for a line without an end."""
    while line := file.readline(LONGEST + 1):
        require(len(line) <= LONGEST, f"{path}: a line is longer than {LONGEST >> 20} MiB; is it another kind of file?")
        yield line.decode(errors="surrogateescape")


def opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]

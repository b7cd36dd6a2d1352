"""CSV, JSON lines, Parquet and Arrow files as a stream of small tables: memory does not grow with the files."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from fedskew.core.errors import BadInput, require
from fedskew.data.quotes import check_quotes, ends_in_quotes, opened, spans_lines

FORMATS = {
    **dict.fromkeys((".csv", ".csv.gz"), "csv"),
    **dict.fromkeys((".tsv", ".tsv.gz"), "tsv"),
    **dict.fromkeys((".jsonl", ".jsonl.gz", ".ndjson"), "JSON lines"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
}
BLOCK = 4 << 20
"""Bytes of a file of lines that are read at a time; a line of CSV may be as long."""
ROWS = 50_000
LONGEST_LINE = 64 << 20
"""Bytes of an object of JSON lines at most, all of which is in memory."""
DEEPEST = 60
"""Objects and lists within each other in JSON lines at most: the parser goes one call deeper for each, and Arrow's limit is 64."""


@dataclass
class Reading:
    """A walk over files, and what could not be read on the way."""

    files: Sequence[Path]
    texts: frozenset[str] = frozenset()  # columns of CSV files that are read as text: 01 is not 1
    prose: str = ""  # the one of them that may hold line breaks
    malformed: int = 0  # lines of CSV files with too few or too many cells
    empty: list[str] = field(default_factory=list)  # files without rows
    notes: list[str] = field(default_factory=list)  # what else a reader should know
    share: float = 0.0  # of the bytes that are read

    def tables(self) -> Iterator[tuple[Path, pa.Table]]:
        """The files' rows in order, a few ten thousand at a time."""
        total = max(1, sum(path.stat().st_size for path in self.files))
        before, columns = 0, None
        for path in self.files:
            size, rows = path.stat().st_size, 0
            try:
                for part, read in self.parts(path) if size else ():
                    part = plain(part, path)
                    columns = columns or set(part.column_names)
                    require(
                        set(part.column_names) == columns,
                        f"{path}: its columns differ from those of {self.files[0].name} in "
                        f"{', '.join(sorted(columns ^ set(part.column_names)))[:200]}; all files need the same ones",
                    )
                    rows += len(part)
                    self.share = (before + read * size) / total
                    if len(part):
                        yield path, part
            except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
                reason = " ".join(str(error).split())[:200]
                raise BadInput(f"{path}: cannot be read as {format_of(path)}: {reason}") from None
            if not rows:
                self.empty.append(path.name)
            before += size

    def parts(self, path: Path) -> Iterator[tuple[pa.Table, float]]:
        """Tables, and the share of the file that is read after each."""
        kind = format_of(path)
        if kind == "parquet":
            # page by page: otherwise a group of rows, which may be the whole file, is read at once
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=BLOCK)
            done = 0
            for batch in file.iter_batches(batch_size=ROWS):
                batch.validate(full=True)  # its reader takes a text's bytes as they are
                done += len(batch)
                yield pa.Table.from_batches([batch]), done / max(1, file.metadata.num_rows)
        elif kind == "arrow":
            with pa.memory_map(str(path)) as mapped:
                try:
                    batches = pa.ipc.open_file(mapped)
                    found = (batches.get_batch(i) for i in range(batches.num_record_batches))
                except pa.ArrowInvalid:
                    mapped.seek(0)
                    found = iter(pa.ipc.open_stream(mapped))
                for batch in found:
                    # this format's reader takes all bytes as they are
                    batch.validate(full=True)
                    for lo in range(0, len(batch), ROWS):
                        yield pa.Table.from_batches([batch[lo : lo + ROWS]]), mapped.tell() / max(1, mapped.size())
        elif kind == "JSON lines":
            yield from json_lines(path)
        else:
            yield from self.csv(path, "\t" if kind == "tsv" else delimiter_of(path))

    def csv(self, path: Path, delimiter: str) -> Iterator[tuple[pa.Table, float]]:
        """A column that ceases to be of the type that it began with is read as a wider one from there on."""
        types: dict[str, pa.DataType] = dict.fromkeys(self.texts, pa.string())
        done = 0
        self.suspect, checked = False, False
        while True:
            skip, self.malformed_here = done, 0
            try:
                for part, read in self.csv_of_types(path, delimiter, types):
                    if not checked and (self.suspect or spans_lines(part)):
                        self.notes += check_quotes(path, delimiter, self.texts - {self.prose}, self.prose)
                        checked = True
                    fresh = part.slice(min(skip, len(part)))
                    skip -= len(part) - len(fresh)
                    done += len(fresh)
                    yield fresh, read
                if not checked and (self.suspect or ends_in_quotes(path)):
                    self.notes += check_quotes(path, delimiter, self.texts - {self.prose}, self.prose)
                self.malformed += self.malformed_here
                return
            except pa.ArrowInvalid as error:
                found = re.search(r"In CSV column #(\d+):.*?CSV conversion error to (\w+)", str(error))
                if not found:
                    # a cell that is longer than what is read at a time may be one that swallowed rows
                    check_quotes(path, delimiter, self.texts - {self.prose}, self.prose)
                    raise
                require(
                    found[2] != "string",
                    f"{path}: cannot be read as csv: column {int(found[1]) + 1} is not UTF-8 text; convert the file to UTF-8",
                )
                name = self.header[int(found[1])]
                types[name] = pa.float64() if found[2] == "int64" else pa.string()

    def csv_of_types(
        self, path: Path, delimiter: str, types: dict[str, pa.DataType]
    ) -> Iterator[tuple[pa.Table, float]]:
        def skipped(row: Any) -> str:
            lines = row.text.count("\n")
            self.suspect |= lines > 0
            self.malformed_here += 1 + lines
            return "skip"

        with path.open("rb") as file:
            require(
                path.suffix == ".gz" or b"\0" not in file.read(4096),
                f"{path}: cannot be read as csv: it is no text in UTF-8; name the file after its format, or convert it",
            )
        with pa.OSFile(str(path)) as raw:
            stream = pa.CompressedInputStream(raw, "gzip") if path.suffix == ".gz" else raw
            with unheard(skipped):
                reader = pacsv.open_csv(
                    stream,
                    pacsv.ReadOptions(block_size=BLOCK, use_threads=True),
                    pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skipped),
                    pacsv.ConvertOptions(
                        strings_can_be_null=True, column_types=types, decimal_point="," if delimiter == ";" else "."
                    ),
                )
            self.header = reader.schema.names
            spaced = {name for name in self.header if name.strip() in self.texts} - types.keys()
            if spaced:
                types |= dict.fromkeys(spaced, pa.string())
                self.malformed_here = 0
                yield from self.csv_of_types(path, delimiter, types)
                return
            odd = [field.name for field in reader.schema if pa.types.is_binary(field.type)]
            require(
                not odd, f"{path}: cannot be read as csv: column {odd[:1]} is not UTF-8 text; convert the file to UTF-8"
            )
            while True:
                with unheard(skipped):
                    batch = next(reader, None)
                if batch is None:
                    return
                yield pa.Table.from_batches([batch]), raw.tell() / max(1, raw.size())


@contextmanager
def unheard(handler: object) -> Iterator[None]:
    """Without what PyArrow prints where it cannot hand a malformed line to its handler: it is no text, and its file is refused."""
    before = sys.unraisablehook

    def told(what: Any) -> None:
        if what.object is not handler:
            before(what)

    sys.unraisablehook = told
    try:
        yield
    finally:
        sys.unraisablehook = before


def json_lines(path: Path) -> Iterator[tuple[pa.Table, float]]:
    """Tables of one object a line, and the share of the file that is read; keys that a line lacks are empty cells."""
    columns: dict[str, pa.DataType] = {}
    done = 0
    with pa.OSFile(str(path)) as raw:
        for lines in whole_lines(pa.CompressedInputStream(raw, "gzip") if path.suffix == ".gz" else raw):
            if deepest(lines) > DEEPEST:
                raise pa.ArrowInvalid(
                    f"after row {done}: more than {DEEPEST} objects or lists within each other; write fewer"
                )
            # one block: a column must be of one type in what is parsed at a time
            options = pajson.ReadOptions(use_threads=False, block_size=len(lines) + 1)
            try:
                part = pajson.read_json(pa.BufferReader(lines), options)
            except pa.ArrowInvalid as error:
                what, at, row = str(error).rpartition(" in row ")
                where = f"{what}{at}{done + int(row) + 1}" if at and row.isdigit() else str(error)
                raise pa.ArrowInvalid(f"{where}; each line must be one object") from None
            done += len(part)
            new = [name for name in part.column_names if name not in columns]
            require(
                not (columns and new),
                f"{path}: the key {new[:1]} comes after lines without it only; give it to the first line too, as null",
            )
            columns = columns or {field.name: field.type for field in part.schema}
            for name in columns.keys() - set(part.column_names):
                part = part.append_column(name, pa.nulls(len(part), columns[name]))
            yield part, raw.tell() / max(1, raw.size())


def whole_lines(stream: pa.NativeFile) -> Iterator[bytes]:
    """A stream's bytes, about `BLOCK` at a time, cut at the ends of lines; blank ones alone are left out.

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


STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.S)

STEPS = np.zeros(256, dtype=np.int8)
"""How much deeper a byte of JSON leads."""
STEPS[list(b"[{")], STEPS[list(b"]}")] = 1, -1


def deepest(lines: bytes) -> int:
    """How many objects and lists of JSON lines are within each other at most, 0 for few; brackets in texts do not count."""
    many = [line for line in lines.split(b"\n") if line.count(b"[") + line.count(b"{") > DEEPEST]
    bare = (np.frombuffer(STRING.sub(b"", line), dtype=np.uint8) for line in many)
    return max((int(np.cumsum(STEPS[line], dtype=np.int64).max(initial=0)) for line in bare), default=0)


def plain(part: pa.Table, path: Path) -> pa.Table:
    """Without spaces around the columns' names, and without the row names that pandas writes."""
    names = [name.strip() for name in part.column_names]
    twice = next((name for name, number in Counter(names).items() if number > 1), None)
    require(twice is None, f"{path}: two columns are called {twice!r}; the first line must give each a name of its own")
    rows = [name for name in names if re.fullmatch(r"__index_level_\d+__", name)]
    return part.rename_columns(names).drop_columns(rows).replace_schema_metadata()


def delimiter_of(path: Path) -> str:
    """The comma, semicolon or tabulator, whichever the first line has most of."""
    with opened(path) as file:
        head = file.readline(BLOCK)
    return max(",;\t", key=lambda sign: head.count(sign.encode()))


def format_of(path: Path) -> str:
    """``csv``, ``tsv``, ``JSON lines``, ``parquet`` or ``arrow`` by the file's name, or nothing."""
    name = path.name.lower()
    return next((kind for end, kind in FORMATS.items() if name.endswith(end)), "")


def stem(path: Path) -> str:
    """The file's name without what says its format."""
    return next((path.name[: -len(end)] for end in FORMATS if path.name.lower().endswith(end)), path.name)


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The data files among the paths and directly in those that are folders; raises `BadInput` where there are none."""
    found: list[Path] = []
    for path in paths:
        require(path.exists(), f"{path}: no such file or folder{'' if path.is_absolute() else f' in {Path.cwd()}'}")
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and format_of(p))
            require(bool(inside), f"{path}: no {', '.join(FORMATS)} file in this folder")
            found += inside
        else:
            require(bool(format_of(path)), f"{path}: unknown kind of file; write {', '.join(FORMATS)}")
            found.append(path)
    return found

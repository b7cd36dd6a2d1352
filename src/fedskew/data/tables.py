"""A user's own tables: who holds which labels, counted over all rows, and a fair sample of the rows, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedskew.core.counting import count
from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.sampling import fair_sample, level
from fedskew.core.seeding import stream
from fedskew.data.files import Reading, files_of, stem

Ints = NDArray[np.int64]
Tell = Callable[[float, int], None]

MOST_LABELS = 1000
FEW_LABELS = 20
"""So many classes may have a row or two each."""
MOST_CELLS = 1_000_000
"""Clients x classes that can be compared: what is measured of them takes a few hundred bytes each, and 32 kB a client."""
MOST_BYTES = 1 << 29
"""Of rows in memory, unless their number is given; to make numbers of them takes about six times as much."""

MOST_VALUES, FEWEST_ROWS = 30_000_000, 1000
"""Rows x columns of a fair sample, and its rows at least: the time that measuring takes grows with both."""

ROW_BYTES = 24
"""Of a row's label, client and random number."""


@dataclass(frozen=True, eq=False)
class Survey:
    """All rows counted, some rows kept: ``table`` without label and client, whose numbers ``y`` and ``client`` are."""

    table: pa.Table
    y: Ints
    client: Ints
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    counts: Ints  # (clients, classes), of all rows
    notes: tuple[str, ...]  # what was dropped, and what else is worth saying
    bytes: int  # of all rows in memory, about


class Codes:
    """Numbers for words, in the order of their coming."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def __call__(self, words: pa.ChunkedArray) -> Ints:
        coded = words.combine_chunks().dictionary_encode()
        numbers = [self.of.setdefault(word, len(self.of)) for word in coded.dictionary.to_pylist()]
        return np.asarray(numbers, dtype=np.int64)[np.asarray(coded.indices)]


def survey(
    paths: Sequence[Path],
    label: str,
    client: str = "",
    *,
    text: str = "",
    most: int | None = None,
    fair: bool = True,
    seed: int = 0,
    tell: Tell = lambda share, rows: None,
) -> Survey:
    """Read tables; the clients are the values of the column ``client``, or else the files.

    At most ``most`` rows are kept: if ``fair``, of each client as many as of the others as far as it has them, else any rows; then
    a single file without a ``client`` is one client's, too. Rows without a label or a client, or without words in the column
    ``text`` where one is named, are dropped and counted. ``tell`` hears the share of the bytes that is read, and the rows. Raises
    `BadInput` for files and columns that are not there or cannot be read, for labels that are numbers rather than classes, and for
    more than fits into memory.
    """
    files = files_of(paths)
    require(
        not fair or bool(client) or len(files) > 1,
        f"{files[0]}: name the column that says whose a row is, --client COLUMN (or client=COLUMN), or give a folder with one "
        "file a client",
    )
    named: dict[str, Path] = {}
    for path in () if client else files:
        other = named.setdefault(stem(path), path)
        require(other == path, f"{other} and {path} would be one client, {stem(path)!r}; rename one of them")
    needed = list(dict.fromkeys(filter(None, (label, client, text))))
    reading, labels, owners = Reading(files, frozenset(needed), text), Codes(), Codes()
    counts = np.zeros((1, 1), dtype=np.int64)
    kept = Kept(most, fair, stream(seed, "diagnose", 1))
    dropped = dict.fromkeys(needed, 0)
    rows = read = 0
    for path, part in reading.tables():
        for name in needed:
            require(name in part.column_names, f"{path}: no column {name!r}; {suggestion(name, part.column_names)}")
        if most is not None and fair:
            kept.most = min(most, max(FEWEST_ROWS, MOST_VALUES // len(part.column_names)))
        rows, read = rows + len(part), read + part.nbytes + ROW_BYTES * len(part)
        require(
            most is not None or read <= MOST_BYTES,
            f"{path}: more than {MOST_BYTES / 1e9:.1f} GB of rows, which are loaded into memory; take some of them, rows="
            f"{round_down(rows)}, chosen at random",
        )
        if text:
            found = words(part, text, path)
            part = part.set_column(
                part.column_names.index(text),
                text,
                pc.if_else(pc.equal(found, ""), pa.scalar(None, pa.string()), found),
            )
        for name in needed:
            there = present(part[name])
            dropped[name] += len(part) - int(pc.sum(there).as_py() or 0)
            part = part.filter(there)
        if not len(part):
            continue
        y = labels(words(part, label, path))
        require(
            len(labels.of) <= MOST_LABELS,
            f"{path}: column {label!r} has more than {MOST_LABELS} different values; labels are classes: put numbers into bins",
        )
        owner = owners(words(part, client, path) if client else pa.chunked_array([[stem(path)] * len(part)]))
        require(
            most is None or not fair or len(owners.of) * len(labels.of) <= MOST_CELLS,
            f"{path}: {len(owners.of)} different clients and more in {client or 'the files'!r}, and {len(labels.of)} classes, "
            "are too many to compare; name the column that says whose a row is, or give the rows of fewer clients",
        )
        counts = grown(counts, (len(owners.of), len(labels.of)))
        pairs = np.bincount(owner * counts.shape[1] + y, minlength=counts.size)
        counts += pairs.reshape(counts.shape)
        kept.add(part.drop_columns([*{label, client or label}]), y, owner, counts.sum(1))
        tell(reading.share, rows)
    require(
        reading.malformed <= rows,
        f"{files[0]}: {reading.malformed} lines have too few or too many cells, {rows} rows the right number; is a quote not "
        "closed, or a text with commas not in quotes?",
    )
    require(rows > 0, f"{files[0]}: no rows" + (f" in {len(files)} files" if len(files) > 1 else ""))
    require(
        bool(labels.of),
        f"{files[0]}: no row has both a label ({label!r}) and a client" + (f", and {text!r}" if text else ""),
    )
    require(
        len(labels.of) <= max(FEW_LABELS, rows // 2),
        f"{files[0]}: column {label!r} has {len(labels.of)} different values in {rows} rows; labels are classes: put numbers into "
        "bins",
    )
    table, y, owner = kept.result(counts.sum(1))
    order, names = ranked(labels), ranked(owners)
    notes = [f"{n} of {count(rows, 'row')} dropped: no value in {name!r}" for name, n in dropped.items() if n]
    notes += reading.notes
    if reading.malformed:
        notes.append(f"{count(reading.malformed, 'line')} dropped: too few or too many cells")
    if reading.empty:
        notes.append(f"{count(len(reading.empty), 'file')} without rows: {', '.join(reading.empty[:5])}")
    if len(y) < counts.sum() and fair:
        notes.append(
            f"labels and sizes of all {counts.sum()} rows; inputs of {len(y)} random rows, at most "
            f"{level(counts.sum(1), len(y))} of a client"
        )
    elif len(y) < counts.sum():
        notes.append(f"{len(y)} of {counts.sum()} rows taken at random")
    return Survey(
        table=table,
        y=np.argsort(order)[y],
        client=np.argsort(names)[owner],
        classes=tuple(np.array([*labels.of], dtype=object)[order]),
        clients=tuple(np.array([*owners.of], dtype=object)[names]),
        counts=counts[:, order][names],
        notes=tuple(notes),
        bytes=read,
    )


def round_down(number: int) -> int:
    """To one digit and zeros."""
    unit = 10 ** (len(str(number)) - 1)
    return number // unit * unit


class Kept:
    """A random sample of a stream: each row has a random number, and a client, or all together, keep the smallest."""

    def __init__(self, most: int | None, fair: bool, rng: np.random.Generator) -> None:
        self.most, self.fair, self.rng = most, fair, rng
        self.tables: list[pa.Table] = []
        self.columns: list[NDArray[Any]] = []  # (3, rows): label, client, random number
        self.held = 0

    def add(self, table: pa.Table, y: Ints, owner: Ints, sizes: Ints) -> None:
        self.tables.append(table)
        self.columns.append(np.stack([y, owner, self.rng.random(len(y))]))
        self.held += len(y)
        if self.most is not None and self.held > 2 * self.most:
            self.prune(sizes)

    def prune(self, sizes: Ints) -> None:
        """Keep what would be kept if the stream ended here."""
        table, columns = joined(self.tables), np.concatenate(self.columns, axis=1)
        if self.most is not None:
            owner = columns[1].astype(np.int64)
            each = level(sizes, self.most) if self.fair else self.most
            rows = fair_sample(owner if self.fair else np.zeros_like(owner), columns[2], each)
            table, columns = table.take(pa.array(rows)), columns[:, rows]
        self.tables, self.columns, self.held = [table], [columns], columns.shape[1]

    def result(self, sizes: Ints) -> tuple[pa.Table, Ints, Ints]:
        self.prune(sizes)
        y, owner, _ = self.columns[0]
        return self.tables[0], y.astype(np.int64), owner.astype(np.int64)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """One table; a column that is of several types becomes a number if all are, else text."""
    if len(tables) == 1:
        return tables[0]
    names = tables[0].column_names
    fields = []
    for name in names:
        types = {t.schema.field(name).type for t in tables} - {pa.null()}
        numbers = all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in types)
        one = types.pop() if len(types) == 1 else pa.float64() if numbers and types else pa.string()
        fields.append(pa.field(name, one))
    schema = pa.schema(fields)
    return pa.concat_tables([t.select(names).cast(schema, safe=False) for t in tables]).combine_chunks()


def present(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which values are there; what is not a number is not."""
    there = pc.is_valid(column)
    if pa.types.is_floating(column.type):
        there = pc.and_(there, pc.invert(pc.fill_null(pc.is_nan(column), True)))
    return there


def words(part: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    """A column's values as text; 1.0 and 1 are the same, 01 and 1 are not."""
    column = part[name]
    if pa.types.is_floating(column.type) and bool(pc.all(pc.less(pc.abs(column), 2**53)).as_py()):
        whole = pc.equal(column, pc.round(column))
        column = column.cast(pa.int64()) if pc.all(whole).as_py() else column
    try:
        text = pc.utf8_trim_whitespace(column.cast(pa.string()))
    except pa.ArrowException:
        raise BadInput(f"{path}: column {name!r} holds {column.type}; give words or whole numbers") from None
    return pc.replace_substring_regex(text, r"^(-?\d+)\.0+$", r"\1")


def grown(counts: Ints, shape: tuple[int, int]) -> Ints:
    """The table with rows and columns of zeros added."""
    more = [max(0, want - have) for have, want in zip(counts.shape, shape, strict=True)]
    return np.pad(counts, [(0, more[0]), (0, more[1])]) if any(more) else counts


def ranked(codes: Codes) -> Ints:
    """Codes in the order of their words: numbers by value, then words by alphabet."""

    def place(word: str) -> tuple[int, float, str]:
        try:
            return 0, float(word), word
        except ValueError:
            return 1, 0.0, word

    return np.asarray([codes.of[word] for word in sorted(codes.of, key=place)], dtype=np.int64)

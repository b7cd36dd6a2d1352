"""What the columns of files hold, from all their rows: numbers of rows, words between numbers, and classes spelt in two ways."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.seeding import fair_sample, level, stream
from fedskew.core.text import count
from fedskew.data.preprocessing import Tabular
from fedskew.data.tables.columns import numbers
from fedskew.data.tables.files import Reading, assumed, files_of, stem
from fedskew.data.tables.guard import NUMBERED, SPELLING, RowSteps, countable, is_text, marks_of, number_rows
from fedskew.data.tables.mapping import MOSTLY_NUMBERS, Mappings, entry, holds_strings, mapping_path, replaced
from fedskew.data.tables.schema import NAMES_SITES, misfit, other_language, other_words, spelt_twice

CELLS = 100
"""Number of cells of a file that are kept for each column of words."""


@dataclass
class Kinds:
    """What the columns of each file hold: numbers, times, or some of their words."""

    held: dict[str, dict[str, list[str] | str]] = field(default_factory=dict)  # by column and file
    steps: dict[str, dict[str, RowSteps]] = field(default_factory=dict)  # by column and file

    def add(self, where: str, part: pa.Table) -> None:
        """Add rows of the file ``where``. A file holds words in a column if some of its rows do."""
        for column, kind in zip(part.columns, part.schema, strict=True):
            self.steps.setdefault(kind.name, {}).setdefault(where, RowSteps()).add(column)
            files = self.held.setdefault(kind.name, {})
            if isinstance(files.get(where), list):
                continue
            if is_text(kind.type):
                if cells := column.drop_null()[:CELLS].to_pylist():
                    files[where] = cells
            elif countable(kind.type) and not pa.types.is_null(kind.type):
                zoned = pa.types.is_timestamp(kind.type) and kind.type.tz
                files[where] = "time with a zone" if zoned else kind_of_cells(kind.type)

    def marked(self, table: pa.Table, spellings: Mapping[str, str]) -> pa.Table:
        """Return the table with marks in its schema: which columns number the rows of each file, and the spellings."""
        fields = []
        for kind in table.schema:
            numbered = number_rows(kind.name, self.steps.get(kind.name, {}).values())
            fields.append(kind.with_metadata({NUMBERED: str(int(numbered)), SPELLING: spellings.get(kind.name, "")}))
        return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))

    def notes(self) -> Iterator[str]:
        """Yield a line for each file whose cells do not fit the numbers or times of most other files with this column."""
        for name, files in self.held.items():
            kinds = Counter(kind for kind in files.values() if isinstance(kind, str))
            words = {where: kind for where, kind in files.items() if isinstance(kind, list)}
            if not kinds or len(words) > kinds.total():
                continue
            usual = kinds.most_common(1)[0][0]
            for where, kind in files.items():
                if isinstance(kind, str) and kind != usual and {kind, usual} <= {"time", "time with a zone"}:
                    yield f"column {name!r}: times with a zone in some files, without in others; those without are taken as UTC"
                    break
                if isinstance(kind, str) and kind != usual:
                    yield f"{misfit(where, name, (), usual, kind)}; until then they count as words"
            for where, cells in words.items():
                odd = odd_cells(cells, usual)
                if usual != "number" or len(odd) > (1 - MOSTLY_NUMBERS) * len(cells):
                    yield f"{misfit(where, name, odd, usual)}; until then they count as words or missing values"


def kind_of_cells(kind: pa.DataType) -> str:
    """Return ``time`` or ``number`` for the type of a countable column without texts."""
    return "time" if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else "number"


def odd_cells(cells: list[str], kind: str) -> list[str]:
    """Return the cells that are no numbers, or no times."""
    values = pd.Series(cells, dtype=object)
    converted = pd.to_datetime(values, errors="coerce", format="ISO8601") if kind == "time" else numbers(values)
    return [cell for cell, missing in zip(cells, np.asarray(pd.isna(converted)), strict=True) if missing]


Ints = NDArray[np.int64]

MOST_LABELS = 1000
FEW_LABELS = 20
"""If there are more classes than this, they must have two rows each on average."""
MOST_CELLS = 1_000_000
"""Maximum of clients x classes in a diagnosis. It needs a few hundred bytes for each, and 32 kB for each client."""
MOST_BYTES = 1 << 29
"""Maximum size of rows in bytes if their number is not limited. Turning them into numbers takes six times this memory."""

MOST_VALUES, FEWEST_ROWS = 30_000_000, 1000
"""A fair sample has at most `MOST_VALUES` rows x columns, but at least `FEWEST_ROWS` rows. Measuring time grows with both."""

ROW_BYTES = 24
"""Number of bytes for a row's label, client and random number."""

TARGET = "is the target and holds words, such as {held}; name a column of numbers, or write label={name} for classes"
EVENT = "says whether the event came and holds words, such as {held}; write 1 for an event and 0 for none"
BINS = "labels are classes: put numbers into bins, or predict them with target=COLUMN"


@dataclass(frozen=True)
class Roles:
    """The columns of a table that are no inputs. The clients are the values of the column ``client``; without it, the files.

    ``client_map`` is a CSV file with the client of each value of the column ``client``; without it, the values are the clients.
    Columns in ``drop`` are left out. If ``numeric``, labels are numbers to predict. With ``event``, a column of 0 and 1, the labels
    are times. ``text`` is the column of texts, if rows are texts. With ``once``, only the first row of each ``person`` at a client
    counts. ``written`` is a column of the table that stays text.
    """

    label: str
    client: str = ""
    client_map: str = ""
    drop: tuple[str, ...] = ()
    text: str = ""
    event: str = ""
    person: str = ""
    written: str = ""
    numeric: bool = False
    once: bool = False

    @property
    def needed(self) -> list[str]:
        """The columns in which a row must have a value."""
        return list(dict.fromkeys(filter(None, (self.label, self.client, self.text, self.event, self.person))))

    def as_written(self, preprocessing: Tabular | None) -> frozenset[str]:
        """The columns that stay text, so that 01 does not become 1. ``preprocessing`` reads the others."""
        numbers = {self.event, self.label if self.numeric else ""}
        return frozenset({*self.needed, self.written, *(preprocessing.texts if preprocessing else ())} - numbers)


@dataclass(frozen=True, eq=False)
class Survey:
    """Counts over all rows, and a sample of rows: ``y`` has their labels, ``client`` their clients, ``table`` all other columns.

    If the target is a number, ``y`` has the numbers, there are no classes, and ``counts`` is (clients, 1).
    """

    table: pa.Table
    y: NDArray[Any]
    client: Ints
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    counts: Ints  # (clients, classes) number of rows, over all rows
    notes: tuple[str, ...]  # about dropped rows and other things
    person: NDArray[np.object_] | None  # (rows,) the person of each row, as text
    dropped: frozenset[str]  # columns that were left out
    bytes: int  # approximate size of all rows in memory


class Codes:
    """Numbers for words, in order of first appearance. Calling it turns words (n,) into numbers."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def __call__(self, words: pa.ChunkedArray) -> Ints:
        coded = words.combine_chunks().dictionary_encode()
        numbers = [self.of.setdefault(word, len(self.of)) for word in coded.dictionary.to_pylist()]
        return np.asarray(numbers, dtype=np.int64)[np.asarray(coded.indices)]

    def sorted(self) -> tuple[tuple[str, ...], Ints]:
        """Return the words in the order of `in_order`, and the number of each."""
        words = in_order(self.of)
        return words, np.asarray([self.of[word] for word in words], dtype=np.int64)


def survey(
    paths: Sequence[Path],
    roles: Roles,
    *,
    preprocessing: Tabular | None = None,
    most: int | None = None,
    fair: bool = True,
    seed: int = 0,
    training: Mappings | None = None,
    on_progress: Callable[[float, int], None] = lambda fraction, rows: None,
) -> Survey:
    """Read tables.

    At most ``most`` rows are kept. If ``fair``, each client has equally many of them, except clients with fewer rows; a single
    file then needs a column of clients. Otherwise they are a random sample of all rows. Rows without a value in a column that
    `Roles` names are dropped and counted; an empty text counts as none. Cells are read as ``preprocessing`` reads them.
    ``training`` maps files without a TOML file.
    ``on_progress(fraction of bytes, rows)`` is called as files are read.

    Raises `BadInput` for missing or unreadable files and columns, for labels that are numbers and not classes, and for rows that
    do not fit into memory.
    """
    files = files_of(paths)
    check_clients(files, roles.client, fair)
    spellings = preprocessing.spellings if preprocessing else {}

    def read(untyped: frozenset[str]) -> tuple[Reading, StreamedRows]:
        reading = Reading(files, roles.as_written(preprocessing), roles.text, spellings, drop=frozenset(roles.drop))
        reading.training, reading.untyped = training or reading.training, untyped
        rows = StreamedRows(roles, RowSample(most, fair, stream(seed, "diagnose", 1)))
        for path, part in reading.tables():
            rows.add(path, part)
            on_progress(reading.fraction, rows.read)
        rows.check(reading)
        return reading, rows

    reading, rows = read(frozenset())
    if mixed := frozenset(name for name, are_texts in reading.are_texts.items() if len(are_texts) > 1):
        # 01 is 01 also in a part of the rows that holds numbers only
        kinds = rows.kinds
        reading, rows = read(mixed)
        rows.kinds = kinds
    return rows.survey(reading)


class StreamedRows:
    """The rows of files, as they are read: counts of all, and a sample."""

    def __init__(self, roles: Roles, sample: "RowSample") -> None:
        self.roles, self.sample = roles, sample
        self.labels, self.clients = Codes(), Codes()
        self.counts = np.zeros((1, 1), dtype=np.int64)  # (clients, classes)
        self.kinds = Kinds()
        self.clients_by_value = clients_by_value(Path(roles.client_map)) if roles.client_map else None
        self.dropped = dict.fromkeys(roles.needed, 0)  # rows without a value, by column
        self.persons: set[tuple[int, str]] = set()  # client and person of all rows so far, if persons count once
        self.read = self.bytes = self.later = 0  # all rows and their bytes; later rows of persons that count once

    def add(self, path: Path, part: pa.Table) -> None:
        """Count the next rows of a file, and sample them."""
        roles, sample = self.roles, self.sample
        require_columns(path, part, roles.needed)
        if sample.most is not None and sample.fair:  # keep fewer rows of a wide table
            sample.most = min(sample.most, max(FEWEST_ROWS, MOST_VALUES // len(part.column_names)))
        self.kinds.add(path.name, part.drop_columns(roles.needed))
        self.read, self.bytes = self.read + len(part), self.bytes + part.nbytes + ROW_BYTES * len(part)
        require(
            sample.most is not None or self.bytes <= MOST_BYTES,
            f"{path}: more than {MOST_BYTES / 1e9:.1f} GB of rows, which are loaded into memory; take some of them, rows="
            f"{round_down(self.read)}, chosen at random",
        )
        part = self.without_gaps(path, part)
        if not len(part):
            return
        names = words(part, roles.client, path) if roles.client else pa.chunked_array([[stem(path)] * len(part)])
        if self.clients_by_value is not None:
            names = self.grouped(names, path)
        part, client = self.without_later(path, part, self.clients(names))
        y = target_numbers(part, roles.label, path) if roles.numeric else self.labels(words(part, roles.label, path))
        clients, classes = len(self.clients.of), len(self.labels.of)
        require(classes <= MOST_LABELS, f"{path}: column {roles.label!r} has more than {MOST_LABELS} values; {BINS}")
        require(
            sample.most is None or not sample.fair or clients * classes <= MOST_CELLS,
            f"{path}: {clients} or more clients in {roles.client or 'the files'!r}, and {classes} classes, are too many "
            "to compare; name the column with the client of each row, or give the rows of fewer clients",
        )
        more = np.maximum(self.counts.shape, (clients, 1 if roles.numeric else classes)) - self.counts.shape
        self.counts = np.pad(self.counts, [(0, number) for number in more.tolist()])
        cell = client * self.counts.shape[1] + (0 if roles.numeric else y)
        self.counts += np.bincount(cell, minlength=self.counts.size).reshape(self.counts.shape)
        sample.add(part.drop_columns([*{roles.label, roles.client or roles.label}]), y, client, self.counts.sum(1))

    def grouped(self, values: pa.ChunkedArray, path: Path) -> pa.ChunkedArray:
        """Return the client of each value. Raises `BadInput` for a value that the file of clients lacks."""
        words = values.to_pandas()
        clients = words.map(self.clients_by_value)
        missing = words[clients.isna()].head(1).tolist()
        where = (
            f"{self.roles.client_map}: no line for {missing}, which column {self.roles.client!r} of {path.name} holds"
        )
        require(not missing, f"{where}; add one with its client")
        return pa.chunked_array([pa.array(clients, pa.string())])

    def without_gaps(self, path: Path, part: pa.Table) -> pa.Table:
        """Drop and count the rows without a value in a needed column."""
        if text := self.roles.text:
            cells = words(part, text, path)
            part = replaced(part, text, pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells))
        for name in self.roles.needed:
            valid = pc.invert(pc.is_null(part[name], nan_is_null=True))
            self.dropped[name] += len(part) - int(pc.sum(valid).as_py() or 0)
            part = part.filter(valid)
        return part

    def without_later(self, path: Path, part: pa.Table, client: Ints) -> tuple[pa.Table, Ints]:
        """Drop and count the later rows of a person at a client, if persons count once."""
        if not (self.roles.once and self.roles.person):
            return part, client
        first = []
        for at, pair in enumerate(zip(client.tolist(), words(part, self.roles.person, path).to_pylist(), strict=True)):
            if pair not in self.persons:
                self.persons.add(pair)
                first.append(at)
        self.later += len(part) - len(first)
        return part.take(pa.array(first, pa.int64())), client[first]

    def check(self, reading: Reading) -> None:
        """Raise `BadInput` if no row can be used, or if the labels look like numbers."""
        first, roles = reading.files[0], self.roles
        require(
            reading.malformed <= self.read,
            f"{first}: {reading.malformed} lines have too few or too many cells, and only {self.read} rows have the right number; "
            "is a quote not closed, or is a text with commas not in quotes?",
        )
        require(not reading.unused, "".join(reading.unused[:1]))
        several = f" in {len(reading.files)} files" if len(reading.files) > 1 else ""
        require(self.read > 0, f"{first}: no rows{several}")
        require(
            bool(self.clients.of),
            f"{first}: no row has both a {'target' if roles.numeric else 'label'} ({roles.label!r}) and a client"
            + (f", and {roles.text!r}" if roles.text else ""),
        )
        classes = len(self.labels.of)
        require(
            classes <= max(FEW_LABELS, self.read // 2),
            f"{first}: column {roles.label!r} has {classes} different values in {self.read} rows; {BINS}",
        )

    def survey(self, reading: Reading) -> Survey:
        """Return the counts and the sample, with classes and clients in order."""
        roles, first = self.roles, reading.files[0]
        table, y, client = self.sample.result(self.counts.sum(1))
        person = None
        if roles.person:
            person = words(table, roles.person, first).to_numpy(zero_copy_only=False)
            table = table.drop_columns([roles.person])
        if roles.event:
            y = np.stack([y, target_numbers(table, roles.event, first, EVENT)], axis=1)
            table = table.drop_columns([roles.event])
        (classes, class_codes), (clients, client_codes) = self.labels.sorted(), self.clients.sorted()
        counts = (self.counts if roles.numeric else self.counts[:, class_codes])[client_codes]
        return Survey(
            table=self.kinds.marked(table, reading.common_spellings()),
            y=y if roles.numeric else np.argsort(class_codes)[y.astype(np.int64)],
            client=np.argsort(client_codes)[client],
            classes=classes,
            clients=clients,
            counts=counts,
            notes=(
                *self.notes_on_rows(reading, len(y)),
                *notes_on_words(roles, clients, classes, counts),
                *notes_on_names(table, client, len(clients)),
            ),
            person=person,
            dropped=frozenset(reading.dropped),
            bytes=self.bytes,
        )

    def notes_on_rows(self, reading: Reading, sampled: int) -> Iterator[str]:
        """Yield notes on rows that are dropped, read in a way that may be wrong, or not in the sample of ``sampled`` rows."""
        rows, sizes = int(self.counts.sum()), self.counts.sum(1)
        for name, number in self.dropped.items():
            if number:
                yield f"{number} of {count(self.read, 'row')} dropped: no value in {name!r}"
        yield from reading.notes
        yield from self.kinds.notes()
        if self.later:
            yield f"differences count each person once, by the first row: {count(self.later, 'later row')} not used for them"
        if reading.malformed:
            yield f"{count(reading.malformed, 'line')} dropped: too few or too many cells"
        if reading.empty:
            yield f"{count(len(reading.empty), 'file')} without rows: {', '.join(reading.empty[:5])}"
        if sampled < rows and self.sample.fair:
            yield (
                f"{'sizes' if self.roles.numeric else 'labels and sizes'} of all {rows} rows; "
                f"{'targets and inputs' if self.roles.numeric else 'inputs'} of {sampled} random rows, at most "
                f"{level(sizes, sampled)} of a client"
            )
        elif sampled < rows:
            yield f"{sampled} of {rows} rows taken at random"


def notes_on_words(roles: Roles, clients: tuple[str, ...], classes: tuple[str, ...], counts: Ints) -> Iterator[str]:
    """Yield notes on classes and clients that may be spelt in two ways. ``counts`` is (clients, classes)."""
    places = (np.flatnonzero(rows[: len(classes)]) for rows in counts)
    of_clients = {client: [classes[at] for at in of_client] for client, of_client in zip(clients, places, strict=True)}
    if roles.client:
        yield from spelt_twice(roles.label, classes)
        yield from spelt_twice(roles.client, clients)
        for client, line in other_language(roles.label, of_clients).items():
            yield f"{client}: column {roles.label!r} holds {line}"
    elif not roles.numeric:
        yield from other_words(roles.label, of_clients)
        yield from dict.fromkeys(line for words in of_clients.values() for line in spelt_twice(roles.label, words))


def notes_on_names(table: pa.Table, client: Ints, clients: int) -> Iterator[str]:
    """Yield a note on each column that has a single value at each client, and different values at different clients."""
    for name, cells in zip(table.column_names, table.columns, strict=True):
        if clients > 1 and countable(cells.type) and len(cells.unique()) == clients:
            codes = pd.factorize(cells.to_pandas(), use_na_sentinel=False)[0]
            if len(np.unique(client * clients + codes)) == clients:
                yield f"column {name!r}: {NAMES_SITES.format(name)}"


VALUE, CLIENT = "value", "client"
"""The columns of a file that groups the values of a column into clients."""


def clients_by_value(path: Path) -> dict[str, str]:
    """Read the client of each value. Raises `BadInput` for a file without these columns, and for a value with two clients."""
    clients: dict[str, str] = {}
    for _, part in Reading(files_of([path]), frozenset((VALUE, CLIENT))).tables():
        require_columns(path, part, (VALUE, CLIENT))
        for value, client in zip(*(words(part, name, path).to_pylist() for name in (VALUE, CLIENT)), strict=True):
            require(bool(value and client), f"{path}: a line lacks its {VALUE} or its {CLIENT}")
            first = clients.setdefault(value, client)
            require(first == client, f"{path}: {value!r} has two clients, {first!r} and {client!r}; leave one of them")
    return clients


def check_dropped(drop: Sequence[str], surveys: Sequence[Survey]) -> None:
    """Raise `BadInput` for a column to leave out that no file has."""
    missing = [name for name in drop if not any(name in rows.dropped for rows in surveys)]
    names = dict.fromkeys(name for rows in surveys for name in rows.table.column_names)
    require(not missing, f"drop: no column {''.join(missing[:1])!r}; {suggestion(''.join(missing[:1]), names)}")


def require_columns(path: Path, part: pa.Table, needed: Sequence[str]) -> None:
    for name in needed:
        if name not in part.column_names:
            hint = suggestion(name, part.column_names)
            other = " If it has" if hint.endswith("?") else "; if it has"
            rename = f"in {mapping_path(path).name} write {entry('rename', 'ITS-NAME', name)}"
            raise BadInput(f"{path}: no column {name!r}; {hint}{other} another name, {rename}{assumed(path)}")


def check_clients(files: Sequence[Path], client: str, fair: bool) -> None:
    """Raise `BadInput` if neither a column nor the files' names identify the clients."""
    require(
        not fair or bool(client) or len(files) > 1,
        f"{files[0]}: name the column with the client of each row, --client COLUMN (or client=COLUMN), or give a folder with one "
        "file a client",
    )
    by_client: dict[str, Path] = {}
    for path in () if client else files:
        other = by_client.setdefault(stem(path), path)
        require(other == path, f"{other} and {path} would be one client, {stem(path)!r}; rename one of them")


def round_down(number: int) -> int:
    """Round down to one significant digit."""
    unit = 10 ** (len(str(number)) - 1)
    return number // unit * unit


class RowSample:
    """A random sample of streamed rows. Each row gets a random number; the rows with the smallest numbers are kept."""

    def __init__(self, most: int | None, fair: bool, rng: np.random.Generator) -> None:
        self.most, self.fair, self.rng = most, fair, rng
        self.tables: list[pa.Table] = []
        self.columns: list[NDArray[np.float64]] = []  # (3, rows): label, client, random number
        self.rows = 0

    def add(self, table: pa.Table, y: NDArray[Any], client: Ints, sizes: Ints) -> None:
        """Add the next rows. ``sizes`` (clients,) counts each client's rows so far."""
        self.tables.append(table)
        self.columns.append(np.stack([y, client, self.rng.random(len(y))]))
        self.rows += len(y)
        if self.most is not None and self.rows > 2 * self.most:
            self.prune(sizes)

    def prune(self, sizes: Ints) -> None:
        """Drop rows that are not in the sample of all rows so far."""
        table, columns = joined(self.tables), np.concatenate(self.columns, axis=1)
        if self.most is not None:
            client = columns[1].astype(np.int64)
            each = level(sizes, self.most) if self.fair else self.most
            rows = fair_sample(client if self.fair else np.zeros_like(client), columns[2], each)
            table, columns = table.take(pa.array(rows)), columns[:, rows]
        self.tables, self.columns, self.rows = [table], [columns], columns.shape[1]

    def result(self, sizes: Ints) -> tuple[pa.Table, NDArray[np.float64], Ints]:
        """Return the sample: rows, labels and clients."""
        self.prune(sizes)
        y, client, _ = self.columns[0]
        return self.tables[0], y, client.astype(np.int64)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables. A column with different types becomes numbers if all are numbers or truth values, times in UTC, or text."""
    if len(tables) == 1:
        return tables[0]
    names = tables[0].column_names
    kinds = {name: {table.schema.field(name).type for table in tables} - {pa.null()} for name in names}
    schema = pa.schema([(name, types.pop() if len(types) == 1 else common(types)) for name, types in kinds.items()])

    def as_common(table: pa.Table) -> pa.Table:
        for name in names:
            if pa.types.is_boolean(table.schema.field(name).type) and pa.types.is_string(schema.field(name).type):
                table = replaced(table, name, spelt_out(table[name]))
        return table.select(names).cast(schema, safe=False)

    return pa.concat_tables(map(as_common, tables)).combine_chunks()


def spelt_out(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return truth values as True and False, as Python and pandas write them."""
    return pc.if_else(column, "True", "False")


def common(types: Collection[pa.DataType]) -> pa.DataType:
    """Return the type of a column whose parts have these types."""
    kinds = {"text" if is_text(kind) or not countable(kind) else kind_of_cells(kind) for kind in types}
    return {"number": pa.float64(), "time": pa.timestamp("us", "UTC")}.get("".join(kinds), pa.string())


def words(part: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    """Return a column's values as text, each by itself. 1.0 becomes 1; 01 stays 01. Raises `BadInput` for types such as lists."""
    column = spelt_out(part[name]) if pa.types.is_boolean(part.schema.field(name).type) else part[name]
    if pa.types.is_floating(column.type):
        whole = pc.and_(pc.equal(column, pc.round(column)), pc.less(pc.abs(column), 2**53))
        numbers_in = pc.if_else(whole, column, 0).cast(pa.int64())
        column = pc.if_else(whole, numbers_in.cast(pa.string()), column.cast(pa.string()))
    try:
        text = pc.utf8_trim_whitespace(column.cast(pa.string()))
    except pa.ArrowException:
        raise BadInput(f"{path}: column {name!r} holds {column.type}; give words or whole numbers") from None
    return pc.replace_substring_regex(text, r"^(-?\d+)\.0+$", r"\1")


def target_numbers(part: pa.Table, name: str, path: Path, what: str = TARGET) -> NDArray[np.float64]:
    """Return a column's values as numbers. Raises `BadInput` for words; its message shows one, and ``what`` says what to do."""
    try:
        targets = np.asarray(part[name].cast(pa.float64()), dtype=np.float64)
    except pa.ArrowException:
        odd = [word for word in words(part, name, path).unique().to_pylist() if not number_like(word)]
        example = next((word for word in odd if not number_like(word.replace(",", "."))), next(iter(odd), ""))
        raise BadInput(f"{path}: column {name!r} {what.format(held=repr(example), name=name)}") from None
    infinite = int(np.isinf(targets).sum())
    require(
        infinite == 0,
        f"{path}: column {name!r} is the target and holds {count(infinite, 'infinite number')}; leave out these rows or write them "
        "as missing",
    )
    return targets


def in_order(words: Iterable[str]) -> tuple[str, ...]:
    """Sort words: numbers by value, then all others by the alphabet."""

    def place(word: str) -> tuple[int, float, str]:
        return (0, float(word), word) if number_like(word) else (1, 0.0, word)

    return tuple(sorted(words, key=place))


def number_like(word: str) -> bool:
    """True if the word is a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


MOST_COPIED = 100
"""With more clients, rows are not compared between clients."""

PERSON = re.compile(r"patient|person|subject|participant|proband|customer|user|member|(^|[^a-z])(p|m)?id$")
"""Part of the name of a column that may identify persons, in lower case."""


def like_persons(survey: Survey) -> list[str]:
    """Return a note for each column that repeats like an id of persons, if no column of persons is named.

    Its words or whole numbers have several rows each. Its name says so, or it has at least `FEW_LABELS` values, and decides at
    least two other columns.
    """
    notes, table = [], survey.table
    for column_field in table.schema if survey.person is None else ():
        name, kind = column_field.name, column_field.type
        if not (pa.types.is_integer(kind) or holds_strings(kind)) or marks_of(column_field).get(NUMBERED) == "1":
            continue
        code, values = pd.factorize(table[name].to_pandas())
        rows, says_so = int((code >= 0).sum()), PERSON.search(name.lower()) is not None
        if not (5 <= len(values) <= 0.9 * rows if says_so else FEW_LABELS <= len(values) <= rows / 2):
            continue
        if says_so or decides(code, len(values), table.drop_columns([name]), survey.y) >= 2:
            notes.append(
                f"column {name!r} repeats like an id, {len(values)} values in {rows} rows: if it names persons, write "
                f"person={name} (diagnose: --person {name}); then a person is never in training and test rows"
            )
    return notes


def copied_rows(survey: Survey) -> list[str]:
    """Return a note if half of the rows of a client, or more, are also rows of another one: one file under two names, perhaps.

    A client counts if it has `FEW_LABELS` rows and hardly any of them twice, so that equal rows are no chance.
    """
    if not 2 <= len(survey.clients) <= MOST_COPIED or not survey.table.num_columns:
        return []
    rows = survey.table.to_pandas().assign(**{"": list(map(str, survey.y.tolist()))})
    code = pd.util.hash_pandas_object(rows, index=False).to_numpy()
    own = [np.unique(code[survey.client == k]) for k in range(len(survey.clients))]
    sizes = np.bincount(survey.client, minlength=len(own))
    for k in np.flatnonzero(sizes >= FEW_LABELS):
        if len(own[k]) < 0.9 * sizes[k]:
            continue
        shared = [len(np.intersect1d(own[k], others, assume_unique=True)) for others in own]
        shared[k] = 0
        if 2 * max(shared) >= sizes[k]:
            name, other = survey.clients[k], survey.clients[int(np.argmax(shared))]
            return [
                f"{max(shared)} of {sizes[k]} rows of {name} are also rows of {other}: test rows of one are then training rows of "
                "the other, and results are too good; if these are the same rows under two names, leave one out"
            ]
    return []


MOST_TESTED = 0.1
"""Share of the test rows from which on `copied_tests` says that they are training rows, too."""


def copied_tests(trained: NDArray[Any], y: NDArray[Any], tested: NDArray[Any], y_test: NDArray[Any]) -> list[str]:
    """Return a note if many test rows are also training rows with the same target.

    Rows are texts (n,) or numbers (n, d). Equal rows are no chance if hardly any training row is there twice, or if one column
    has a different value in nearly every row.
    """
    frames = [pd.concat(map(pd.DataFrame, part), axis=1) for part in ((trained, y), (tested, y_test))]
    code, tests = (pd.util.hash_pandas_object(frame, index=False).to_numpy() for frame in frames)
    copies, different = int(np.isin(tests, code).sum()), len(np.unique(code))
    if copies < MOST_TESTED * len(tests) or different < FEW_LABELS:
        return []
    if different < 0.9 * len(code) and max(frames[0].nunique()) < 0.9 * different:
        return []
    return [
        f"{copies} of {count(len(tests), 'test row')} are also training rows, with the same target: results are too good; give "
        "each row once"
    ]


def decides(code: Ints, values: int, others: pa.Table, y: NDArray[Any]) -> int:
    """Return how many of the other columns, and ``y``, follow from ``code`` (n,).

    Such a column varies, but has one value for each of the ``values`` different codes.
    """
    columns = [y if y.ndim == 1 else y[:, 0], *(column.to_pandas() for column in others.columns)]
    coded = (pd.factorize(pd.Series(column, dtype=object))[0] for column in columns)
    return sum(bool(np.ptp(other)) and len(np.unique(code * len(other) + other)) == values for other in coded)


def many_numbers(survey: Survey, label: str) -> list[str]:
    """Return a note if the labels look like measured numbers; else an empty list."""
    numeric = all(re.fullmatch(r"[-+]?\d+(\.\d+)?", word) for word in survey.classes)
    if not label or len(survey.classes) <= FEW_LABELS or not numeric:
        return []
    return [
        f"{label!r} has {len(survey.classes)} different numbers, and each one is a class of its own; did you mean target={label} "
        f"(--target {label}), which predicts numbers?"
    ]


def all_notes(survey: Survey, label: str) -> list[str]:
    """Return the notes of the survey, and those on its labels, on columns like persons, and on copied rows."""
    return [*survey.notes, *many_numbers(survey, label), *like_persons(survey), *copied_rows(survey)]

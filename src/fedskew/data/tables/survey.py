"""What the columns of files hold, from all their rows: numbers of rows, words between numbers, and classes spelt in two ways."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from fedskew.data.tables.mapping import MOSTLY_NUMBERS, entry, holds_strings, mapping_path
from fedskew.data.tables.schema import misfit, other_words, spelt_twice

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
                files[where] = "time" if pa.types.is_timestamp(kind.type) or pa.types.is_date(kind.type) else "number"

    def marked(self, table: pa.Table, spellings: Mapping[str, str]) -> pa.Table:
        """Return the table with marks in its schema: which columns number the rows of each file, and the spellings."""
        fields = []
        for kind in table.schema:
            numbered = number_rows(kind.name, self.steps.get(kind.name, {}).values())
            fields.append(kind.with_metadata({NUMBERED: str(int(numbered)), SPELLING: spellings.get(kind.name, "")}))
        return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))

    def notes(self) -> Iterator[str]:
        """Yield a line for each file whose words do not fit to the numbers or times of most other files with this column."""
        for name, files in self.held.items():
            kinds = Counter(known for known in files.values() if isinstance(known, str))
            words = {where: known for where, known in files.items() if isinstance(known, list)}
            if not kinds or len(words) > kinds.total():
                continue
            wanted = kinds.most_common(1)[0][0]
            for where, cells in words.items():
                odd = odd_cells(cells, wanted)
                if wanted == "time" or len(odd) > (1 - MOSTLY_NUMBERS) * len(cells):
                    yield f"{misfit(where, name, odd, wanted)}; until then they count as words or missing values"


def odd_cells(cells: list[str], wanted: str) -> list[str]:
    """Return the cells that are no numbers, or no times."""
    values = pd.Series(cells, dtype=object)
    known = pd.to_datetime(values, errors="coerce", format="ISO8601") if wanted == "time" else numbers(values)
    return [cell for cell, missing in zip(cells, np.asarray(pd.isna(known)), strict=True) if missing]


def other_classes(
    label: str, clients: tuple[str, ...], classes: tuple[str, ...], counts: NDArray[np.int64]
) -> list[str]:
    """Return a line for each class that only one client has, if it may be another spelling. ``counts`` is (clients, classes)."""
    held = {client: [classes[at] for at in np.flatnonzero(rows)] for client, rows in zip(clients, counts, strict=True)}
    return [*other_words(label, held), *{line for own in held.values() for line in spelt_twice(label, own)}]


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
    label: str,
    client: str = "",
    *,
    text: str = "",
    event: str = "",
    person: str = "",
    once: bool = False,
    numeric: bool = False,
    known: Tabular | None = None,
    most: int | None = None,
    fair: bool = True,
    seed: int = 0,
    on_progress: Callable[[float, int], None] = lambda fraction, rows: None,
) -> Survey:
    """Read tables. The clients are the values of the column ``client``; without it, each file is a client.

    At most ``most`` rows are kept. If ``fair``, they are equally many of each client, except for clients with fewer rows; a
    single file then needs ``client``. Otherwise they are a random sample of all rows. Rows without a label, a client, a person, or
    a word in the column ``text`` (if given) are dropped and counted. With ``once``, only the first row of each ``person`` at a
    client counts. If ``numeric``, labels are numbers to predict. With ``event``, a column of 0 and 1, the labels are times, and
    ``y`` is (rows, 2). Cells are read as the preprocessing ``known`` reads them.
    ``on_progress(fraction of bytes, rows)`` is called as files are read.

    Raises `BadInput` for missing or unreadable files and columns, for labels that are numbers and not classes, and for rows that
    do not fit into memory.
    """
    files = files_of(paths)
    check_clients(files, client, fair)
    needed = list(dict.fromkeys(filter(None, (label, client, text, event, person))))
    as_written = {*needed, *(known.texts if known else ())} - {event, label if numeric else ""}
    reading = Reading(files, frozenset(as_written), text, known.spellings if known else {})
    labels, owners = Codes(), Codes()
    counts = np.zeros((1, 1), dtype=np.int64)
    kinds = Kinds()
    sample = RowSample(most, fair, stream(seed, "diagnose", 1))
    dropped = dict.fromkeys(needed, 0)
    rows = read = later = 0
    met: set[tuple[int, str]] = set()
    for path, part in reading.tables():
        require_columns(path, part, needed)
        if most is not None and fair:
            sample.most = min(most, max(FEWEST_ROWS, MOST_VALUES // len(part.column_names)))
        kinds.add(path.name, part.drop_columns(needed))
        rows, read = rows + len(part), read + part.nbytes + ROW_BYTES * len(part)
        require(
            most is not None or read <= MOST_BYTES,
            f"{path}: more than {MOST_BYTES / 1e9:.1f} GB of rows, which are loaded into memory; take some of them, rows="
            f"{round_down(rows)}, chosen at random",
        )
        if text:
            cells = words(part, text, path)
            cells = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
            part = part.set_column(part.column_names.index(text), text, cells)
        for name in needed:
            valid = present(part[name])
            dropped[name] += len(part) - int(pc.sum(valid).as_py() or 0)
            part = part.filter(valid)
        if not len(part):
            continue
        owner = owners(words(part, client, path) if client else pa.chunked_array([[stem(path)] * len(part)]))
        if once and person:
            pairs = list(zip(owner.tolist(), words(part, person, path).to_pylist(), strict=True))
            first = [at for at, pair in enumerate(pairs) if not (pair in met or met.add(pair))]  # type: ignore[func-returns-value]
            later += len(part) - len(first)
            part, owner = part.take(pa.array(first, pa.int64())), owner[first]
        y = target_numbers(part, label, path) if numeric else labels(words(part, label, path))
        require(len(labels.of) <= MOST_LABELS, f"{path}: column {label!r} has more than {MOST_LABELS} values; {BINS}")
        require(
            most is None or not fair or len(owners.of) * len(labels.of) <= MOST_CELLS,
            f"{path}: {len(owners.of)} or more clients in {client or 'the files'!r}, and {len(labels.of)} classes, are too many "
            "to compare; name the column with the client of each row, or give the rows of fewer clients",
        )
        counts = grown(counts, (len(owners.of), 1 if numeric else len(labels.of)))
        column = 0 if numeric else y
        counts += np.bincount(owner * counts.shape[1] + column, minlength=counts.size).reshape(counts.shape)
        sample.add(part.drop_columns([*{label, client or label}]), y, owner, counts.sum(1))
        on_progress(reading.fraction, rows)
    require(
        reading.malformed <= rows,
        f"{files[0]}: {reading.malformed} lines have too few or too many cells, {rows} rows the right number; is a quote not "
        "closed, or a text with commas not in quotes?",
    )
    require(not reading.unused, "".join(reading.unused[:1]))
    require(rows > 0, f"{files[0]}: no rows" + (f" in {len(files)} files" if len(files) > 1 else ""))
    require(
        bool(owners.of),
        f"{files[0]}: no row has both a {'target' if numeric else 'label'} ({label!r}) and a client"
        + (f", and {text!r}" if text else ""),
    )
    require(
        len(labels.of) <= max(FEW_LABELS, rows // 2),
        f"{files[0]}: column {label!r} has {len(labels.of)} different values in {rows} rows; {BINS}",
    )
    notes = [f"{n} of {count(rows, 'row')} dropped: no value in {name!r}" for name, n in dropped.items() if n]
    notes += [*reading.notes, *kinds.notes()]
    if later:
        notes.append(f"each person counts once, with the first row: {count(later, 'later row')} not used")
    if reading.malformed:
        notes.append(f"{count(reading.malformed, 'line')} dropped: too few or too many cells")
    if reading.empty:
        notes.append(f"{count(len(reading.empty), 'file')} without rows: {', '.join(reading.empty[:5])}")
    table, y, owner = sample.result(counts.sum(1))
    persons = None
    if person:
        persons = words(table, person, files[0]).to_numpy(zero_copy_only=False)
        table = table.drop_columns([person])
    if event:
        y, table = np.stack([y, target_numbers(table, event, files[0], EVENT)], axis=1), table.drop_columns([event])
    if len(y) < counts.sum() and fair:
        each = level(counts.sum(1), len(y))
        notes.append(
            f"{'sizes' if numeric else 'labels and sizes'} of all {counts.sum()} rows; "
            f"{'targets and inputs' if numeric else 'inputs'} of {len(y)} random rows, at most {each} of a client"
        )
    elif len(y) < counts.sum():
        notes.append(f"{len(y)} of {counts.sum()} rows taken at random")
    (classes, class_codes), (clients, client_codes) = labels.sorted(), owners.sorted()
    if client:
        notes += [*spelt_twice(label, classes), *spelt_twice(client, clients)]
    if not (numeric or client):
        notes += other_classes(label, clients, classes, counts[client_codes][:, class_codes])
    return Survey(
        table=kinds.marked(table, reading.common_spellings()),
        y=y if numeric else np.argsort(class_codes)[y.astype(np.int64)],
        client=np.argsort(client_codes)[owner],
        classes=classes,
        clients=clients,
        counts=(counts if numeric else counts[:, class_codes])[client_codes],
        notes=tuple(notes),
        person=persons,
        bytes=read,
    )


def check_columns(paths: Sequence[Path], columns: Sequence[str]) -> None:
    """Raise `BadInput` if the first rows do not have all these columns, or cannot be read."""
    needed = [name for name in columns if name]
    for path, part in Reading(files_of(paths), frozenset(needed), "").tables():
        require_columns(path, part, needed)
        return


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
    named: dict[str, Path] = {}
    for path in () if client else files:
        other = named.setdefault(stem(path), path)
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
        self.held = 0

    def add(self, table: pa.Table, y: NDArray[Any], owner: Ints, sizes: Ints) -> None:
        """Add the next rows. ``sizes`` (clients,) counts each client's rows so far."""
        self.tables.append(table)
        self.columns.append(np.stack([y, owner, self.rng.random(len(y))]))
        self.held += len(y)
        if self.most is not None and self.held > 2 * self.most:
            self.prune(sizes)

    def prune(self, sizes: Ints) -> None:
        """Drop rows that are not in the sample of all rows so far."""
        table, columns = joined(self.tables), np.concatenate(self.columns, axis=1)
        if self.most is not None:
            owner = columns[1].astype(np.int64)
            each = level(sizes, self.most) if self.fair else self.most
            rows = fair_sample(owner if self.fair else np.zeros_like(owner), columns[2], each)
            table, columns = table.take(pa.array(rows)), columns[:, rows]
        self.tables, self.columns, self.held = [table], [columns], columns.shape[1]

    def result(self, sizes: Ints) -> tuple[pa.Table, NDArray[np.float64], Ints]:
        """Return the sample: rows, labels and clients."""
        self.prune(sizes)
        y, owner, _ = self.columns[0]
        return self.tables[0], y, owner.astype(np.int64)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables. A column with different types becomes floating point if all types are numbers, else text."""
    if len(tables) == 1:
        return tables[0]
    names = tables[0].column_names
    fields = []
    for name in names:
        types = {t.schema.field(name).type for t in tables} - {pa.null()}
        numbers = all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in types)
        fields.append((name, types.pop() if len(types) == 1 else pa.float64() if numbers and types else pa.string()))
    return pa.concat_tables([t.select(names).cast(pa.schema(fields), safe=False) for t in tables]).combine_chunks()


def present(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return True for values that are neither missing nor NaN, (n,)."""
    return pc.invert(pc.is_null(column, nan_is_null=True))


def words(part: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    """Return a column's values as text, each by itself. 1.0 becomes 1; 01 stays 01. Raises `BadInput` for types such as lists."""
    column = part[name]
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
        found = np.asarray(part[name].cast(pa.float64()), dtype=np.float64)
    except pa.ArrowException:
        odd = [word for word in words(part, name, path).unique().to_pylist() if not number_like(word)]
        held = next((word for word in odd if not number_like(word.replace(",", "."))), next(iter(odd), ""))
        raise BadInput(f"{path}: column {name!r} {what.format(held=repr(held), name=name)}") from None
    infinite = int(np.isinf(found).sum())
    require(
        infinite == 0,
        f"{path}: column {name!r} is the target and holds {count(infinite, 'infinite number')}; leave out these rows or write them "
        "as missing",
    )
    return found


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


def grown(counts: Ints, shape: tuple[int, int]) -> Ints:
    """Pad the counts with zeros to at least ``shape``."""
    more = [max(0, want - have) for have, want in zip(counts.shape, shape, strict=True)]
    return np.pad(counts, [(0, more[0]), (0, more[1])]) if any(more) else counts


PERSON = re.compile(r"patient|person|subject|participant|proband|customer|user|member|(^|[^a-z])(p|m)?id$")
"""Part of the name of a column that may identify persons, in lower case."""


def like_persons(found: Survey) -> list[str]:
    """Return a note for each column that repeats like an id of persons, if no column of persons is named.

    Its words or whole numbers have several rows each. Its name says so, or it has at least `FEW_LABELS` values, and decides at
    least two other columns.
    """
    notes, table = [], found.table
    for column_field in table.schema if found.person is None else ():
        name, kind = column_field.name, column_field.type
        if not (pa.types.is_integer(kind) or holds_strings(kind)) or marks_of(column_field).get(NUMBERED) == "1":
            continue
        code, values = pd.factorize(table[name].to_pandas())
        rows, named = int((code >= 0).sum()), PERSON.search(name.lower()) is not None
        if not (5 <= len(values) <= 0.9 * rows if named else FEW_LABELS <= len(values) <= rows / 2):
            continue
        if named or decides(code, len(values), table.drop_columns([name]), found.y) >= 2:
            notes.append(
                f"column {name!r} repeats like an id, {len(values)} values in {rows} rows: if it names persons, write "
                f"person={name} (diagnose: --person {name}); then a person is never in training and test rows"
            )
    return notes


def decides(code: Ints, values: int, others: pa.Table, y: NDArray[Any]) -> int:
    """Return how many other columns, with ``y``, vary, but have one value for each of the ``values`` that ``code`` (n,) numbers."""
    columns = [y if y.ndim == 1 else y[:, 0], *(column.to_pandas() for column in others.columns)]
    coded = (pd.factorize(pd.Series(column, dtype=object))[0] for column in columns)
    return sum(bool(np.ptp(other)) and len(np.unique(code * len(other) + other)) == values for other in coded)


def many_numbers(found: Survey, label: str) -> list[str]:
    """Return a note if the labels look like measured numbers; else an empty list."""
    if (
        not label
        or len(found.classes) <= FEW_LABELS
        or not all(re.fullmatch(r"[-+]?\d+(\.\d+)?", word) for word in found.classes)
    ):
        return []
    return [
        f"{label!r} has {len(found.classes)} different numbers, and each one is a class of its own; did you mean target={label} "
        f"(--target {label}), which predicts numbers?"
    ]

"""`Dataset`: the training rows, the test rows, and optionally the natural client of each training row."""

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from multiprocessing.reduction import DupFd
from os import fdopen
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, TypeAlias

import numpy as np

from fedskew.core.errors import BadInput, NoRoom, first_line, require, suggestion
from fedskew.core.seeding import stream
from fedskew.data.preprocessing import Preprocessing
from fedskew.data.targets import TARGETS, Ints as Ints, Numbered as Numbered, Rows as Rows, target_of

Baselines: TypeAlias = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Arrays in memory, as all loaders return them.

    x: (n, ...) floating point, or integers such as word ids. y: the targets. They have one of these kinds
    (`fedskew.data.targets.TARGETS`):

    - ``classes``: (n,) integers 0..K-1, with the names of the ``classes``;
    - ``number``: (n,) floating point;
    - ``labels``: (n, L) zeros and ones, with the labels' names as ``classes``;
    - ``survival``: (n, 2) floating point: a time above 0, and 1 for an event, or 0 if the observation ended without one;
    - ``symbols``: (n, T) integers 0..V-1, and -1 after a row's end, with the symbols' names as ``classes`` or V as ``vocabulary``.

    target: the kind of target; by default y's type and shape decide it. groups: (n,) natural client ids, or None.
    group_names: the natural client's name for each id; by default the id itself.
    groups_test: the natural client ids of the test rows, as in ``groups``; -1 for a row of no known client. None: unknown. They
    are not in the fingerprint.
    persons: any ids of the persons of the training rows (n,) and of the test rows, if persons have several rows. The rows of a
    person stay together where rows are held out, and count as one in intervals. None: each row is of another person.
    columns: the names of x's columns (of a table), or of its channels (of signals); empty if they have no names.
    texts: training and test rows as texts, for models that have their own tokenizer; None if the rows are no texts.
    vocabulary: the maximum number of ids, if x holds ids of words (`fedskew.data.texts`) or symbols; else 0.
    fewest: a word counts at a client only if at least this many of the client's training texts have it.
    sensitive: the name of the sensitive attribute, if the last column of x holds one as 0 and 1.
    test_units: (n_test,) the id of each test row's unit: a person, a client, or the row itself. Values of one unit depend on each
    other. Splits of the same rows give a unit the same id. None: each test row is a unit, and all splits have the same test rows.
    baselines: metrics of predictions without a model on the test rows, by the baseline's name, then by the metric's (``rmse``).
    preprocessing: how x was made from raw columns, texts or arrays; None: new rows look like x.
    Raises `BadInput` for different lengths, for targets that do not match their kind or are all equal, and for values that are
    not finite.
    """

    x: Rows
    y: Rows
    x_test: Rows
    y_test: Rows
    classes: tuple[str, ...] = ()
    target: str = ""
    groups: Ints | None = None
    groups_test: Ints | None = None
    group_names: tuple[str, ...] = ()
    persons: tuple[Ints, Ints] | None = None
    columns: tuple[str, ...] = ()
    texts: tuple[Sequence[str], Sequence[str]] | None = None
    vocabulary: int = 0
    fewest: int = 1
    sensitive: str = ""
    test_units: Ints | None = None
    preprocessing: Preprocessing | None = None
    baselines: Baselines = field(default_factory=dict)
    name: str = "own data"
    source: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        name = self.name
        arrays = arrays_of(name, self)
        lengths = len(arrays["y"]), len(arrays["y_test"])
        for part, value in {**arrays, **clients_of(name, self)}.items():
            object.__setattr__(self, part, value)
        for part, x, y in (("training", self.x, self.y), ("test", self.x_test, self.y_test)):
            check_rows(f"{name}: ", part, x, len(y))
        if self.target not in ("", *TARGETS):
            raise BadInput(f"{name}: unknown target {self.target!r}; {suggestion(self.target, TARGETS)}")
        target = self.target or target_of(f"{name}: ", self.y, len(self.classes), self.vocabulary)
        if not self.source:
            for line in assumed(self, target):
                warnings.warn(line, UserWarning, stacklevel=3)
        object.__setattr__(self, "target", target)
        if self.persons is not None:
            object.__setattr__(self, "persons", numbered_persons(name, self.persons, lengths))
            object.__setattr__(self, "test_units", self.persons[1] if self.test_units is None else self.test_units)
        kind, what = TARGETS[target], "labels" if target == "classes" else "targets"
        for part, y in (("training", self.y), ("test", self.y_test)):
            kind.check(f"{name}: {part} {what}", y, self.num_categories)
        if reason := kind.useless(self.y):
            raise BadInput(f"{name}: {reason}")
        require(
            self.x.shape[1:] == self.x_test.shape[1:],
            f"{name}: training rows have shape {self.x.shape[1:]}, but test rows have {self.x_test.shape[1:]}",
        )
        for x in (self.x, self.x_test) if self.sensitive else ():
            require(
                x.ndim == 2 and bool(np.isin(x[:, -1], (0, 1)).all()) and len(self.classes) == 2,
                f"{name}: a sensitive attribute needs two classes, and 0 or 1 in the last column of x",
            )
        require(
            not self.columns or (len(self.shape) < 3 and self.shape[:1] == (len(self.columns),)),
            f"{name}: {len(self.columns)} names of columns for rows of shape {self.shape}",
        )
        texts = self.texts and tuple(map(len, self.texts))
        require(texts in (None, lengths), f"{name}: texts must have one entry a row in each part")
        for field_name, ids, rows, part in (
            ("the client ids (groups)", self.groups, lengths[0], "training"),
            ("the test rows' client ids (groups_test)", self.groups_test, lengths[1], "test"),
            ("test_units", self.test_units, lengths[1], "test"),
        ):
            require(ids is None or len(ids) == rows, f"{name}: {field_name} must have one entry a {part} row")
        for field_name, ids in (("groups", self.groups), ("groups_test", self.groups_test)):
            require(
                ids is None or not self.group_names or int(ids.max()) < len(self.group_names),
                f"{name}: some client ids ({field_name}) are not below {len(self.group_names)}, the number of their names",
            )

    def __repr__(self) -> str:
        owners = "" if self.groups is None else f", {len(np.unique(self.groups))} natural clients"
        return (
            f"{self.name}: {len(self.y):,} training and {len(self.y_test):,} test rows of shape {self.shape}, "
            f"{self.num_categories or ''} {'numbers to predict' if self.target == 'number' else self.target}{owners}"
        )

    def _repr_html_(self) -> str:
        rows = {"source": self.source, "notes": self.notes, "classes": ", ".join(self.classes[:20])}
        lines = "".join(f"<tr><td>{name}</td><td>{escape(text)}</td></tr>" for name, text in rows.items() if text)
        return f"<p>{escape(repr(self))}</p><table>{lines}</table>"

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 if the targets are not classes."""
        return len(self.classes) if self.target == "classes" else 0

    @property
    def num_categories(self) -> int:
        """The number of classes, labels or symbols; 0 if the targets are numbers or times."""
        return len(self.classes) or (self.vocabulary if self.target == "symbols" else 0)

    @cached_property
    def strata(self) -> Numbered:
        """The stratum (n,) of each row, from 0 on, and the strata's names. Label skews deal rows by stratum.

        Strata are classes, tenths of the targets, sets of labels, or symbols.
        """
        return TARGETS[self.target].strata(self.y, self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.x.shape[1:])

    def fingerprint(self) -> str:
        """Return sixteen hex digits of the SHA-256 of all values. They are equal if two runs used the same data."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for array in (self.x, self.y, self.x_test, self.y_test, self.groups):
            if array is not None:
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        for persons in self.persons or ():
            digest.update(f"persons{persons.shape}".encode())
            digest.update(persons.data)
        for texts in self.texts or ():
            digest.update("\0".join(texts).encode())
        return digest.hexdigest()[:16]


def clients_of(name: str, fields: Dataset) -> dict[str, Any]:
    """Return groups, groups_test and group_names. Ids that are no integers become numbers, with the ids as names."""
    names = tuple(map(str, fields.group_names))
    groups, groups_test = (
        ids if ids is None else ids_of(name, f"client ({part})", ids)
        for part, ids in (("groups", fields.groups), ("groups_test", fields.groups_test))
    )
    require(groups_test is None or groups is not None, f"{name}: groups_test needs groups, the training rows' clients")
    if groups is not None and not np.issubdtype(groups.dtype, np.integer):
        require(
            not names,
            f"{name}: groups must hold integers, since group_names has the clients' names; or give no group_names",
        )
        groups, names = numbered(groups)
        groups_test = groups_test if groups_test is None else places_of(groups_test, names)
    if groups_test is not None and not np.issubdtype(groups_test.dtype, np.integer):
        raise BadInput(f"{name}: groups_test must hold integers, as groups does")
    return {"groups": groups, "groups_test": groups_test, "group_names": names}


def arrays_of(name: str, fields: Dataset) -> dict[str, Any]:
    """Return x, y, x_test and y_test as arrays, with ``classes`` and ``columns``, from arrays, tensors, data frames or lists.

    Targets (n, 1) become (n,), words become numbers of their classes, and whole numbers as floats become integers if there are
    classes. Raises `BadInput` for anything else that is no array of numbers, and for one-hot labels.
    """
    frames = [[*map(str, getattr(rows, "columns", ()))] for rows in (fields.x, fields.x_test)]
    columns = tuple(map(str, fields.columns if len(fields.columns) else frames[0]))
    require(
        frames[0] == frames[1] or not all(frames),
        f"{name}: the columns of x are {', '.join(frames[0])[:80]}, and of x_test {', '.join(frames[1])[:80]}; give both the same, "
        "in one order",
    )
    x, x_test = rows_of(f"{name}: training rows", fields.x), rows_of(f"{name}: test rows", fields.x_test)
    ys = [array_of(f"{name}: {part} targets", y) for part, y in (("training", fields.y), ("test", fields.y_test))]
    classes = tuple(map(str, () if fields.classes is None else fields.classes))
    if fields.target in ("", "classes", "number"):
        ys = [y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for y in ys]
        require(
            not all(y.ndim == 2 and y.shape[1] > 1 and is_one_hot(y) for y in ys),
            f"{name}: each row of y has a single 1, as one-hot labels have; write y.argmax(1) for classes, or target='labels' for "
            "sets of labels",
        )
    if all(y.ndim == 1 for y in ys) and fields.target in ("", "classes"):
        if any(y.dtype.kind in "OUSb" for y in ys) and not (classes and all(y.dtype.kind == "b" for y in ys)):
            ys, classes = classes_of(name, ys, classes)
        elif classes and all(bool(np.isin(y, np.arange(len(classes))).all()) for y in ys):
            ys = [y if np.issubdtype(y.dtype, np.integer) else y.astype(np.int64) for y in ys]
    return {"x": x, "x_test": x_test, "y": ys[0], "y_test": ys[1], "classes": classes, "columns": columns}


def array_of(what: str, value: Any) -> Rows:
    """Return an array, tensor, data frame, sparse matrix or list as an array; masked numbers become NaN."""
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    if isinstance(value, np.ma.MaskedArray):
        value = np.ma.filled(value.astype(np.float64), np.nan)
    try:
        array = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
        if array.dtype.kind == "U" and isinstance(value, list | tuple):  # NumPy makes words of NaN and None, too
            array = np.asarray(value, dtype=object)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{what} must be an array: {first_line(error)}") from None
    require(array.ndim > 0, f"{what} must be an array, not {type(value).__name__}")
    return array if min(array.strides, default=0) >= 0 else array.copy()  # PyTorch cannot read an array backwards


def rows_of(what: str, value: Any) -> Rows:
    """Return rows as an array of numbers (n, ...), at least one a row."""
    array = array_of(what, value)
    if array.dtype.kind in "OUb":
        try:
            array = array.astype(np.float32)
        except (ValueError, TypeError) as error:
            words = f"{what} must be numbers: {first_line(error)}"
            raise BadInput(
                f"{words}; fs.table(frame, label='COLUMN', client='COLUMN') reads a data frame with words"
            ) from None
    return array[:, None] if array.ndim == 1 and len(array) else array


def is_one_hot(y: Rows) -> bool:
    """True if each row has a single 1, and zeros."""
    return y.dtype.kind in "biuf" and bool(np.isin(y, (0, 1)).all() and (y.sum(1) == 1).all())


def classes_of(name: str, ys: Sequence[Rows], classes: tuple[str, ...]) -> tuple[list[Rows], tuple[str, ...]]:
    """Return words as numbers of their ``classes``, by default all words in sorted order, and the classes."""
    words = [ids_of(name, "target (y)", y).astype(str) for y in ys]
    names = classes or tuple(np.unique(np.concatenate(words)).tolist())
    others = sorted({*np.concatenate(words).tolist()} - {*names})
    require(not others, f"{name}: targets such as {''.join(others[:1])!r} are not among the classes {', '.join(names)}")
    number = {word: at for at, word in enumerate(names)}
    return [np.array([number[word] for word in part], dtype=np.int64) for part in words], names


def ids_of(name: str, what: str, ids: object) -> Rows:
    """Return ids as an array (n,); 1.0 becomes 1. Raises `BadInput` if some are missing."""
    array = array_of(f"{name}: {what}", ids)
    if array.dtype == object:
        from pandas import isna

        missing = isna(array)
    else:
        missing = array != array  # NaN
    require(
        not missing.any(),
        f"{name}: {int(missing.sum())} rows have no {what}, such as row {int(missing.argmax())}; give each of them one, or "
        "leave them out",
    )
    array = np.asarray(array.tolist()) if array.dtype == object else array
    return array.astype(np.int64) if array.dtype.kind == "f" and not (array % 1).any() else array


def check_rows(where: str, part: str, x: Rows, labels: int) -> None:
    """Raise `BadInput` unless there is one row for each label, at least one row, and all numbers are finite."""
    require(len(x) == labels, f"{where}{len(x)} {part} rows but {labels} labels")
    require(len(x) > 0, f"{where}no {part} rows")
    numeric = np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)
    require(numeric, f"{where}{part} rows must be numbers, not {x.dtype}")
    # check in blocks, so that large arrays need no second copy
    blocks = (x[lo : lo + 4096] for lo in range(0, len(x), 4096))
    bad = sum(int((~np.isfinite(rows).reshape(len(rows), -1).all(1)).sum()) for rows in blocks)
    require(bad == 0, f"{where}{bad} {part} rows hold values that are not finite")


def check_all_trained(name: str, classes: Sequence[str], y: Ints, y_test: Ints) -> None:
    """Raise `BadInput` if a class occurs in the test rows only."""
    unseen = [classes[c] if 0 <= c < len(classes) else str(c) for c in np.setdiff1d(y_test, y)]
    require(not unseen, f"{name}: the test part has rows of {', '.join(unseen[:3])}, but the training part has none")


def numbered(values: Iterable[object]) -> Numbered:
    """Number the distinct values in sorted order; return each value's number (n,) and the values' names."""
    names, numbers = np.unique(np.asarray(values), return_inverse=True)
    return numbers.astype(np.int64), tuple(str(name) for name in names)


def places_of(values: Iterable[object], names: Sequence[str]) -> Ints:
    """Return the place (n,) of each value among the ``names``; -1 for a value that is not among them."""
    places = {name: at for at, name in enumerate(names)}
    return np.array([places.get(str(value), -1) for value in values], dtype=np.int64)


FAR, FEW = 50.0, 20
"""Images whose largest values differ by this factor have another scale. With more values, whole numbers are no classes."""


def assumed(data: Dataset, target: str) -> Iterator[str]:
    """Yield a line on what was assumed of a program's arrays: classes from 0, no classes in numbers, one scale of all images."""
    if data.classes != (*map(str, range(len(data.classes))),) and target == "classes":
        least = min(int(data.y.min()), int(data.y_test.min()))
        if least > 0:
            yield (
                f"{data.name}: y holds {least} to {data.y.max()} and never 0, so no row is of class {data.classes[0]!r}; classes "
                "count from 0, in the order of their names"
            )
    values = len(np.unique(data.y)) if target == "number" and not data.target and data.y.ndim == 1 else 0
    if 0 < values <= FEW and np.all(data.y == np.round(data.y)):
        yield (
            f"{data.name}: y holds {values} whole numbers as floats, which are taken as numbers to predict; for classes give "
            "integers from 0 and classes=(...)"
        )
    if data.x.ndim != 4 or not len(data.x) or not len(data.x_test):
        return
    sizes, test = (np.abs(x).reshape(len(x), -1).max(1).astype(np.float64) for x in (data.x, data.x_test))
    groups = np.zeros(len(sizes), np.int64) if data.groups is None else data.groups
    parts = {
        f"rows of client {data.group_names[k] if data.group_names else k}": sizes[groups == k]
        for k in np.unique(groups)
    }
    for what, part in {**(parts if len(parts) > 1 else {}), "test rows": test}.items():
        usual, here = np.median(sizes), np.median(part)
        if max(usual, here) > FAR * min(usual, here) > 0:
            yield (
                f"{data.name}: the {what} reach {here:.3g}, and training rows usually {usual:.3g}; give all images on one scale, "
                "such as 0 to 1"
            )
            return


def numbered_persons(name: str, persons: Sequence[Iterable[object]], lengths: Sequence[int]) -> tuple[Ints, Ints]:
    """Number the persons of training and test rows. Raises `BadInput` for wrong lengths, a missing id, and a person in both."""
    require(len(persons) == 2, f"{name}: persons must be a pair: the ids of the training rows, and of the test rows")
    parts = [ids_of(name, "person", part) for part in persons]
    require([len(part) for part in parts] == [*lengths], f"{name}: persons must have one entry a row in each part")
    numbers, names = numbered(np.concatenate(parts))
    train, test = np.split(numbers, [lengths[0]])
    for at in np.intersect1d(train, test):
        raise BadInput(
            f"{name}: person {names[at]!r} has training and test rows; put all rows of a person into one part"
        )
    return train, test


def some_rows(count: int, number: int, part: int, where: str) -> Ints:
    """Choose ``number`` of ``count`` rows at random, always the same ones; return their indices. 0 gives all rows in order.

    ``part`` is 0 for training and 1 for test rows; both get different choices. Raises `BadInput` if there are too few rows.
    """
    require(number <= count, f"data set {where}: {number} rows are requested, but there are only {count}")
    return stream(0, "data", part).permutation(count)[:number] if number else np.arange(count)


# shared with worker processes on this machine: its arrays are in one file that all workers map to memory

ALIGNMENT = 64
"""Each array's offset in the file is a multiple of this number of bytes."""

Places = Mapping[str, tuple[int, np.dtype[np.generic], tuple[int, ...]]]
"""Offset in the file, type and shape of each array, by name."""


@dataclass(frozen=True)
class SharedDataset:
    """A shared data set. If `multiprocessing` sends it to another process, that process receives a `Dataset`."""

    file: IO[bytes]
    places: Places
    rest: Mapping[str, object]  # the fields that are no arrays

    def __reduce__(self) -> tuple[object, ...]:
        return mapped, (DupFd(self.file.fileno()), self.places, self.rest)


def mapped(descriptor: Any, places: Places, rest: Mapping[str, object]) -> Dataset:
    """Make the data set in a worker, from the `DupFd` of its file. A worker's changes do not reach the file.

    Rows are read from the file when used.
    """
    with fdopen(descriptor.detach(), "rb") as file:
        arrays = {
            name: np.asarray(np.memmap(file, dtype, mode="c", offset=offset, shape=shape))
            for name, (offset, dtype, shape) in places.items()
        }
    # the rows were checked when the data set was made
    dataset = Dataset.__new__(Dataset)
    dataset.__dict__.update(rest, **arrays)
    return dataset


@contextmanager
def shared(dataset: Dataset | None) -> Iterator[SharedDataset | None]:
    """Write the arrays to a file without a name. The system deletes it after the last process has closed it. Raises `NoRoom`."""
    if dataset is None:
        yield None
        return
    arrays = {name: value for name, value in vars(dataset).items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in vars(dataset).items() if name not in arrays}
    places: dict[str, tuple[int, np.dtype[np.generic], tuple[int, ...]]] = {}
    with TemporaryFile() as file:
        try:
            for name, array in arrays.items():
                places[name] = file.tell(), array.dtype, array.shape
                file.write(np.ascontiguousarray(array).data)
                file.write(bytes(-file.tell() % ALIGNMENT))
            file.flush()
        except OSError as error:
            with suppress(OSError):  # unwritten bytes in the buffer fail again
                file.close()
            raise NoRoom(
                f"the rows for worker processes cannot be written to {gettempdir()}: {error.strerror}; set TMPDIR=FOLDER to "
                "write elsewhere"
            ) from None
        yield SharedDataset(file, places, rest)

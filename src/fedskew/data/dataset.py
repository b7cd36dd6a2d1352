"""The result of every loader: training rows, test rows, and the natural client of each training row, if there is one."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TypeAlias

import numpy as np

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.seeding import stream
from fedskew.data.preprocessing import Array, Preprocessing, as_array
from fedskew.data.targets import TARGETS, target_of
from fedskew.data.targets import Ints as Ints
from fedskew.data.targets import Numbered as Numbered
from fedskew.data.targets import Rows as Rows

Baselines: TypeAlias = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Arrays in memory.

    x: (n, ...) floating point, or integers such as word ids. y: the targets, of a kind of `fedskew.data.targets.TARGETS`:

    - ``classes``: (n,) integers 0..K-1, with the names of the ``classes``;
    - ``number``: (n,) floating point;
    - ``labels``: (n, L) zeros and ones, with the labels' names as ``classes``;
    - ``survival``: (n, 2) floating point, a time above 0, and 1 for an event or 0 if the observation ended before one;
    - ``symbols``: (n, T) integers 0..V-1, and -1 after a row's end, with the symbols' names as ``classes`` or V as ``vocabulary``.

    target: the kind, by default found from y's type and shape. groups: (n,) natural client ids, or None.
    group_names: the name of the natural client of each id; without them the ids are the names.
    columns: the names of x's columns, if x is a table whose columns mean something, or of the channels of signals.
    texts: the training and the test rows as texts, if they are texts, for models with a tokenizer of their own.
    vocabulary: if x holds ids of words (`fedskew.data.texts`) or symbols, the most ids that it may have; else 0.
    sensitive: the name of the attribute that the last column of x holds as 0 and 1, if there is one.
    baselines: metrics on the test rows of answers without a model, such as that nothing changes: by the answer's name, then by
    the metric's (``rmse``).
    preprocessing: what made x from the columns, texts or arrays that new rows have; None: new rows are as x.
    Raises `BadInput` for lengths that do not agree, targets that are not of their kind or all the same, and values that are not
    finite.
    """

    x: Rows
    y: Rows
    x_test: Rows
    y_test: Rows
    classes: tuple[str, ...] = ()
    target: str = ""
    groups: Ints | None = None
    group_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    texts: tuple[Sequence[str], Sequence[str]] | None = None
    vocabulary: int = 0
    sensitive: str = ""
    preprocessing: Preprocessing | None = None
    baselines: Baselines = field(default_factory=dict)
    name: str = "own data"
    source: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        name, lengths = self.name, (len(self.y), len(self.y_test))
        groups, names = self.groups, tuple(map(str, self.group_names))
        if groups is not None and not np.issubdtype(np.asarray(groups).dtype, np.integer):
            require(not names, f"{name}: the client ids (groups) must be integers if group_names names them")
            groups, names = numbered(groups)
        for part, held in (("classes", tuple(map(str, self.classes))), ("groups", groups), ("group_names", names)):
            object.__setattr__(self, part, held)
        for part, x, y in (("training", self.x, self.y), ("test", self.x_test, self.y_test)):
            check_rows(f"{name}: ", part, x, len(y))
        if self.target not in ("", *TARGETS):
            raise BadInput(f"{name}: unknown target {self.target!r}; {suggestion(self.target, TARGETS)}")
        found = self.target or target_of(f"{name}: ", self.y, len(self.classes), self.vocabulary)
        object.__setattr__(self, "target", found)
        kind, what = TARGETS[found], "labels" if found == "classes" else "targets"
        for part, y in (("training", self.y), ("test", self.y_test)):
            kind.check(f"{name}: {part} {what}", y, self.num_categories)
        if reason := kind.useless(self.y):
            raise BadInput(f"{name}: {reason}")
        require(
            self.x.shape[1:] == self.x_test.shape[1:],
            f"{name}: training rows have shape {self.x.shape[1:]}, test rows {self.x_test.shape[1:]}",
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
        require(
            self.texts is None or (len(self.texts[0]), len(self.texts[1])) == lengths,
            f"{name}: texts must have one entry a row in each part",
        )
        require(
            self.groups is None or len(self.groups) == lengths[0],
            f"{name}: the client ids (groups) must have one entry a training row",
        )
        require(
            self.groups is None or not self.group_names or int(self.groups.max()) < len(self.group_names),
            f"{name}: some client ids (groups) are not below {len(self.group_names)}, the number of their names",
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
        """How many classes the targets have; 0 if they are of another kind."""
        return len(self.classes) if self.target == "classes" else 0

    @property
    def num_categories(self) -> int:
        """How many classes, labels or symbols the targets have; 0 if they are numbers or times."""
        return len(self.classes) or (self.vocabulary if self.target == "symbols" else 0)

    @cached_property
    def strata(self) -> Numbered:
        """What label skews deal by, (n,) from 0 on, and their names: classes, tenths of the targets, sets of labels, symbols."""
        return TARGETS[self.target].strata(self.y, self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.x.shape[1:])

    def fingerprint(self) -> str:
        """Sixteen hex digits that change with any value. Equal digits mean that two runs used the same data."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for array in (self.x, self.y, self.x_test, self.y_test, self.groups):
            if array is not None:
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        for texts in self.texts or ():
            digest.update("\0".join(texts).encode())
        return digest.hexdigest()[:16]


def check_rows(where: str, part: str, x: Rows, labels: int) -> None:
    """Raise `BadInput` unless there are as many rows as labels, at least one, of finite numbers."""
    require(len(x) == labels, f"{where}{len(x)} {part} rows but {labels} labels")
    require(len(x) > 0, f"{where}no {part} rows")
    numeric = np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)
    require(numeric, f"{where}{part} rows must be numbers, not {x.dtype}")
    # in blocks, so that large images need no second copy
    blocks = (x[lo : lo + 4096] for lo in range(0, len(x), 4096))
    bad = sum(int((~np.isfinite(rows).reshape(len(rows), -1).all(1)).sum()) for rows in blocks)
    require(bad == 0, f"{where}{bad} {part} rows hold values that are not finite")


def check_all_trained(name: str, classes: Sequence[str], y: Ints, y_test: Ints) -> None:
    """Raise `BadInput` for a class that only the test rows have."""
    unseen = [classes[c] if 0 <= c < len(classes) else str(c) for c in np.setdiff1d(y_test, y)]
    require(not unseen, f"{name}: the training part has no row of {', '.join(unseen[:3])}, which the test part has")


def numbered(values: Iterable[object]) -> Numbered:
    """Each value's number in the sorted order of the different values, and their names."""
    names, numbers = np.unique(np.asarray(values), return_inverse=True)
    return numbers.astype(np.int64), tuple(str(name) for name in names)


def standardised(train: Rows, test: Rows, axes: tuple[int, ...] | None = None) -> tuple[Rows, Rows, Array]:
    """Both parts as float32, less the training part's mean over the axes, divided by its deviation where that is not 0."""
    # sums in float64, so that they do not depend on NumPy's blocking
    mean, std = (np.asarray(f(train, axis=axes, keepdims=True, dtype=np.float64))[0] for f in (np.mean, np.std))
    made = as_array(train, mean=mean, scale=np.where(std > 0, std, 1))
    return made(train), made(test), made


def some_rows(count: int, wanted: int, part: int, where: str) -> Ints:
    """The indices of ``wanted`` of ``count`` rows in a random order that is always the same; 0 gives all rows in order.

    ``part`` is 0 for training and 1 for test rows, which get different choices. Raises `BadInput` if there are too few.
    """
    require(wanted <= count, f"data set {where}: {wanted} rows are requested, but there are only {count}")
    return stream(0, "data", part).permutation(count)[:wanted] if wanted else np.arange(count)

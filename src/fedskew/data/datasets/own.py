"""Data that a Python program gives. The experiment stores only their fingerprint."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedskew.core.errors import BadInput, require
from fedskew.data.dataset import Dataset, Ints, Rows, check_all_trained, ids_of, numbered


class Pairs(Protocol):
    """A PyTorch dataset of (row, label) pairs."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """In a stored experiment, stands for arrays that a Python program gave."""

    fingerprint: str

    model: ClassVar[str] = "mlp"
    idea: ClassVar[str] = "arrays given from Python, run(experiment, data=...)"

    def load(self) -> Dataset:
        raise BadInput(
            f"this experiment used data given from Python (fingerprint {self.fingerprint}); "
            "repeat it there with run(experiment, data=...)"
        )


def from_torch(
    train: Pairs,
    test: Pairs,
    classes: Sequence[str] | None = None,
    groups: Iterable[object] | None = None,
    name: str = "own data",
) -> Dataset:
    """Make a data set from two PyTorch datasets of (row, label) pairs, or from two pairs of tensors (rows, labels).

    Each row is read once, in order. ``groups`` has the natural client of each training row. Without ``classes``, the classes are
    named 0 to the largest training label. Raises `BadInput` for rows of different shapes, and for labels that are not integers.
    """
    (x, y), (x_test, y_test) = (arrays(part, f"{name}: {which}") for part, which in ((train, "train"), (test, "test")))
    check_all_trained(name, classes or (), y, y_test)
    numbers, names = (None, ()) if groups is None else numbered(ids_of(name, "client (groups)", groups))
    words = tuple(classes) if classes else tuple(str(c) for c in range(int(y.max()) + 1))
    return Dataset(x=x, y=y, x_test=x_test, y_test=y_test, classes=words, groups=numbers, group_names=names, name=name)


def arrays(part: Pairs, where: str) -> tuple[Rows, Ints]:
    """Return the rows and labels of a PyTorch dataset, or of a pair of tensors."""
    if isinstance(part, tuple) and len(part) == 2:
        x, y = (np.asarray(half) for half in part)
    else:
        rows, labels = [], []
        for i in range(len(part)):
            try:
                pair = part[i]
            except (KeyError, IndexError, TypeError):
                raise BadInput(
                    f"{where}: has no item {i}; give a PyTorch dataset, or a pair of arrays (rows, labels)"
                ) from None
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise BadInput(f"{where}: every item must be a pair (row, label)")
            rows.append(np.asarray(pair[0]))
            labels.append(int(pair[1]))
        require(bool(rows), f"{where}: the dataset has no rows")
        shapes = {row.shape for row in rows}
        if len(shapes) > 1:
            raise BadInput(f"{where}: rows have different shapes, {sorted(shapes)[:3]}; give all rows the same shape")
        x, y = np.stack(rows), np.asarray(labels)
    require(np.issubdtype(y.dtype, np.integer), f"{where}: labels must be integers, not {y.dtype}")
    x = x if np.issubdtype(x.dtype, np.floating) or x.dtype == np.int64 else x.astype(np.float32)
    return x, y.astype(np.int64)

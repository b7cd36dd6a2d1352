"""Data that a program passed in: the experiment records only their fingerprint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Own:
    """Stands in a stored experiment for arrays that were given from Python."""

    fingerprint: str

    model: ClassVar[str] = "mlp"
    idea: ClassVar[str] = "arrays given from Python, run(experiment, data=...)"

    def load(self) -> Dataset:
        raise BadInput(
            f"this experiment used data given from Python (fingerprint {self.fingerprint}); "
            "repeat it there with run(experiment, data=...)"
        )


def from_torch(
    train: Any,
    test: Any,
    classes: Sequence[str] | None = None,
    groups: Any = None,
    name: str = "own data",
) -> Dataset:
    """A data set from two PyTorch datasets of (row, label) pairs, or from two pairs of tensors (rows, labels).

    Every row is read once, in order; all must have one shape. Without ``classes`` there are as many as the largest training label
    says. ``groups`` names each training row's natural client. Raises `BadInput` for rows of different shapes and labels that are
    not integers.
    """
    (x, y), (x_test, y_test) = (arrays(part, f"{name}: {which}") for part, which in ((train, "train"), (test, "test")))
    names, numbers = (None, None) if groups is None else np.unique(np.asarray(groups), return_inverse=True)
    unseen = sorted(set(y_test.tolist()) - set(y.tolist()))
    require(not unseen, f"{name}: the training part has no row of the labels {unseen}, which the test part has")
    return Dataset(
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        classes=tuple(classes) if classes else tuple(str(c) for c in range(int(y.max()) + 1)),
        groups=None if numbers is None else numbers.astype(np.int64),
        group_names=() if names is None else tuple(str(name) for name in names),
        name=name,
    )


def arrays(part: Any, where: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Rows and labels of a dataset, or of a pair."""
    if isinstance(part, tuple) and len(part) == 2:
        x, y = (np.asarray(half) for half in part)
    else:
        rows = [part[i] for i in range(len(part))]
        require(bool(rows), f"{where}: the dataset has no rows")
        require(
            all(isinstance(row, tuple | list) and len(row) == 2 for row in rows),
            f"{where}: every item must be a pair (row, label)",
        )
        shapes = {np.shape(row) for row, _ in rows}
        require(len(shapes) == 1, f"{where}: rows have different shapes, {sorted(shapes)[:3]}; bring them to one")
        x, y = np.stack([np.asarray(row) for row, _ in rows]), np.asarray([int(label) for _, label in rows])
    require(np.issubdtype(y.dtype, np.integer), f"{where}: labels must be integers, not {y.dtype}")
    x = x if np.issubdtype(x.dtype, np.floating) or x.dtype == np.int64 else x.astype(np.float32)
    return x, y.astype(np.int64)

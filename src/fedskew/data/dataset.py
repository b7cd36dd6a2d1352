"""What every loader returns: pooled training rows, an unseen test set, and, where people made the rows, whose they are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Arrays in memory.

    x: (n, ...) floating point, or integers such as word ids; y: (n,) integers 0..K-1; groups: (n,) natural client ids, or None.
    group_names: what to call the natural client of each id; without them the ids are the names.
    texts: the training and the test rows as texts, where they are texts, for models that cut words in a way of their own.
    vocabulary: where x holds ids of those texts' words (`fedskew.data.texts`), the most ids there may be; 0 for other rows.
    sensitive: the name of the attribute that the last column of x holds as 0 and 1, where rows are people of two groups.
    Raises `BadInput` for lengths that do not agree, labels out of range, and values that are not finite.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()
    texts: tuple[Sequence[str], Sequence[str]] | None = None
    vocabulary: int = 0
    sensitive: str = ""
    name: str = "own data"
    source: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.x_test, self.y_test)):
            require(len(x) == len(y), f"{self.name}: {len(x)} {part} rows but {len(y)} labels")
            require(len(x) > 0, f"{self.name}: no {part} rows")
            require(np.issubdtype(y.dtype, np.integer), f"{self.name}: {part} labels must be integers, not {y.dtype}")
            require(
                bool(y.min() >= 0 and y.max() < len(self.classes)),
                f"{self.name}: {part} labels must lie in 0..{len(self.classes) - 1}, found {y.min()}..{y.max()}",
            )
            numeric = np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)
            require(numeric, f"{self.name}: {part} rows must be numbers, not {x.dtype}")
            # a part at a time, so that large images need no second copy
            parts = (x[lo : lo + 4096] for lo in range(0, len(x), 4096))
            bad = sum(int((~np.isfinite(rows).reshape(len(rows), -1).all(1)).sum()) for rows in parts)
            require(bad == 0, f"{self.name}: {bad} {part} rows hold values that are not finite")
        require(
            self.x.shape[1:] == self.x_test.shape[1:],
            f"{self.name}: training rows have shape {self.x.shape[1:]}, test rows {self.x_test.shape[1:]}",
        )
        for x in (self.x, self.x_test) if self.sensitive else ():
            require(
                x.ndim == 2 and bool(np.isin(x[:, -1], (0, 1)).all()) and len(self.classes) == 2,
                f"{self.name}: a sensitive attribute needs two classes, and 0 or 1 in the last column of x",
            )
        lengths = (len(self.y), len(self.y_test))
        require(
            self.texts is None or (len(self.texts[0]), len(self.texts[1])) == lengths,
            f"{self.name}: texts must have one entry a row in each part",
        )
        require(
            self.groups is None or len(self.groups) == len(self.y),
            f"{self.name}: the client ids (groups) must have one entry a training row",
        )

        require(
            self.groups is None or not self.group_names or int(self.groups.max()) < len(self.group_names),
            f"{self.name}: some client ids (groups) are not below {len(self.group_names)}, the number of their names",
        )

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.x.shape[1:])

    def fingerprint(self) -> str:
        """Sixteen hex digits that change with any value, to tell whether two runs saw the same data."""
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


def some_rows(count: int, wanted: int, part: int, where: str) -> NDArray[np.int64]:
    """Indices of ``wanted`` rows out of ``count`` in a random order that is always the same; of all in their own order for 0.

    ``part`` keeps the choices from the training and the test rows apart. Raises `BadInput` where there are too few.
    """
    require(wanted <= count, f"data set {where}: {wanted} rows are wanted and there are {count}")
    return stream(0, "data", part).permutation(count)[:wanted] if wanted else np.arange(count)

"""Any data set of the Hugging Face hub, or a folder that its library reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.core.places import whole_path
from fedskew.data.dataset import Dataset
from fedskew.data.images import standardised
from fedskew.data.texts import check_options, of_texts

USUAL = ("text", "sentence", "content", "image", "img")
"""Columns that are taken for the rows where none is named."""


@dataclass(frozen=True, kw_only=True)
class HuggingFace:
    """``hf:NAME`` with the column of the rows (``x``: texts, images of one size, or lists of numbers) and that of the labels.

    Without ``x`` the first of text, sentence, content, image, img is taken. ``client`` is a column of natural clients. Texts become
    word ids, as in the built-in text data sets; images are standardised in each channel. Needs the library datasets.
    """

    path: str
    subset: str = ""
    train: str = "train"
    test: str = "test"
    x: str = ""
    label: str = "label"
    client: str = ""
    length: int = 64
    vocabulary: int = 20_000

    takes: ClassVar[str] = "path"
    model: ClassVar[str] = "mlp"
    idea: ClassVar[str] = "any data set of the Hugging Face hub, hf:NAME (pip install 'fedskew[hf]')"

    def __post_init__(self) -> None:
        check_options(self.length, self.vocabulary)
        object.__setattr__(self, "path", whole_path(self.path))

    def load(self) -> Dataset:
        name, splits = f"hf:{self.path}", self.splits()
        for split in (self.train, self.test):
            require(
                split in splits, f"data set {name}: no split {split!r}, there are {', '.join(splits)}; write test=SPLIT"
            )
        train, test = splits[self.train], splits[self.test]
        columns = list(train.column_names)
        x = self.x or next((c for c in USUAL if c in columns), "")
        require(bool(x), f"data set {name}: which column holds the rows? write x=COLUMN, one of {', '.join(columns)}")
        for column in (x, self.label, *([self.client] if self.client else [])):
            require(column in columns, f"data set {name}: no column {column!r}, there are {', '.join(columns)}")
        classes, (y, y_test) = labels(name, train, test, self.label)
        names, groups = np.unique(np.asarray(train[self.client]), return_inverse=True) if self.client else ((), None)
        rows, rows_test = list(train[x]), list(test[x])
        about: dict[str, Any] = {
            "classes": classes,
            "groups": groups,
            "group_names": tuple(str(name) for name in names),
            "name": name,
            "source": f"huggingface.co, {self.path}",
        }
        if rows and isinstance(rows[0], str):
            return of_texts((rows, y), (rows_test, y_test), length=self.length, vocabulary=self.vocabulary, **about)
        parts = [numbers(name, x, part) for part in (rows, rows_test)]
        if parts[0].dtype == np.uint8:
            parts = list(standardised(*parts))
        return Dataset(x=parts[0], y=y, x_test=parts[1], y_test=y_test, **about)

    def splits(self) -> Any:
        """The splits by name; raises `BadInput` without the library, and with its reason where it cannot load them."""
        try:
            from datasets import load_dataset
        except ImportError:
            raise BadInput(f"data set hf:{self.path} needs the library datasets: pip install 'fedskew[hf]'") from None
        try:
            return load_dataset(self.path, self.subset or None)
        except Exception as error:
            # the library raises errors of many kinds, some of its own, for names, networks and formats
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise BadInput(f"data set hf:{self.path}: cannot be loaded: {reason}") from None


def labels(name: str, train: Any, test: Any, column: str) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """The classes, and the labels of both parts: the library's class labels, or what the training part's column holds."""
    values = [np.asarray(part[column]) for part in (train, test)]
    if known := getattr(train.features[column], "names", None):
        return tuple(known), [part.astype(np.int64) for part in values]
    found = np.unique(values[0])
    unseen = np.setdiff1d(values[1], found)
    require(not len(unseen), f"data set {name}: the training part has no row of {', '.join(map(str, unseen[:3]))}")
    return tuple(str(c) for c in found), [np.searchsorted(found, part) for part in values]


def numbers(name: str, column: str, rows: list[Any]) -> NDArray[Any]:
    """Images as bytes (n, channels, height, width), lists of numbers as float32."""
    made = [np.asarray(row) for row in rows]
    shapes = {row.shape for row in made}
    require(len(shapes) == 1, f"data set {name}: the rows of {column!r} have different shapes, {sorted(shapes)[:3]}")
    x = np.stack(made)
    if x.dtype != np.uint8:
        return x.astype(np.float32)
    return x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)

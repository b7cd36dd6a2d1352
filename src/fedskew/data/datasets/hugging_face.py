"""A data set of the Hugging Face hub, or a folder that the library `datasets` can read."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedskew.core.errors import BadInput, first_line, require
from fedskew.core.files import whole_path
from fedskew.core.limits import PositiveInt
from fedskew.data.dataset import Dataset, Ints, Rows, check_all_trained, numbered, places_of
from fedskew.data.find import Files
from fedskew.data.preprocessing import Texts, standardised_pixels
from fedskew.data.texts import Vocabulary, of_texts

USUAL = ("text", "sentence", "content", "image", "img")
"""Columns that are tried for the rows, in this order, if none is named."""


@dataclass(frozen=True, kw_only=True)
class HuggingFaceData:
    """``hf:NAME``. ``x`` is the column of the rows: texts, images of one size, or lists of numbers. ``label`` has the labels.

    Without ``x``, the first of the columns text, sentence, content, image, img is taken. ``client`` is a column of natural
    clients. Texts become word ids, as in the built-in text data sets. Images are standardised in each channel. Needs the library
    datasets.
    """

    path: str
    subset: str = ""
    train: str = "train"
    test: str = "test"
    x: str = ""
    label: str = "label"
    client: str = ""
    length: PositiveInt = 64
    vocabulary: Vocabulary = 20_000

    takes: ClassVar[str] = "path"
    model: ClassVar[str] = "mlp"
    idea: ClassVar[str] = "any data set of the Hugging Face hub, hf:NAME (pip install '.[hf]' in the clone)"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", whole_path(self.path))

    def load(self) -> Dataset:
        name, splits = f"hf:{self.path}", self.splits()
        for split in (self.train, self.test):
            if split not in splits:
                raise BadInput(f"data set {name}: no split {split!r}, there are {', '.join(splits)}; write test=SPLIT")
        parts = [splits[self.train], splits[self.test]]
        columns = list(parts[0].column_names)
        x = self.x or next((c for c in USUAL if c in columns), "")
        require(bool(x), f"data set {name}: which column holds the rows? write x=COLUMN, one of {', '.join(columns)}")
        for column in filter(None, (x, self.label, self.client)):
            require(column in columns, f"data set {name}: no column {column!r}, there are {', '.join(columns)}")
        y, y_test, classes = labels(parts, self.label)
        check_all_trained(f"data set {name}", classes, y, y_test)
        clients = numbered(parts[0][self.client]) if self.client else None
        of_clients = clients if self.client in parts[1].column_names else None
        tested = places_of(parts[1][self.client], of_clients[1]) if of_clients else None
        rows = [list(part[x]) for part in parts]
        files = Files(dataset=name, licence="", classes=len(classes), source=f"huggingface.co, {self.path}")
        if rows[0] and isinstance(rows[0][0], str):
            known = Texts(column=x, length=self.length, target=self.label)
            texts, test_texts = (rows[0], y), (rows[1], y_test)
            return of_texts(files, texts, test_texts, classes, known, self.vocabulary, clients, groups_test=tested)
        train, test = (numbers(name, x, part) for part in rows)
        preprocessing = None
        if train.dtype == np.uint8:
            train, test, preprocessing = standardised_pixels(train, test)
        facts = {"groups_test": tested, "preprocessing": preprocessing}
        return files.build((train, y), (test, y_test), classes, clients=clients, **facts)

    def splits(self) -> Any:
        """Load the splits, by name. Raises `BadInput` if the library is missing, or cannot load the data set."""
        try:
            from datasets import load_dataset
        except ImportError:
            raise BadInput(
                f"data set hf:{self.path} needs the library datasets: pip install '.[hf]' in the clone"
            ) from None
        try:
            return load_dataset(self.path, self.subset or None)
        except Exception as error:
            # the library raises errors of many kinds for names, networks and formats
            raise BadInput(f"data set hf:{self.path}: cannot be loaded: {first_line(error)}") from None


def labels(parts: list[Any], column: str) -> tuple[Ints, Ints, tuple[str, ...]]:
    """Return training labels, test labels, and the classes: the library's names, or else the column's distinct values."""
    train, test = (np.asarray(part[column]) for part in parts)
    if names := getattr(parts[0].features[column], "names", None):
        return train.astype(np.int64), test.astype(np.int64), tuple(names)
    numbers, classes = numbered(np.concatenate([train, test]))
    return numbers[: len(train)], numbers[len(train) :], classes


def numbers(name: str, column: str, rows: list[Any]) -> Rows:
    """Return images as bytes (n, channels, height, width), or lists of numbers as float32 (n, ...)."""
    # pixels of mode P are places in a palette
    arrays = [np.asarray(row.convert("RGB") if getattr(row, "mode", "") == "P" else row) for row in rows]
    shapes = {row.shape for row in arrays}
    require(len(shapes) == 1, f"data set {name}: the rows of {column!r} have different shapes, {sorted(shapes)[:3]}")
    x = np.stack(arrays)
    if x.dtype != np.uint8:
        return x.astype(np.float32)
    return x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)

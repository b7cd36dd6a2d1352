"""A table of one's own, from CSV, JSON lines, Parquet or Arrow files, as a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedskew.core.errors import require
from fedskew.core.places import whole_path
from fedskew.core.seeding import stream
from fedskew.data.dataset import Dataset
from fedskew.data.texts import as_ids, check_options


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of files or a folder ``path``; the natural clients are the values of the column ``client``, or else the files.

    One file without ``client`` has no natural clients; a skew deals its rows. The test set is the file or folder ``test``, or a
    random ``test_share`` of each client's rows (rounded down). Everything is loaded into memory, or of larger files so many
    ``rows`` taken at random. Classes that only the test set holds stay in it: no client knows them, and every row of theirs is
    counted as an error. Rows without label or client are dropped; ``notes`` counts them.

    With ``text`` that column's texts are the rows, as word ids of the ``vocabulary`` most frequent words, the first ``length`` of a
    text, or as the tokens of a pretrained encoder; other columns do not count.
    """

    path: str
    label: str
    client: str = ""
    text: str = ""
    test: str = ""
    test_share: float = 0.2
    rows: int = 0
    length: int = 64
    vocabulary: int = 20_000

    idea: ClassVar[str] = (
        "your own CSV, JSON lines, Parquet or Arrow files; with client=COLUMN or a file a client use it with --skew natural"
    )

    def __post_init__(self) -> None:
        require(0 < self.test_share < 1, f"test_share must be between 0 and 1, got {self.test_share}")
        require(self.label != self.client, f"column {self.label!r} cannot be both the label and the client")
        require(
            self.text not in (self.label, self.client) or not self.text,
            f"column {self.text!r} cannot be both the text and the label or the client",
        )
        check_options(self.length, self.vocabulary)
        require(self.rows >= 0, f"rows must be at least 1, or 0 for all, got {self.rows}")
        object.__setattr__(self, "path", whole_path(self.path))
        object.__setattr__(self, "test", whole_path(self.test))

    @property
    def model(self) -> str:
        """The usual one."""
        return "text-cnn" if self.text else "mlp"

    def load(self) -> Dataset:
        # on first use: they import pandas and PyArrow, which other data sets do without
        from fedskew.data import columns
        from fedskew.data.tables import survey

        limits: Any = {"text": self.text, "most": self.rows or None, "fair": False}
        found = survey([Path(self.path)], self.label, self.client, **limits)
        require(
            len(found.classes) > 1, f"{self.path}: all rows have the label {found.classes[0]!r}; choose another column"
        )
        notes = [*found.notes]
        y, table = found.y, found.table
        classes = list(found.classes)
        if self.test:
            other = survey([Path(self.test)], self.label, **limits)
            unseen = [word for word in other.classes if word not in classes]
            classes += unseen
            if unseen:
                rows = int(sum(other.counts.sum(0)[other.classes.index(word)] for word in unseen))
                notes.append(
                    f"{len(unseen)} classes with {rows} rows are in the test set only: {', '.join(unseen[:5])}"
                )
            notes += [f"test: {note}" for note in other.notes]
            require(
                bool(self.text) or set(table.column_names) <= set(other.table.column_names),
                f"{self.test}: lacks the columns {sorted(set(table.column_names) - set(other.table.column_names))[:5]}",
            )
            train, test_table = np.arange(len(y)), other.table
            y_test = np.array([classes.index(word) for word in other.classes])[other.y]
        else:
            held = held_out(found.client, self.test_share)
            train, test_table, y_test = np.flatnonzero(~held), table.take(np.flatnonzero(held)), y[held]
            require(
                len(y_test) > 0,
                f"{self.path}: no client has {1 / self.test_share:.0f} rows for a test share; give test=FILE",
            )
        natural = bool(self.client) or len(found.clients) > 1
        table, y, y_test = table.take(train), y[train], y_test.astype(np.int64)
        about: dict[str, Any] = {
            "groups": found.client[train] if natural else None,
            "group_names": found.clients if natural else (),
            "classes": tuple(classes),
            "name": Path(self.path).name,
            "source": self.path,
        }
        if self.text:
            texts, test_texts = (part[self.text].to_pylist() for part in (table, test_table))
            about |= {"length": self.length, "vocabulary": self.vocabulary, "notes": "; ".join(notes)}
            return as_ids((texts, y), (test_texts, y_test), **about)
        encode = columns.fit(table, self.path)
        notes += [*encode.notes, *(f"test: {note}" for note in encode.gaps(test_table))]
        return Dataset(x=encode(table), y=y, x_test=encode(test_table), y_test=y_test, notes="; ".join(notes), **about)


def held_out(
    client: np.ndarray[tuple[int], np.dtype[np.int64]], share: float
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """A random share of each client's rows, rounded down."""
    rng = stream(0, "split")
    order = np.lexsort((rng.random(len(client)), client))
    sizes = np.bincount(client)
    rank = np.arange(len(client)) - (np.cumsum(sizes) - sizes)[client[order]]
    held = np.zeros(len(client), dtype=bool)
    held[order] = rank < np.floor(share * sizes[client[order]] + 1e-9)
    return held

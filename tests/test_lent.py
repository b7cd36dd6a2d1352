"""Data sets lent to other processes of the machine: one copy of the rows, which each may read and change for itself."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskew.core.errors import NoRoom
from fedskew.data import lent
from fedskew.data.dataset import Dataset
from fedskew.data.lent import lend


def of_everything(kind: type = np.float32) -> Dataset:
    """A data set with every optional part."""
    drawn = np.random.default_rng(0)
    y = np.arange(3001) % 2
    return Dataset(
        x=drawn.integers(0, 2, (3001, 7)).astype(kind),
        y=y,
        x_test=drawn.integers(0, 2, (5, 7)).astype(kind),
        y_test=y[:5],
        classes=("no", "yes"),
        groups=np.arange(3001) % 3,
        group_names=("a", "b", "ß"),
        texts=([f"text {i}" for i in range(3001)], ["x"] * 5),
        sensitive="sex",
        name="everything",
        notes="n",
    )


def fields(data: Dataset) -> dict[str, Any]:
    return {k: v for k, v in vars(data).items() if not isinstance(v, np.ndarray)}


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.uint8])
def test_what_was_lent_is_the_same(tmp_path: Path, kind: type) -> None:
    data = of_everything(kind)
    got = pickle.loads(pickle.dumps(lend(data, tmp_path)))()
    assert fields(got) == fields(data)
    for name in ("x", "y", "x_test", "y_test", "groups"):
        ours, theirs = getattr(got, name), getattr(data, name)
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert (ours == theirs).all()
        assert type(ours) is np.ndarray
        assert ours.flags.aligned, "an array of odd bytes before it does not shift it"


def test_rows_without_columns(tmp_path: Path) -> None:
    data = of_everything()
    empty = Dataset(x=data.x[:, :0], y=data.y, x_test=data.x_test[:, :0], y_test=data.y_test, classes=data.classes)
    assert lend(empty, tmp_path)().x.shape == (3001, 0)


def test_rows_travel_by_a_file_and_are_read_where_they_lie(tmp_path: Path) -> None:
    data = of_everything()
    short = Dataset(x=data.x, y=data.y, x_test=data.x_test, y_test=data.y_test, classes=data.classes)
    message = pickle.dumps(lend(short, tmp_path))
    assert len(message) < 2000, "no rows in the message"
    one, other = pickle.loads(message)(), pickle.loads(message)()
    assert not one.x.flags.owndata
    one.x[0] = 77
    assert (other.x == data.x).all(), "what one process changes is its own"
    assert (pickle.loads(message)().x == data.x).all()


@pytest.mark.parametrize("order", ["F", "strided"])
def test_rows_in_any_order_of_memory(tmp_path: Path, order: str) -> None:
    data = of_everything()
    x = np.asfortranarray(data.x) if order == "F" else np.repeat(data.x, 2, axis=0)[::2]
    other = Dataset(x=x, y=data.y, x_test=data.x_test, y_test=data.y_test, classes=data.classes)
    assert (lend(other, tmp_path)().x == data.x).all()


def test_a_full_disk_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lent.Path, "open", refuse)
    with pytest.raises(
        NoRoom, match=r"the rows for other processes .*No space left.*; TMPDIR=FOLDER puts them elsewhere"
    ):
        lend(of_everything(), tmp_path)

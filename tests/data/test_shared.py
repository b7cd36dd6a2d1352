"""Data sets for worker processes: one copy of the rows, which each process may read and change for itself."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskew.core.errors import NoRoom
from fedskew.data import shared as module
from fedskew.data.dataset import Dataset
from fedskew.data.shared import mapped, shared


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


class Descriptor:
    """What a worker receives of the file."""

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        return os.dup(self.number)


def received(found: Any) -> Dataset:
    return mapped(Descriptor(found.file.fileno()), found.places, found.rest)


def fields(data: Dataset) -> dict[str, Any]:
    return {k: v for k, v in vars(data).items() if not isinstance(v, np.ndarray)}


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.uint8])
def test_a_worker_receives_the_same_data(kind: type) -> None:
    data = of_everything(kind)
    with shared(data) as found:
        got = received(found)
    assert fields(got) == fields(data)
    for name in ("x", "y", "x_test", "y_test", "groups"):
        ours, theirs = getattr(got, name), getattr(data, name)
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert (ours == theirs).all()
        assert type(ours) is np.ndarray
        assert ours.flags.aligned, "an array of odd bytes before it does not shift it"


def test_rows_without_columns() -> None:
    data = of_everything()
    empty = Dataset(x=data.x[:, :0], y=data.y, x_test=data.x_test[:, :0], y_test=data.y_test, classes=data.classes)
    with shared(empty) as found:
        assert received(found).x.shape == (3001, 0)


@pytest.mark.parametrize("order", ["F", "strided"])
def test_rows_in_any_order_of_memory(order: str) -> None:
    data = of_everything()
    x = np.asfortranarray(data.x) if order == "F" else np.repeat(data.x, 2, axis=0)[::2]
    other = Dataset(x=x, y=data.y, x_test=data.x_test, y_test=data.y_test, classes=data.classes)
    with shared(other) as found:
        assert (received(found).x == data.x).all()


def test_rows_are_mapped_and_a_change_is_the_workers_own() -> None:
    data = of_everything()
    with shared(data) as found:
        one, other = received(found), received(found)
    assert not one.x.flags.owndata
    one.x[0] = 77
    assert (other.x == data.x).all()


def add_up(data: Dataset, answers: Any) -> None:
    answers.send((type(data).__name__, int(data.x.sum()), data.group_names))
    answers.close()


def test_a_started_process_receives_it_and_nothing_stays_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has no name, so that nothing is left there, however the processes end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data, context = of_everything(), multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    with shared(data) as found:
        process = context.Process(target=add_up, args=(found, far), daemon=True)
        process.start()
        assert list(tmp_path.iterdir()) == []
    assert near.poll(60)
    assert near.recv() == ("Dataset", int(data.x.sum()), ("a", "b", "ß"))
    process.join(10)
    assert process.exitcode == 0


def test_nothing_is_shared_where_there_is_none() -> None:
    with shared(None) as found:
        assert found is None


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.np, "ascontiguousarray", refuse)
    line = r"the rows for worker processes .*No space left.*; TMPDIR=FOLDER puts them elsewhere"
    with pytest.raises(NoRoom, match=line), shared(of_everything()):
        raise AssertionError

"""Data sets for worker processes: one copy of the rows, which each process may read and change for itself."""

import errno
import io
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import NoRoom
from fedskew.data.dataset import Dataset, SharedDataset, mapped, shared


def full_dataset(columns: int = 7) -> Dataset:
    """Return a data set with all optional parts, and with an odd number of bytes."""
    drawn = np.random.default_rng(0)
    y = np.arange(3001) % 2
    return Dataset(
        x=drawn.integers(0, 2, (3001, columns)).astype(np.float32),
        y=y,
        x_test=drawn.integers(0, 2, (5, columns)).astype(np.float32),
        y_test=y[:5],
        classes=("no", "yes"),
        groups=np.arange(3001) % 3,
        group_names=("a", "b", "ß"),
        texts=([f"text {i}" for i in range(3001)], ["x"] * 5),
        sensitive="sex" if columns else "",
        name="everything",
        notes="n",
    )


class Descriptor:
    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        return os.dup(self.number)


def received(found: SharedDataset | None) -> Dataset:
    """Return the data set as a worker receives it."""
    assert found is not None
    return mapped(Descriptor(found.file.fileno()), found.places, found.rest)


@pytest.mark.parametrize(
    "data",
    [
        full_dataset(),
        full_dataset(columns=0),
        Dataset(
            x=np.asfortranarray(np.eye(9)),
            y=np.arange(9),
            x_test=np.eye(9),
            y_test=np.arange(9),
            classes=(*"abcdefghi",),
        ),
    ],
    ids=["odd bytes", "no columns", "columns first"],
)
def test_worker_receives_the_same_data(data: Dataset) -> None:
    with shared(data) as found:
        got = received(found)
    assert type(got) is Dataset
    for name, value in vars(data).items():
        if isinstance(value, np.ndarray):
            mine = getattr(got, name)
            assert type(mine) is np.ndarray
            assert mine.flags.aligned
            np.testing.assert_array_equal(mine, value, strict=True)
        else:
            assert getattr(got, name) == value


def test_rows_are_mapped_and_changes_stay_in_the_worker() -> None:
    data = full_dataset()
    with shared(data) as found:
        one, other = received(found), received(found)
    assert not one.x.flags.owndata
    one.x[0] = 77
    assert np.array_equal(other.x, data.x)


def add_up(data: Dataset, answers: Connection) -> None:
    answers.send((type(data).__name__, int(data.x.sum()), data.group_names))
    answers.close()


def test_started_process_receives_the_data_and_no_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data, context = full_dataset(), multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    with shared(data) as found:
        process = context.Process(target=add_up, args=(found, far), daemon=True)
        process.start()
        assert list(tmp_path.iterdir()) == []
    try:
        assert near.poll(60), f"no answer; exit code {process.exitcode}"
        assert near.recv() == ("Dataset", int(data.x.sum()), ("a", "b", "ß"))
        process.join(10)
        assert process.exitcode == 0
    finally:
        process.kill()


def test_full_disk_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, block: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedskew.data.dataset.TemporaryFile", Full)
    with pytest.raises(NoRoom, match=r"No space left.*; set TMPDIR=FOLDER to write elsewhere"), shared(full_dataset()):
        raise AssertionError

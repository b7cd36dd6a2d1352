"""The stored preprocessing gives the inputs that the loader gave, and names what no training row held."""

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from fedskew.data.dataset import Dataset
from fedskew.data.datasets.heart import CSV, Heart
from fedskew.data.datasets.images import Digits, carried
from fedskew.data.datasets.table import TableData
from fedskew.data.preprocessing import Angle, Array, Number, Preprocessing, Tabular, Text, Words, as_array, as_it_is
from fedskew.data.tables.columns import cells_of
from fedskew.data.tables.summaries import fitted

WORDS = ("good", "bad", "slow", "fast")


def visits(path: Path, rows: int, seed: int) -> Path:
    """A table with a column of each kind."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "ill": rng.choice(["no", "yes"], rows),
            "age": rng.normal(50, 9, rows).round(2),
            "ward": rng.choice(["A", "B", None], rows),
            "seen": pd.date_range("2020-01-01", periods=rows, freq="7h").astype(str),
            "note": [f"{' '.join(rng.choice(WORDS, 5))} {i}" for i in range(rows)],
            "dose": np.where(rng.random(rows) < 0.2, np.nan, rng.integers(0, 9, rows)),
            "smokes": rng.random(rows) < 0.5,
        }
    )
    frame.to_csv(path, index=False)
    return path


def stored(made: Preprocessing | None) -> Preprocessing:
    """The preprocessing after a way through JSON."""
    return msgspec.json.decode(msgspec.json.encode(made), type=Preprocessing)


def test_stored_preprocessing_of_a_table_gives_its_test_rows_to_the_last_bit(tmp_path: Path) -> None:
    visits(tmp_path / "train.csv", 90, 0)
    test = visits(tmp_path / "test.csv", 40, 1)
    data = TableData(path=str(tmp_path / "train.csv"), label="ill", test=str(test)).load()
    made = stored(data.preprocessing)
    assert isinstance(made, Tabular)
    assert [type(part) for part in made.columns] == [Number, Words, Number, Text, Number, Number]
    assert made.target == "ill"
    frame = pd.read_csv(test)
    assert np.array_equal(made(cells_of(frame, made)), data.x_test)


@pytest.mark.parametrize(("source", "kind"), [(Heart(), Tabular), (Digits(), Array)], ids=["heart", "digits"])
def test_stored_preprocessing_of_cells_and_pixels_gives_the_rows(source: Heart | Digits, kind: type) -> None:
    data = source.load()
    made = stored(data.preprocessing)
    assert isinstance(made, kind)
    rows = made(cells_of(pd.read_csv(CSV), made) if kind is Tabular else carried()[0])
    assert sorted(map(bytes, rows)) == sorted(map(bytes, np.concatenate([data.x, data.x_test])))


def test_rows_that_no_training_row_resembles_are_named() -> None:
    age = Number(name="age", low=18, high=90, mean=50, scale=10)
    found = {what: rows.tolist() for rows, what in age.unseen(np.array([17, 18, 90, 91, np.nan]))}
    assert found == {"outside 18 to 90": [True, False, False, True, False], "missing": [False] * 4 + [True]}
    ward = Words(name="ward", known=("A", "B"), others=("C",))
    found = {what: rows.tolist() for rows, what in ward.unseen(np.array(["A", "C", "X", ""], dtype=object))}
    assert found == {"unknown, such as 'X'": [False, False, True, False], "missing": [False, False, False, True]}
    wind = Angle(name="wind", words=("N", "E", "S", "W"))
    assert [rows.tolist() for rows, _ in wind.unseen(np.array(["N", "Q", ""], dtype=object))] == [[False, True, False]]
    pixels = as_array(np.array([[0, 16], [3, 5]]), divisor=16)
    assert [rows.tolist() for rows, _ in pixels.unseen(np.array([[1, 2], [-1, 2]]))] == [[False, True]]


def test_numbers_that_stand_for_a_missing_value_become_the_fill() -> None:
    part = Number(name="chol", mean=200, scale=50, missing=(0.0,), marked=True)
    assert part.encode(np.array([250.0, 0.0, np.nan])).tolist() == [[1, 0], [0, 1], [0, 1]]


def test_own_arrays_stay_as_they_are() -> None:
    x = np.arange(6.0).reshape(3, 2)
    assert as_it_is(x, ())(x) is x
    named = as_it_is(x, ("a", "b"))
    assert np.array_equal(named({"b": x[:, 1], "a": x[:, 0]}), x.astype(np.float32))
    assert named({"a": np.array([np.nan]), "b": np.array([9.0])}).tolist() == [[2, 9]], "the mean of the training rows"
    y = np.array([0, 1, 0])
    assert Dataset(x=x, y=y, x_test=x, y_test=y, classes=("a", "b")).preprocessing is None


def test_inputs_are_decoded_into_the_cells_that_they_were_made_from():
    numbers = np.array([1.0, 2, np.nan, 7, 5])
    words = np.array(["b", "", "a", "a", "c"], dtype=object)
    months = np.array([1.0, 12, 6, 0, np.nan])
    winds = np.array(["N", "S", "", "W", "E"], dtype=object)
    parts = [Number(name="n"), Words(name="w", known=("a", "b")), Angle(name="m", period=12)]
    parts += [Angle(name="d", words=("N", "E", "S", "W"))]
    cells = {"n": numbers, "w": words, "m": months, "d": winds}
    for one_hot in (True, False):
        known, x = fitted(parts, cells, slice(5), one_hot=one_hot)
        back = {part.name: part.decode(made) for part, made in known.parts(x)}
        np.testing.assert_allclose(back["n"], numbers, rtol=1e-6)
        assert back["w"].tolist() == ["b", "", "a", "a", ""]
        np.testing.assert_allclose(back["m"], [1, 0, 6, 0, np.nan], atol=1e-4)
        assert back["d"].tolist() == winds.tolist()
    assert Number(name="n", mean=5).decode(np.zeros((1, 1))).tolist() == [5], "the mean, as no training row had a gap"
    marked = Number(name="n", mean=2, scale=3, marked=True)
    np.testing.assert_allclose(marked.decode(marked.encode(numbers)), numbers)
    pixels = np.arange(24.0).reshape(2, 3, 2, 2)
    array = as_array(pixels, divisor=255, mean=np.full((3, 1, 1), 0.5), scale=np.full((3, 1, 1), 0.2))
    np.testing.assert_allclose(array.decode(array(pixels)), pixels, atol=1e-4)

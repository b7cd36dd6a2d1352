"""Columns of any kind as numbers."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedskew.data.preprocessing import TEXT_WIDTH
from fedskew.data.tables.columns import strings
from tests.tables import fitted_to


def test_columns_of_every_type():
    n = 100
    rng = np.random.default_rng(0)
    words = np.array(["alpha", "beta", "gamma", "delta"])
    table = pa.table(
        {
            "number": rng.normal(5, 2, n),
            "flag": rng.random(n) < 0.5,
            "time": pa.array(pd.date_range("2020-01-01", periods=n).to_numpy()),
            "day": pa.array(pd.date_range("2020-01-01", periods=n).date),
            "zoned": pa.array(pd.date_range("2020-01-01", periods=n, tz="Europe/Zurich")),
            "colour": np.array(["red", "blue"])[rng.integers(0, 2, n)],
            "remark": [" ".join(rng.choice(words, 4)) + f" {i}" for i in range(n)],
            "id": [f"x{i}" for i in range(n)],
            "row": np.arange(n),
            "same": np.ones(n),
            "empty": pa.nulls(n),
            "list": [[1, 2]] * n,
        }
    )
    encode = fitted_to(table)
    x = encode(table)
    assert x.shape == (n, 1 + 1 + 3 + 2 + TEXT_WIDTH)
    assert np.isfinite(x).all()
    assert x[:, :5].std(0) == pytest.approx(np.ones(5), rel=1e-4)
    for k in (2, 3, 4):
        # equal steps; an hour more or less when the clocks change
        assert np.diff(x[:, k]) == pytest.approx(np.full(n - 1, np.sqrt(12 / (n**2 - 1))), rel=0.06)
    left_out = {note.split("'")[1] for note in encode.notes if "left out" in note}
    assert left_out == {"id", "row", "same", "empty", "list"}
    assert any("'remark': text, 100 different values" in note for note in encode.notes)


def test_missing_words_are_zeros_and_counted():
    encode = fitted_to(pa.table({"colour": ["red", "blue", None] * 5}))
    assert encode.notes == ("column 'colour': 5 values missing, all zeros",)
    assert encode(pa.table({"colour": [None, "red", "green"]})).tolist() == [[0, 0], [0, 1], [0, 0]]


@pytest.mark.parametrize(
    ("rows", "notes"), [((), []), ((3,), ["column 'amount': 1 missing, not numbers or too large, set to the mean"])]
)
def test_numbers_missing_in_other_rows_only_are_counted(rows, notes):
    """The preprocessing was fitted to rows without such gaps, so it has no column that marks them."""
    table = pa.table({"amount": [float(i) for i in range(20)], "colour": ["red", "blue"] * 10})
    encode = fitted_to(table)
    other = pa.table({"amount": [None if i in rows else float(i) for i in range(20)], "colour": [None] * 20})
    assert encode.notes == ()
    assert encode.gaps(other) == notes
    assert encode(other)[3, 0] == (0 if rows else encode(table)[3, 0])
    assert fitted_to(other).gaps(other) == [], "noted and marked at fitting"


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200, 1.5e308])
@pytest.mark.filterwarnings("error")
def test_numbers_of_any_size_are_standardised(size):
    """They may be so large that the sum of their squares is infinite."""
    table = pa.table({"a": [size, -size] * 10, "b": [0.0, 1.0] * 10})
    assert fitted_to(table)(table)[:, 0].tolist() == [1.0, -1.0] * 10


@pytest.mark.filterwarnings("error")
def test_number_too_large_for_float32_once_standardised_counts_as_missing():
    encode = fitted_to(pa.table({"a": [1.0, 2.0, 3.0]}))
    other = pa.table({"a": [1e300, 2.0, -1e39, 1e30]})
    assert np.isfinite(encode(other)).all()
    assert encode(other)[:3, 0].tolist() == [0, 0, 0]
    assert encode.gaps(other) == ["column 'a': 2 missing, not numbers or too large, set to the mean"]


def test_whole_numbers_beyond_64_bits_are_words() -> None:
    assert strings(pd.Series([1e19, 2.0, np.nan])).tolist() == ["1e+19", "2.0", ""]
    assert strings(pd.Series([2.0**53, 2.0])).tolist() == ["9007199254740992", "2"]

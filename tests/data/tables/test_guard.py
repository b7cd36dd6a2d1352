"""Columns of every type: no count of few rows leaves, and no type ends in an error."""

from datetime import time
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedskew.data.tables.guard import shared

FEW, ROWS = 5, 1000

COLUMNS = {
    "infinite": pa.array([np.inf, *np.linspace(0, 1, ROWS - 1)]),
    "list": pa.array([[1]] * (ROWS - 1) + [None]),
    "bytes": pa.array([b"x"] * (ROWS - 1) + [None]),
    "category": pa.array(["a"] * 990 + ["b"] * 7 + ["rare"] * 3).dictionary_encode(),
    "numbered category": pa.array([1] * 990 + [2] * 7 + [3] * 3).dictionary_encode(),
    "boolean": pa.array([True] * 997 + [False] * 2 + [None]),
    "decimal": pa.array([Decimal("1.25")] * 997 + [None] * 3),
    "time": pa.array(pd.to_datetime(["2026-01-01"] * 997 + [None] * 3)),
    "time of day": pa.array([time(12)] * 997 + [None] * 3),
    "duration": pa.array([0] * 997 + [None] * 3, type=pa.duration("s")),
    "long text": pa.array(["a"] * 997 + ["rare"] * 3, type=pa.large_string()),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_no_count_of_few_rows_leaves_and_no_type_ends_in_an_error(name):
    held = shared(pa.table({"column": COLUMNS[name]}), FEW)[0].columns["column"]
    counts = [
        held.valid,
        held.rows - held.valid,
        held.numbers.rows,
        held.valid - held.numbers.rows,
        *held.words.values(),
    ]
    assert min(count for count in counts if count) >= FEW
    assert "rare" not in held.words
    assert "3" not in held.words


@pytest.mark.parametrize("name", COLUMNS)
def test_without_a_guard_no_type_ends_in_an_error(name):
    assert shared(pa.table({"column": COLUMNS[name]}), 1)[0].columns["column"].rows == ROWS

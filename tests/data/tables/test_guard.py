"""Mean and deviation of numbers, also of sites together, against exact fractions."""

import math
from datetime import time
from decimal import Decimal
from fractions import Fraction

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedskew.data.tables.guard import moments, shared
from fedskew.data.tables.summaries import Moments, pooled

COLUMNS = {
    "normal": lambda rng: rng.standard_normal(997),
    "small deviation": lambda rng: 1e9 + rng.standard_normal(997),
    "every exponent": lambda rng: rng.standard_normal(997) * 10.0 ** rng.uniform(-150, 150, 997),
    "huge": lambda rng: rng.standard_normal(997) * 1e307,
    "largest": lambda rng: rng.choice([-1, 1], 997) * np.finfo(float).max,
    "tiny": lambda rng: rng.standard_normal(997) * 1e-307,
    "whole": lambda rng: rng.integers(-50, 50, 997).astype(float),
    "zero": lambda rng: np.zeros(5),
}


def exact(values: np.ndarray) -> tuple[float, float]:
    """Return mean and deviation without rounding errors before the last step."""
    numbers = [Fraction(value) for value in values.tolist()]
    mean = sum(numbers, Fraction()) / len(numbers)
    variance = sum(((number - mean) ** 2 for number in numbers), Fraction()) / len(numbers)
    half = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2
    return float(mean), math.ldexp(math.sqrt(variance / Fraction(4) ** half), half)


@pytest.mark.parametrize("name", COLUMNS)
def test_any_split_and_order_gives_the_exact_numbers_to_1e_12_of_the_largest(name):
    rng = np.random.default_rng(1)
    values = COLUMNS[name](rng)
    largest = np.abs(values).max()
    for sites in (1, 2, 7):
        site = rng.integers(0, sites, len(values))
        parts = [moments(values[site == k]) for k in range(sites)]
        assert parts == [moments(np.flip(values[site == k])) for k in range(sites)], "in any order of a site's rows"
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(parts), type=list[Moments])
        for together in (pooled(sent), pooled(sent[::-1])):
            assert (together.mean, together.deviation) == pytest.approx(exact(values), rel=0, abs=1e-12 * largest)
            assert (together.rows, together.low, together.high) == (len(values), values.min(), values.max())
        assert sites > 1 or pooled(sent) == sent[0], "one site keeps its bits"


@pytest.mark.parametrize("name", ["normal", "small deviation", "whole", "every exponent", "huge", "tiny"])
def test_the_deviation_of_one_site_has_1e_12_of_its_own(name):
    values = COLUMNS[name](np.random.default_rng(2))
    assert moments(values).deviation == pytest.approx(exact(values)[1], rel=1e-12)


def test_equal_numbers_have_no_deviation():
    """NumPy's standard deviation of equal numbers 0.1 is 1e-17, because their mean is rounded."""
    together = pooled([moments(np.full(997, 0.1)), moments(np.full(3, 0.1))])
    assert (together.mean, together.deviation) == (0.1, 0.0)


def test_the_deviation_is_at_most_the_largest_number():
    """The sum over 130 of the largest numbers is rounded up."""
    largest = np.finfo(float).max
    assert moments(np.repeat([-largest, largest], 65)).deviation == largest


def test_a_site_whose_numbers_no_table_has_makes_no_infinite_scale():
    """Its mean and its deviation are both the largest number there is."""
    largest = np.finfo(float).max
    parts = [Moments(rows=3, mean=mean, deviation=largest, low=0.0, high=1.0) for mean in (largest, -largest)]
    assert pooled(parts).deviation == largest
    assert pooled([]) == Moments()


FEW, ROWS = 5, 1000

EVERY_TYPE = {
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


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_no_count_of_few_rows_leaves_and_no_type_ends_in_an_error(name):
    table = pa.table({"column": EVERY_TYPE[name]})
    assert shared(table, 1)[0].columns["column"].rows == ROWS
    held = shared(table, FEW)[0].columns["column"]
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

"""Exact sums: any split of the rows gives the same mean and deviation."""

import math
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from fedskew.data.tables.summaries import BLOCK, Moments, exact_sum, mean_and_deviation, moments

COLUMNS = {
    "normal": lambda rng: rng.standard_normal(997),
    "small deviation": lambda rng: 1e9 + rng.standard_normal(997),
    "every exponent": lambda rng: rng.standard_normal(997) * 10.0 ** rng.uniform(-150, 150, 997),
    "huge": lambda rng: rng.standard_normal(997) * 1e307,
    "tiny": lambda rng: rng.standard_normal(997) * 1e-307,
    "whole": lambda rng: rng.integers(-50, 50, 997).astype(float),
    "zero": lambda rng: np.zeros(5),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_sum_is_exact(name):
    values = COLUMNS[name](np.random.default_rng(0))
    values = values / 2.0 ** np.frexp(np.abs(values).max())[1]
    found = sum(map(Fraction, exact_sum(values)), Fraction())
    assert found == sum(map(Fraction, values.tolist()), Fraction())


def test_sum_of_many_numbers_is_exact():
    values = np.random.default_rng(0).standard_normal(3 * BLOCK + 5) / 8
    assert float(sum(map(Fraction, exact_sum(values)), Fraction())) == math.fsum(values)


@pytest.mark.parametrize("name", COLUMNS)
def test_any_split_and_order_gives_the_same_bits(name):
    rng = np.random.default_rng(1)
    values = COLUMNS[name](rng)
    whole = mean_and_deviation([moments(values)])
    for sites in (2, 7):
        site = rng.integers(0, sites, len(values))
        parts = [moments(values[site == k]) for k in range(sites)]
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(parts), type=list[Moments])
        assert mean_and_deviation(sent) == whole == mean_and_deviation(sent[::-1])


@pytest.mark.parametrize("name", ["normal", "small deviation", "whole", "zero"])
def test_agrees_with_numpy(name):
    values = COLUMNS[name](np.random.default_rng(2))
    mean, deviation = mean_and_deviation([moments(values)])
    assert mean == pytest.approx(values.mean(), rel=1e-15, abs=1e-15)
    assert deviation == pytest.approx(values.std(), rel=1e-12)


def test_equal_numbers_have_no_deviation():
    """NumPy's standard deviation of equal numbers 0.1 is 1e-17, because their mean is rounded."""
    assert mean_and_deviation([moments(np.full(997, 0.1)), moments(np.full(3, 0.1))]) == (0.1, 0.0)


def test_moments_follow_from_the_sums_alone():
    """Other numbers with the same sums have the same moments: the largest number does not show."""
    one = np.repeat([2.0, 6.0, 7.0], 300)
    other = one.copy()
    other[[0, 300, 600]] = 3, 4, 8
    first, second = moments(one), moments(other)
    assert (first.sum, first.squares, first.power) == (second.sum, second.squares, second.power)
    assert (first.high, second.high) == (7, 8)

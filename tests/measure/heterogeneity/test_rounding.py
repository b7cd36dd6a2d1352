"""Small counts are rounded without bias."""

import numpy as np
import pytest

from fedskew.measure.heterogeneity.rounding import rounded, rounded_alone, rounded_pairs

ROWS = ([3, 50], [3, 4], [1, 6], [4, 4, 4], [1, 0, 2, 1, 90, 3, 4, 2], [2, 1, 8], [1, 1, 6], [9, 7, 0], [2, 5, 3])


@pytest.mark.parametrize("row", ROWS)
def test_counts_are_none_or_enough_and_right_on_average(row):
    rng = np.random.default_rng(0)
    drawn = np.array([rounded(np.array(row), 5, rng) for _ in range(1500)])
    assert ((drawn == 0) | (drawn >= 5)).all()
    assert (drawn.sum(1) == sum(row)).all()
    # six standard errors
    assert np.abs(drawn.mean(0) - row) == pytest.approx(0, abs=6 * 5 / np.sqrt(1500))


def test_rows_of_too_few_become_zero_and_one_allows_all():
    rng = np.random.default_rng(0)
    assert rounded(np.array([[1, 2], [0, 0], [0, 9]]), 5, rng).tolist() == [[0, 0], [0, 0], [0, 9]]
    assert rounded(np.array([1, 2]), 1, rng).tolist() == [1, 2]


def test_counts_in_any_order_in_memory_are_rounded():
    counts = np.array([[3, 50], [2, 40], [1, 30]])
    drawn = rounded(np.asfortranarray(counts), 5, np.random.default_rng(0))
    assert ((drawn == 0) | (drawn >= 5)).all()
    assert drawn.sum(1).tolist() == counts.sum(1).tolist()


def test_counts_rounded_alone_are_none_or_enough_and_right_on_average():
    counts = np.arange(9)
    drawn = np.array([rounded_alone(counts, 5, rng) for rng in map(np.random.default_rng, range(1500))])
    assert ((drawn == 0) | (drawn >= 5)).all()
    assert (drawn[:, 5:] == counts[5:]).all()
    assert (drawn[:, 0] == 0).all()
    assert drawn.mean(0) == pytest.approx(counts, abs=6 * 2.5 / np.sqrt(1500))
    assert rounded_alone(counts, 1, np.random.default_rng(0)).tolist() == counts.tolist()


def test_pairs_are_rounded_in_the_same_way():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 30, 2000)
    hits = rng.binomial(rows, 0.3)
    one, other = (
        np.mean([make() for _ in range(30)], axis=0)
        for make in (
            lambda: rounded_pairs(hits, rows, 5, rng),
            lambda: rounded(np.stack([hits, rows - hits], axis=1), 5, rng)[:, 0],
        )
    )
    assert np.abs(one - other).max() < 6
    assert np.abs((one - other).mean()) < 0.07
    once = rounded_pairs(hits, rows, 5, rng)
    assert ((once == 0) | (once >= 5)).all()
    assert ((rows - once == 0) | (rows - once >= 5) | (rows < 5)).all()

"""Parts of the variance, the chance that an order flips, and how many rows or seeds decide."""

from math import sqrt

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedskew.measure.statistics import (
    Components,
    Crossed,
    Overlapping,
    Resampled,
    over_common_rows,
    over_splits,
    shared_by_rows,
    variance_components,
    variance_with,
)
from fedskew.report.tables import compared

TABLE = np.array([[[10.0, 12.0], [16.0, 18.0]], [[13.0, 15.0], [25.0, 23.0]]])
"""Two methods, two partitions, two seeds. Cells 11, 17; 14, 24. Mean squares: partition 128, interaction 8, within 2."""


def test_a_hand_worked_table() -> None:
    found = variance_components(TABLE)
    assert found == pytest.approx(Components(split=0, partition=(128 - 8) / 4, seed=2, interaction=(8 - 2) / 2))
    assert found.shares() == pytest.approx(Components(0, 30 / 35, 2 / 35, 3 / 35))


def test_the_choice_of_test_rows_is_added_or_a_part_of_the_partition() -> None:
    assert variance_components(TABLE, 5.0)[:2] == pytest.approx((5, 30))
    assert variance_components(TABLE, 5.0, redrawn=True)[:2] == pytest.approx((5, 25))
    assert variance_components(TABLE, 50.0, redrawn=True)[:2] == pytest.approx((30, 0))
    assert variance_components(TABLE, 5.0, redrawn=True, dealt=False)[:2] == pytest.approx((30, 0))


def test_without_variance_there_are_no_shares() -> None:
    found = variance_components(np.ones((2, 3, 2)))
    assert found == Components(0, 0, 0, 0)
    assert np.isnan(found.shares()).all()


def test_the_estimator_is_unbiased() -> None:
    rng, true = np.random.default_rng(0), np.array([4.0, 1.0, 2.25])
    draws = []
    for _ in range(3000):
        partition, seed, interaction = (
            rng.normal(size=shape) * sqrt(variance)
            for shape, variance in zip(((1, 6, 1), (3, 6, 4), (3, 6, 1)), true, strict=True)
        )
        draws.append(variance_components(np.arange(3.0)[:, None, None] + partition + seed + interaction)[1:])
    # three standard errors of the mean of 3,000 draws
    assert np.abs(np.mean(draws, axis=0) - true) == pytest.approx(np.zeros(3), abs=0.17)


def test_rows_that_methods_share() -> None:
    # of each pair the covariance is 2/3, over four rows
    values = np.array([[1.0, 0, 1, -2], [1, 0, 1, -2], [1, 0, 1, -2]])
    assert shared_by_rows(values) == pytest.approx(2 / 4)
    assert shared_by_rows(np.array([[1.0, -1, 0], [-1, 1, 0]])) == 0


def test_the_chance_of_a_flip_by_hand() -> None:
    found = over_splits([1.0, 3.0, 5.0, 7.0], ratio=0.0)
    error = stats.sem([1, 3, 5, 7])
    assert found.flips() == pytest.approx(stats.t.sf(4 / (sqrt(2) * error), 3))
    assert over_splits([-1.0, 1.0], ratio=0.0).flips() == 0.5
    assert np.isnan(over_splits([1.0, 1.0], ratio=0.0).flips())


def test_the_chance_of_a_flip_is_how_often_a_repeat_flips() -> None:
    rng = np.random.default_rng(1)
    means = rng.uniform(-1, 1, size=10_000)
    first, second = (means[:, None] + rng.normal(size=(10_000, 30)) for _ in range(2))
    flipped = (first.mean(1) > 0) != (second.mean(1) > 0)
    expected = [over_splits(values, ratio=0.0).flips() for values in first.tolist()]
    assert np.mean(expected) == pytest.approx(flipped.mean(), abs=0.01)  # about 0.1


@pytest.mark.parametrize(
    "estimate",
    [
        Crossed(0.01, seeds=5, rows=300, by_seed=1e-5, by_row=0.05, residual=0.01),
        Resampled(0.01, seeds=5, variance=3e-4, ratio=0.5),
        over_common_rows(
            np.where(
                np.random.default_rng(2).random((5, 400)) < 0.3,
                np.random.default_rng(7).normal(0.03, 1, (5, 400)),
                np.nan,
            ),
            0.4,
        ),
    ],
)
def test_the_factor_on_the_rows_is_the_smallest_that_decides(estimate) -> None:
    factor = estimate.rows_to_decide()
    assert factor > 1
    assert abs(estimate.mean) > estimate.with_rows(factor).half()
    assert abs(estimate.mean) <= estimate.with_rows(factor - 0.1).half()


def test_no_number_of_rows_decides_where_seeds_differ() -> None:
    assert Crossed(0.01, seeds=5, rows=300, by_seed=1e-2, by_row=0.05, residual=0.01).rows_to_decide() == 0


def test_more_seeds_narrow_only_what_seeds_vary() -> None:
    # means 1 and 5: variance 8; within 2: each mean has 1 by its two seeds, and 7 of its own
    table = np.array([[0.0, 2.0], [4.0, 6.0]])
    assert variance_with(2, table) == pytest.approx(1)
    assert variance_with(8, table) == pytest.approx((7 + 2 / 8) / 8)
    # means differ less than their seeds explain: all is by the seeds
    assert variance_with(8, np.array([[0.0, 2.0], [0.0, 2.0]])) == pytest.approx(2 / 8 / 1)


def test_more_rows_narrow_what_seeds_vary_by_chance_of_the_rows() -> None:
    """Seeds without an effect of their own: their means vary by the residual only, and all parts fall as 1 / rows."""
    now = Crossed(0.01, seeds=5, rows=100, by_seed=0.2 / 100, by_row=0.2 / 5, residual=0.2)
    assert [error for error, _ in now.with_rows(4).errors()] == pytest.approx([e / 2 for e, _ in now.errors()])


@pytest.mark.parametrize("seeds", [0.0, 0.3])
def test_more_rows_leave_what_seeds_vary_between_folds(seeds: float) -> None:
    rng, found = np.random.default_rng(0), []
    for number in (1000, 16_000):
        fold = np.arange(number) % 5 == np.arange(5)[:, None]
        values = rng.normal(0, 0.1, size=(5, number)) + seeds * np.array([-1, -0.5, 0, 0.5, 1])[:, None]
        found.append(over_common_rows(np.where(fold, values, np.nan), 0.25))
    few, many = found
    expected = few.with_rows(16)
    assert expected.by_rows == pytest.approx(many.by_rows, rel=0.1)
    assert expected.by_split == pytest.approx(seeds**2 * 2.5 / 4, abs=0.005)


@pytest.mark.parametrize(
    "whole",
    [
        Crossed(0.02, seeds=5, rows=100, by_seed=1e-4, by_row=0.1, residual=1e-3),
        Overlapping(0.02, seeds=5, by_split=1e-4, ratio=0.0, shared=1e-3, shared_variance=1e-7, by_rows=0.0),
    ],
)
def test_training_seeds_do_not_decide_where_the_test_rows_are_too_few(whole) -> None:
    """Partitions whose means vary by their training seeds only: more of these leave the chance of the test rows."""
    means = whole.mean + 0.01 * np.array([-1.0, -1, 0, 1, 1])
    table = means[:, None] + np.array([-0.02, 0.02])
    row = compared(pd.Series(means), whole, np.nan, 0.0, 0.05, table)
    assert abs(whole.mean) > whole.half() * variance_with(100, table) ** 0.5
    assert row["repeats_to_decide"] == 0

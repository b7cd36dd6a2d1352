"""Faces from sums that leave each site: what a half counts, and what varies by chance."""

import numpy as np
import pytest

from fedskew.measure.heterogeneity.faces import opposition
from fedskew.measure.heterogeneity.sites import face_counts, halves


def test_rows_of_one_half_are_counted_by_what_the_other_half_made():
    """Half 0 makes kinds in the order low, high and half 1 in the order high, low; only half 0 has a classifier."""
    y = np.zeros(41, dtype=np.int64)
    half, none = halves(y), np.zeros(1)
    asked = {
        "classifiers": np.array([[[1.0, 0.0]], [[0.0, 0.0]]]),
        "thresholds": np.array([[0.5], [0.5]]),
        "centre": none,
        "stretch": none + 1,
        "shift": none,
        "lines": np.ones((2, 1, 1)),
        "centres": np.array([[[-1.0], [1.0]], [[1.0], [-1.0]]]),
    }
    made = face_counts(np.ones((41, 1)), y, 1, asked, None)
    first, second = (half == 0).sum(), (half == 1).sum()
    assert made["rows by kind"].tolist() == [[first, second]]
    assert made["beyond thresholds"][:, 0, 0].tolist() == [[second, 0], [0, first]]


@pytest.mark.parametrize("share", [0.5, 0.2, 0.01])
def test_one_of_two_sites_tells_all_of_the_other(share):
    assert opposition(np.array([share, 1 - share])) == pytest.approx(np.sqrt(2))


@pytest.mark.parametrize("sites", [3, 6, 100])
def test_equal_sites_oppose_each_other_less_the_more_they_are(sites):
    expected = np.sqrt(1 + 2 / np.pi * np.arcsin(1 / (sites - 1)))
    assert opposition(np.full(sites, 1 / sites)) == pytest.approx(expected)

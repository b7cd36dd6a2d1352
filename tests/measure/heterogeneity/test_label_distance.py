"""Label distance: its definition, its bounds, and what chance gives."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedskew.measure.heterogeneity import label_distance, label_distance_by_chance

QUICK = settings(max_examples=80)
COUNTS = hnp.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(0, 50))


@QUICK
@given(COUNTS)
def test_label_distance_is_bounded_and_equals_its_definition(counts):
    if not counts.sum():
        return
    n = counts.sum()
    expected = 0.0
    for row in counts:
        if row.sum():
            tv = 0.5 * sum(abs(row[c] / row.sum() - counts[:, c].sum() / n) for c in range(counts.shape[1]))
            expected += row.sum() / n * tv
    got = label_distance(counts)
    assert got == pytest.approx(expected, abs=1e-12)
    assert 0 <= got <= 1 - 1 / min(counts.shape) + 1e-12


@QUICK
@given(COUNTS)
def test_label_distance_is_zero_exactly_when_clients_are_identical(counts):
    held = counts[counts.sum(1) > 0]
    if not len(held):
        return
    # identical proportions: every pair of rows is proportional, in whole numbers
    identical = all((np.outer(a, b) == np.outer(b, a)).all() for a in held for b in held)
    assert (label_distance(counts) < 1e-12) == identical


def test_label_distance_weighs_clients_by_their_rows():
    """(30, 0) and (0, 10): p = (3/4, 1/4), distances 1/4 and 3/4, weighted 3/4 x 1/4 + 1/4 x 3/4."""
    assert label_distance(np.array([[30, 0], [0, 10]])) == pytest.approx(0.375)


def test_a_client_without_rows_does_not_count():
    counts = np.array([[5, 7], [9, 2]])
    more = np.vstack([counts, [[0, 0]]])
    assert label_distance(more) == pytest.approx(label_distance(counts))
    assert label_distance_by_chance(more) == pytest.approx(label_distance_by_chance(counts))


@pytest.mark.parametrize(
    ("sizes", "classes", "tolerance"),
    [
        ([1000, 1000], [500, 500, 500, 500], 0.03),
        ([300, 1700], [900, 600, 400, 100], 0.03),
        ([400] * 5, [500, 500, 500, 500], 0.03),
        ([100, 200, 300, 600, 800], [200, 300, 700, 800], 0.03),
        ([60] * 20, [120] * 10, 0.04),
    ],
    ids=["K2", "K2-ragged", "K5", "K5-ragged", "K20"],
)
def test_label_distance_by_chance_equals_the_mean_of_random_partitions(sizes, classes, tolerance):
    rng, labels = np.random.default_rng(8), np.repeat(np.arange(len(classes)), classes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    found = []
    for _ in range(1500):
        flat = np.bincount(owner * len(classes) + rng.permutation(labels), minlength=len(sizes) * len(classes))
        counts = flat.reshape(len(sizes), len(classes))
        found.append(label_distance(counts))
    assert np.std(found) / np.mean(found) / math.sqrt(1500) < 0.015, "the simulation is sharp enough to tell"
    assert label_distance_by_chance(counts) == pytest.approx(np.mean(found), rel=tolerance)


def test_one_client_is_at_no_distance_by_chance():
    assert label_distance_by_chance(np.array([[20, 30]])) == 0

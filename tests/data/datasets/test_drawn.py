"""Data sets drawn from a generator: the order of draws, and the distributions that their sources describe."""

import numpy as np
import pytest

from fedskew.data.datasets.synthetic import Synthetic, SyntheticSoftmax


def test_softmax_follows_the_listing():
    """Algorithms note 3.2: one generator draws means, labels and features in this order, and nothing else."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((6, 30)) * 0.45
    labels = rng.integers(0, 6, size=12000)
    features = means[labels] + rng.standard_normal((12000, 30))
    permutation = rng.permutation(12000)

    ours = np.random.default_rng(0)
    data = SyntheticSoftmax(test="train").draw(ours)
    assert np.array_equal(data.y, labels)
    assert np.array_equal(data.x, features)
    assert data.x.dtype == np.float64
    assert np.array_equal(data.x_test, features)
    assert np.array_equal(data.y_test, labels)
    assert np.array_equal(ours.permutation(12000), permutation), "the listing goes on with the same generator"


def test_softmax_fresh_rows_are_drawn_after_the_training_rows():
    rng = np.random.default_rng(3)
    means = rng.standard_normal((4, 5)) * 2
    labels = rng.integers(0, 4, size=50)
    features = means[labels] + rng.standard_normal((50, 5))
    fresh_labels = rng.integers(0, 4, size=50)
    fresh = means[fresh_labels] + rng.standard_normal((50, 5))
    data = SyntheticSoftmax(rows=50, features=5, classes=4, spread=2.0, data_seed=3).load()
    assert np.array_equal(data.x, features)
    assert np.array_equal(data.y, labels)
    assert np.array_equal(data.x_test, fresh)
    assert np.array_equal(data.y_test, fresh_labels)


def test_softmax_notes_name_the_test_rows():
    assert "training rows" in SyntheticSoftmax(rows=20, test="train").load().notes
    assert not SyntheticSoftmax(rows=20).load().notes


# synthetic(alpha, beta)


def test_synthetic_labels_follow_each_devices_own_model():
    """The test draws the first device of the IID form again, with the same generator."""
    data = Synthetic(iid=True, devices=3, data_seed=4).load()
    rng = np.random.default_rng(4)
    sizes = (np.floor(rng.lognormal(4, 2, 3)) + 50).clip(max=10_000).astype(int)
    rng.normal(0, 1, 3), rng.normal(0, 1, 3)
    weights = rng.standard_normal((61, 10))
    first = rng.standard_normal((sizes[0], 60)) * np.arange(1, 61) ** -0.6
    kept = sizes[0] - sizes[0] // 5
    assert np.array_equal(data.x[:kept], first[:kept])
    assert np.array_equal(data.y[:kept], (first[:kept] @ weights[:-1] + weights[-1]).argmax(1))
    assert np.bincount(data.groups).tolist() == [n - n // 5 for n in sizes]
    assert len(data.y_test) == sum(n // 5 for n in sizes)


@pytest.mark.parametrize(("scale", "expected"), [("variance", 4.0 + 1 / 60), ("deviation", 16.0 + 1 / 60)])
def test_synthetic_inputs_have_the_variance_of_the_scale(scale, expected):
    """The mean over the 60 features of a device's inputs varies by Var(B_k) + 1 / 60, and a little within the device."""
    data = Synthetic(alpha=0, beta=4, scale=scale, devices=1500, max_rows=60).load()
    means = np.array([data.x[data.groups == k].mean() for k in range(1500)])
    assert means.var() == pytest.approx(expected, rel=0.13)


def test_synthetic_alpha_changes_no_label():
    """A mean u_k of all entries of W_k and b_k adds u_k (1 + sum of x) to every class's score: the largest stays the largest."""
    zero = Synthetic(alpha=0).load()
    for alpha in (0.5, 100.0):
        other = Synthetic(alpha=alpha).load()
        assert np.array_equal(other.x, zero.x)
        assert np.array_equal(other.y, zero.y)

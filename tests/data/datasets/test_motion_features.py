"""Features of motion signals: each family against a closed form."""

import numpy as np
import pytest

from fedskew.data.datasets import uci_har
from fedskew.data.datasets.uci_har import amplitudes, autoregression, correlations, entropy, in_time, motion_features
from fedskew.data.find import CACHE


def test_autoregression_finds_the_process():
    rng = np.random.default_rng(0)
    noise, x = rng.standard_normal((3, 20_000)), np.zeros((3, 20_000))
    for t in range(2, 20_000):
        x[:, t] = 1.2 * x[:, t - 1] - 0.5 * x[:, t - 2] + noise[:, t]
    np.testing.assert_allclose(autoregression(x, 2), np.tile([-1.2, 0.5], (3, 1)), atol=0.02)
    np.testing.assert_allclose(autoregression(x, 4), np.tile([-1.2, 0.5, 0, 0], (3, 1)), atol=0.03)


def test_one_coefficient_by_hand():
    """Burg's first: -2 (1*2 + 2*4) / (1 + 4 + 4 + 16) of 1, 2, 4."""
    assert autoregression(np.array([1.0, 2.0, 4.0]), 1)[0] == pytest.approx(-2 * 10 / 25)


def test_cosine_is_one_line_of_its_spectrum():
    t = np.arange(128)
    a = amplitudes(np.cos(2 * np.pi * 5 * t / 128) + 3)
    assert a.argmax() == 4
    assert a[4] == pytest.approx(0.5)
    np.testing.assert_allclose(np.delete(a, 4), 0, atol=1e-12)


def test_entropy_is_0_for_one_and_1_for_equal_parts():
    assert entropy(np.array([0.0, 7.0, 0.0, 0.0])) == pytest.approx(0, abs=1e-9)
    assert entropy(np.full(8, 3.0)) == pytest.approx(1)


def test_correlations_of_axes():
    a = np.random.default_rng(0).standard_normal(128)
    np.testing.assert_allclose(correlations(np.stack([a, 2 * a + 1, -a])[None]), [[1, -1, -1]])
    assert np.isfinite(correlations(np.zeros((1, 3, 128)))).all()


def test_values_in_time_by_hand():
    x = np.array([[[1.0, 2, 3, 4, 10]]])
    mean, std, deviation, greatest, least, energy, quartiles = in_time(x)[0, :7]
    assert (mean, greatest, least) == (4, 10, 1)
    assert std == pytest.approx(np.sqrt(10))
    assert deviation == 1
    assert energy == pytest.approx(np.log(26))
    assert quartiles == 2


def test_features_are_computed_once_for_the_same_windows(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE, str(tmp_path))
    windows = np.random.default_rng(0).standard_normal((3, 9, 128)).astype(np.float32)
    first = uci_har.kept_features(windows)
    np.testing.assert_array_equal(first, motion_features(windows))
    monkeypatch.setattr(uci_har, "motion_features", lambda windows: np.zeros((len(windows), 491)))
    np.testing.assert_array_equal(uci_har.kept_features(windows), first)
    assert not uci_har.kept_features(windows[:2]).any(), "other windows have other features"


def test_windows_do_not_see_each_other():
    windows = np.random.default_rng(0).standard_normal((1100, 9, 128)).astype(np.float32)
    features = motion_features(windows)
    assert features.shape == (1100, 491)
    assert np.isfinite(features).all()
    order = np.random.default_rng(1).permutation(1100)[:50]
    np.testing.assert_array_equal(motion_features(windows[order]), features[order])
    assert np.isfinite(motion_features(np.zeros((2, 9, 128), dtype=np.float32))).all(), "a device that lies still"


def test_features_need_no_folder_that_can_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE, str(tmp_path / "file" / "cache"))
    windows = np.random.default_rng(0).standard_normal((3, 9, 128)).astype(np.float32)
    np.testing.assert_array_equal(uci_har.kept_features(windows), motion_features(windows))

"""The loaders on the public data sets, against published figures."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.ag_news import AgNews
from fedskew.data.datasets.bitext import BitextSupport
from fedskew.data.datasets.cifar import Cifar10
from fedskew.data.datasets.digits import Digits, carried
from fedskew.data.datasets.mnist import Mnist
from fedskew.data.datasets.newsgroups import Newsgroups
from fedskew.data.datasets.uci_har import FILE, UciHar
from fedskew.data.images import mosaics, standardised
from fedskew.data.texts import words


def real_data() -> Path:
    """The folder of real data sets; skips the test without one, and fails it in CI."""
    folder = os.environ.get("FEDSKEW_DATA")
    if folder:
        return Path(folder)
    message = "FEDSKEW_DATA does not name the folder of the data sets"
    if os.environ.get("CI"):
        pytest.fail(f"{message}, and CI must run the tests on real data")
    pytest.skip(message)


def test_cifar_10_has_the_published_channel_means():
    pixels, labels, classes = mosaics(real_data() / "cifar10_train.npz")
    assert np.bincount(labels).tolist() == [5000] * 10
    assert classes[:3] == ("airplane", "automobile", "bird")
    sums = np.array([np.bincount(pixels[:, c].ravel(), minlength=256) for c in range(3)]) / pixels[:, 0].size
    mean = sums @ np.arange(256) / 255
    std = np.sqrt(sums @ (np.arange(256) / 255) ** 2 - mean**2)
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=5e-5)
    np.testing.assert_allclose(std, [0.2470, 0.2435, 0.2616], atol=5e-5)
    test, test_labels, _ = mosaics(real_data() / "cifar10_test.npz")
    assert np.bincount(test_labels).tolist() == [1000] * 10
    np.testing.assert_allclose(test.mean((0, 2, 3)) / 255, [0.4942, 0.4851, 0.4504], atol=5e-5)
    x, x_test = standardised(pixels[:2000], test[:100])
    assert x.dtype == x_test.dtype == np.float32
    exact = pixels[:2000].astype(np.float64) / 255
    middle, spread = exact.mean((0, 2, 3), keepdims=True), exact.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(x, (exact - middle) / spread, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x_test, (test[:100] / 255 - middle) / spread, rtol=1e-5, atol=1e-6)


def test_mnist_has_the_published_mean_and_deviation():
    with np.load(real_data() / "mnist.npz") as z:
        pixels = z["X_train"] / 255
    assert (round(pixels.mean(), 4), round(pixels.std(), 4)) == (0.1307, 0.3081)
    data = Mnist().load()
    assert data.x.shape == (60000, 1, 28, 28)
    assert data.x_test.shape == (10000, 1, 28, 28)
    assert np.bincount(data.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.x.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert data.x.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)


def test_ag_news_classes_and_a_fixed_choice_of_rows():
    real_data()
    data = AgNews().load()
    assert np.bincount(data.y_test).tolist() == [1900] * 4
    if data.notes:
        assert np.bincount(data.y).tolist() == [8356, 8455, 8518, 8427]
    assert data.x.shape == (len(data.y), 64)
    assert 2 <= data.x.max() < 20_000
    assert data.texts is not None
    assert data.texts[1][0].startswith("Fears for T N pension after talks Unions representing workers at Turner")
    small = AgNews(train_rows=400, test_rows=100).load()
    assert len(small.y) == 400
    assert len(small.y_test) == 100
    assert small.fingerprint() == AgNews(train_rows=400, test_rows=100).load().fingerprint()
    assert small.texts is not None
    assert set(small.texts[0]) <= set(data.texts[0])
    with pytest.raises(BadInput, match="8000 rows are wanted and there are 7600"):
        AgNews(test_rows=8000).load()


def test_some_rows_of_cifar_10_are_always_the_same():
    real_data()
    small, again = (Cifar10(train_rows=500, test_rows=200).load() for _ in range(2))
    assert (len(small.y), len(small.y_test)) == (500, 200)
    assert small.fingerprint() == again.fingerprint()
    np.testing.assert_allclose(small.x.mean((0, 2, 3)), 0, atol=1e-4)
    with pytest.raises(BadInput, match="data set cifar-10: 50001 rows are wanted and there are 50000"):
        Cifar10(train_rows=50001).load()


def test_20_newsgroups_without_headers():
    real_data()
    data = Newsgroups().load()
    assert (len(data.y), len(data.y_test), data.num_classes) == (11314, 7532, 20)
    assert data.classes[0] == "alt.atheism"
    assert data.texts is not None
    assert sum(text.startswith("From:") for text in data.texts[0]) < 30, "posts that are a header, or quote one"


@pytest.mark.parametrize(("labels", "classes"), [("intent", 27), ("category", 11)])
def test_bitext_support_is_split_honestly(labels, classes):
    real_data()
    data = BitextSupport(labels=labels).load()
    assert len(data.y) + len(data.y_test) == 26872
    assert data.num_classes == classes
    assert len(np.unique(data.groups)) == 11
    assert data.texts is not None
    train, test = ({frozenset(words(text)) for text in part} for part in data.texts)
    assert not train & test
    share = np.bincount(data.y_test) / (np.bincount(data.y) + np.bincount(data.y_test))
    assert np.abs(share - 0.2).max() < 0.01
    hard = BitextSupport(labels=labels, labelled=20).load()
    assert np.bincount(hard.y).tolist() == [20] * classes
    assert hard.texts is not None
    assert hard.texts[1] == data.texts[1]
    assert set(hard.texts[0]) <= set(data.texts[0])


# UCI-HAR


@pytest.fixture(scope="module")
def raw_signals():
    with np.load(real_data() / FILE) as z:
        return {key: z[key] for key in z.files}


@pytest.fixture(scope="module")
def signals() -> Dataset:
    real_data()
    return UciHar().load()


def test_uci_har_shapes(signals):
    assert signals.x.shape == (7352, 9, 128)
    assert signals.x_test.shape == (2947, 9, 128)
    assert signals.x.dtype == signals.x_test.dtype == np.float32
    assert signals.shape == (9, 128)
    assert np.bincount(signals.y).tolist() == [1226, 1073, 986, 1286, 1374, 1407]
    assert np.bincount(signals.y_test).tolist() == [496, 471, 420, 491, 532, 537]
    assert signals.classes == (
        "walking",
        "walking upstairs",
        "walking downstairs",
        "sitting",
        "standing",
        "laying",
    )


def test_uci_har_clients_are_people_of_the_training_part_only(signals, raw_signals):
    people, windows = np.unique(signals.groups, return_counts=True)
    assert len(people) == 21
    assert np.array_equal(signals.groups, raw_signals["subject_train"])
    assert len(np.unique(raw_signals["subject_test"])) == 9
    assert not set(raw_signals["subject_test"].tolist()) & set(people.tolist())
    assert windows.min() >= 281
    assert windows.max() <= 409


def test_uci_har_channels_are_standardised_by_the_training_part(signals, raw_signals):
    x = signals.x.astype(np.float64)
    np.testing.assert_allclose(x.mean(axis=(0, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=(0, 2)), 1, atol=1e-5)
    for c in range(9):
        train, test = (raw_signals[f"X_{part}"][:, c].astype(np.float64) for part in ("train", "test"))
        expected = (test - train.mean()) / train.std()
        np.testing.assert_allclose(signals.x_test[:, c], expected, rtol=1e-4, atol=1e-5)


def test_uci_har_as_recorded(signals, raw_signals):
    plain = UciHar(standardise=False).load()
    assert np.array_equal(plain.x, raw_signals["X_train"])
    assert np.array_equal(plain.x_test, raw_signals["X_test"])
    assert np.array_equal(plain.y, signals.y)


# digits


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits().load()


def test_digits_are_read_as_scikit_learn_reads_them():

    for ours, theirs in zip(carried(), load_digits(return_X_y=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_digits_sizes(digits):

    _, labels = load_digits(return_X_y=True)
    n_c = np.bincount(labels)
    assert len(digits.y) + len(digits.y_test) == 1797 == n_c.sum()
    assert digits.shape == (64,)
    assert digits.classes == tuple("0123456789")
    assert digits.num_classes == 10
    # stratified: a fifth of each class
    assert np.abs(np.bincount(digits.y_test) - n_c / 5).max() <= 0.5
    assert np.array_equal(np.bincount(digits.y) + np.bincount(digits.y_test), n_c)
    assert digits.groups is None


def test_digits_rows_are_scikit_learns_each_once(digits):

    pixels, labels = load_digits(return_X_y=True)

    def table(x, y):
        return sorted(map(tuple, np.column_stack([np.rint(x * 16), y]).astype(int).tolist()))

    ours = table(np.concatenate([digits.x, digits.x_test]), np.concatenate([digits.y, digits.y_test]))
    assert ours == table(pixels / 16, labels)
    assert digits.x.dtype == np.float32
    assert digits.x.min() == 0
    assert digits.x.max() == 1


def test_digits_are_the_same_every_time(digits):
    assert Digits().load().fingerprint() == digits.fingerprint()


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_digits_test_fraction(digits, fraction):
    other = Digits(test_fraction=fraction).load()
    n_c = np.bincount(digits.y) + np.bincount(digits.y_test)
    assert np.abs(np.bincount(other.y_test) - fraction * n_c).max() <= 0.5
    assert other.fingerprint() != digits.fingerprint()


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_digits_need_both_parts(fraction):
    with pytest.raises(BadInput, match="test_fraction"):
        Digits(test_fraction=fraction)

"""The loaders on the public data sets, against published figures."""

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedskew.core.errors import BadInput
from fedskew.data import DATASETS
from fedskew.data.datasets.images import Cifar10, Digits, carried, mosaics
from fedskew.data.datasets.labelled_texts import AgNews, BitextSupport
from fedskew.data.datasets.long_texts import Shakespeare, read_speakers
from fedskew.data.datasets.uci_har import UciHar
from fedskew.data.preprocessing import standardised_pixels
from fedskew.data.texts import words
from tests.real import loaded, real_data

FILE = UciHar.files.others[-1][0]


@pytest.mark.parametrize(
    ("name", "shape", "clients", "train", "test"),
    [
        ("digits", (64,), 0, 1438, 359),
        ("heart", (22,), 4, [273, 340], [138, 169]),
        pytest.param(
            "mnist",
            (1, 28, 28),
            0,
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            10000,
            marks=pytest.mark.slow,
        ),
        ("uci-har", (9, 128), 21, [1226, 1073, 986, 1286, 1374, 1407], [496, 471, 420, 491, 532, 537]),
        pytest.param("ag-news", (64,), 0, None, [1900] * 4, marks=pytest.mark.slow),
        pytest.param("20-newsgroups", (256,), 0, 11314, 7532, marks=pytest.mark.slow),
        ("bitext-support", (24,), 11, 21482, 5390),
        ("adult", (64,), 9, [24720, 7841], [12435, 3846]),
    ],
)
def test_data_set_has_the_published_counts(name, shape, clients, train, test):
    """Rows of each class, or in all, in the training and in the test part."""
    data = loaded(name)
    assert data.shape == shape
    assert data.num_classes == DATASETS[name].files.classes
    assert (0 if data.groups is None else len(np.unique(data.groups))) == clients
    assert train is None or np.bincount(data.y).tolist() == train or len(data.y) == train
    assert np.bincount(data.y_test).tolist() == test or len(data.y_test) == test


def test_parkinsons_has_the_published_people_and_scores():
    data = loaded("parkinsons")
    assert (len(data.y), len(data.y_test), data.shape) == (4717, 1158, (19,))
    y = np.concatenate([data.y, data.y_test])
    # published: 5,875 recordings of 42 people, total UPDRS from 7 to 54.992
    assert (len(y), y.min(), y.max(), len(np.unique(data.groups))) == (5875, 7.0, 54.992, 42)
    assert np.abs(data.x.mean(0)).max() < 1e-5
    motor = DATASETS["parkinsons"](target="motor").load()
    assert (motor.y.max(), np.concatenate([motor.y, motor.y_test]).min()) == (39.511, 5.0377)


def test_shakespeare_has_the_published_characters_and_speakers_without_leaks():
    data = loaded("shakespeare")
    # published: 65 different characters
    assert (len(data.classes), data.classes[:2]) == (65, ("newline", "space"))
    assert (data.target, data.shape) == ("symbols", (80,))
    assert len(data.group_names) == len(np.unique(data.groups)) == 99
    assert data.group_names[0] == "First Citizen"
    # of each speaker's text all characters but the first are one target, of the first four fifths or of the last fifth
    texts = {
        name: text for name, text in read_speakers(real_data() / "tinyshakespeare.txt").items() if len(text) >= 2000
    }
    test = {name: int(0.2 * len(text) + 1e-9) for name, text in texts.items()}
    assert (data.y >= 0).sum() == sum(len(texts[name]) - test[name] - 1 for name in texts)
    assert (data.y_test >= 0).sum() == sum(test[name] - 1 for name in texts)
    first = "".join({"newline": "\n", "space": " "}.get(data.classes[c], data.classes[c]) for c in data.x[0])
    assert texts["First Citizen"].startswith(first)
    assert data.baselines["the most frequent symbol after the present one"]["accuracy"] == pytest.approx(
        0.277, abs=5e-4
    )
    assert len(Shakespeare(smallest=25_000).load().group_names) == 5
    assert len(Shakespeare(smallest=25_000, stride=20).load().y) > 3.9 * len(Shakespeare(smallest=25_000).load().y)
    with pytest.raises(BadInput, match="no speaker has 90,000 characters, the longest text has"):
        Shakespeare(smallest=90_000).load()


def test_tcga_brca_has_the_patients_of_flamby():
    data = loaded("tcga-brca")
    assert data.x.shape == (866, 39)
    assert data.x_test.shape == (222, 39)
    # rows of Northeast, South, West, Midwest, Europe and Canada in FLamby's table
    rows = dict(zip(data.group_names, np.bincount(data.groups).tolist(), strict=True))
    assert rows == {"Northeast": 248, "South": 156, "West": 164, "Midwest": 129, "Europe": 129, "Canada": 40}
    time, event = np.concatenate([data.y, data.y_test]).T
    assert (time.min(), time.max(), event.sum(), set(event)) == (0.5, 8605, 151, {0.0, 1.0})
    assert data.notes == "151 of 1,088 patients died; 12 were last seen on their first day"
    assert data.columns[0] == "age_at_index"
    assert np.abs(data.x.mean(0)).max() < 1e-5


@pytest.mark.slow
def test_beijing_air_has_the_published_hours_and_the_forecast_that_nothing_changes():
    data = loaded("beijing-air")
    assert (len(data.y), len(data.y_test), data.shape, len(data.group_names)) == (307356, 101824, (17,), 12)
    assert "11,588 of 420,768 hours have no PM2.5" in data.notes
    errors = {name: round(value, 3) for name, value in data.baselines["as now"].items()}
    assert errors == {"rmse": 19.437, "mae": 10.162, "r2": 0.945}
    assert (data.y.min(), data.y.max()) == (2.0, 999.0)
    assert len(DATASETS["beijing-air"](rows=500).load().y) == 500
    # the same rows, an hour later: fewer have a target, and the forecast that nothing changes is worse
    later = DATASETS["beijing-air"](ahead=2).load()
    assert len(later.y) < len(data.y)
    assert later.baselines["as now"]["r2"] < data.baselines["as now"]["r2"]


@pytest.mark.slow
def test_cifar_10_has_the_published_channel_means(monkeypatch):
    once = cache(mosaics)
    monkeypatch.setattr("fedskew.data.datasets.images.mosaics", once)
    pixels, labels, classes = once(real_data() / "cifar10_train.npz")
    assert np.bincount(labels).tolist() == [5000] * 10
    assert classes[:3] == ("airplane", "automobile", "bird")
    sums = np.array([np.bincount(pixels[:, c].ravel(), minlength=256) for c in range(3)]) / pixels[:, 0].size
    mean = sums @ np.arange(256) / 255
    std = np.sqrt(sums @ (np.arange(256) / 255) ** 2 - mean**2)
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=5e-5)
    np.testing.assert_allclose(std, [0.2470, 0.2435, 0.2616], atol=5e-5)
    test, test_labels, _ = once(real_data() / "cifar10_test.npz")
    assert np.bincount(test_labels).tolist() == [1000] * 10
    np.testing.assert_allclose(test.mean((0, 2, 3)) / 255, [0.4942, 0.4851, 0.4504], atol=5e-5)
    x, x_test, preprocessing = standardised_pixels(pixels[:2000], test[:100])
    assert x.dtype == x_test.dtype == np.float32
    assert np.array_equal(preprocessing(test[:100]), x_test)
    exact = pixels[:2000].astype(np.float64) / 255
    middle, deviation = exact.mean((0, 2, 3), keepdims=True), exact.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(x, (exact - middle) / deviation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x_test, (test[:100] / 255 - middle) / deviation, rtol=1e-5, atol=1e-6)
    small, again = (Cifar10(train_rows=500, test_rows=200).load() for _ in range(2))
    assert (len(small.y), len(small.y_test)) == (500, 200)
    assert small.fingerprint() == again.fingerprint()
    np.testing.assert_allclose(small.x.mean((0, 2, 3)), 0, atol=1e-4)
    with pytest.raises(BadInput, match="data set cifar-10: 50001 rows are requested, but there are only 50000"):
        Cifar10(train_rows=50001).load()


def test_mnist_has_the_published_mean_and_deviation():
    with np.load(real_data() / "mnist.npz") as z:
        share = np.bincount(z["X_train"].ravel(), minlength=256) / z["X_train"].size
    values = np.arange(256) / 255
    mean = share @ values
    assert (round(mean, 4), round(np.sqrt(share @ (values - mean) ** 2), 4)) == (0.1307, 0.3081)
    assert loaded("mnist").x.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert loaded("mnist").x.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)


def test_ag_news_choice_of_rows_is_fixed():
    data, (small, again) = loaded("ag-news"), (AgNews(train_rows=400, test_rows=100).load() for _ in range(2))
    assert not data.notes or np.bincount(data.y).tolist() == [8356, 8455, 8518, 8427]
    assert 2 <= data.x.max() < 20_000
    assert data.texts[1][0].startswith("Fears for T N pension after talks Unions representing workers at Turner")
    assert (len(small.y), len(small.y_test)) == (400, 100)
    assert small.fingerprint() == again.fingerprint()
    assert set(small.texts[0]) <= set(data.texts[0])
    with pytest.raises(BadInput, match="8000 rows are requested, but there are only 7600"):
        AgNews(test_rows=8000).load()


@pytest.mark.slow
def test_20_newsgroups_has_no_headers():
    data = loaded("20-newsgroups")
    assert data.classes[0] == "alt.atheism"
    assert sum(text.startswith("From:") for text in data.texts[0]) < 30, "posts that are a header, or quote one"


@pytest.mark.parametrize(("labels", "classes"), [("intent", 27), ("category", 11)])
def test_bitext_parts_have_no_words_in_common(labels, classes):
    real_data()
    data = loaded("bitext-support") if labels == "intent" else BitextSupport(labels=labels).load()
    train, test = ({frozenset(words(text)) for text in part} for part in data.texts)
    assert not train & test
    share = np.bincount(data.y_test) / (np.bincount(data.y) + np.bincount(data.y_test))
    assert np.abs(share - 0.2).max() < 0.01
    hard = BitextSupport(labels=labels, labelled=20).load()
    assert np.bincount(hard.y).tolist() == [20] * classes
    assert hard.texts[1] == data.texts[1]
    assert set(hard.texts[0]) <= set(data.texts[0])


def test_uci_har_clients_and_channels():
    signals = loaded("uci-har")
    with np.load(real_data() / FILE) as z:
        raw = {key: z[key] for key in z.files}
    assert signals.classes == ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
    assert signals.x.dtype == signals.x_test.dtype == np.float32
    assert np.array_equal(signals.groups, raw["subject_train"])
    assert len(np.unique(raw["subject_test"])) == 9
    assert not set(raw["subject_test"].tolist()) & set(signals.groups.tolist())
    x = signals.x.astype(np.float64)
    np.testing.assert_allclose(x.mean(axis=(0, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=(0, 2)), 1, atol=1e-5)
    for c in range(9):
        train, test = (raw[f"X_{part}"][:, c].astype(np.float64) for part in ("train", "test"))
        np.testing.assert_allclose(signals.x_test[:, c], (test - train.mean()) / train.std(), rtol=1e-4, atol=1e-5)
    plain = UciHar(standardise=False).load()
    assert np.array_equal(plain.x, raw["X_train"])
    assert np.array_equal(plain.x_test, raw["X_test"])
    assert np.array_equal(plain.y, signals.y)


@pytest.mark.slow
@pytest.mark.parametrize("sensitive", ["sex", "race"])
@pytest.mark.parametrize(("groups", "clients"), [("people", 10), ("workclass", 9), ("education", 16)])
def test_adult_has_the_published_clients_and_columns(groups, clients, sensitive):
    real_data()
    data = DATASETS["adult"](groups=groups, sensitive=sensitive).load()
    assert len(np.unique(data.groups)) == clients
    # 5 numbers; 9 + 16 + 7 + 15 + 6 words; race (5) or sex (2), whichever is not sensitive; the sensitive one
    assert data.x.shape[1] == 5 + 53 + {"sex": 5, "race": 2}[sensitive] + 1
    assert np.abs(data.x[:, :5].astype(float).mean(0)).max() < 1e-5
    assert set(np.unique(data.x[:, 5:])) == {0, 1}
    assert sensitive == "race" or data.x[:, -1].sum() == 21790, "men in the training part"


# digits


def test_digits_has_each_row_of_scikit_learn_once_and_is_split_by_class():
    pixels, labels = load_digits(return_X_y=True)
    for ours, theirs in zip(carried(), (pixels, labels), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    data = Digits().load()

    def table(x, y):
        return sorted(map(tuple, np.column_stack([np.rint(x * 16), y]).astype(int).tolist()))

    ours = table(np.concatenate([data.x, data.x_test]), np.concatenate([data.y, data.y_test]))
    assert ours == table(pixels / 16, labels)
    assert (data.x.dtype, data.x.min(), data.x.max()) == (np.float32, 0, 1)
    assert data.classes == tuple("0123456789")
    assert Digits().load().fingerprint() == data.fingerprint()
    for fraction in (0.1, 0.2, 0.5):
        other = Digits(test_fraction=fraction).load()
        assert np.abs(np.bincount(other.y_test) - fraction * np.bincount(labels)).max() <= 0.5
        assert (other.fingerprint() == data.fingerprint()) == (fraction == 0.2)

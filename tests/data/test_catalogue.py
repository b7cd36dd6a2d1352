"""Data sets: what they hold, how they were drawn, and one clear line where they cannot be had."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.data import DATASETS
from fedskew.data.dataset import Dataset, some_rows
from fedskew.data.datasets.digits import Digits, carried
from fedskew.data.datasets.own import Own
from fedskew.data.datasets.synthetic_softmax import SyntheticSoftmax
from fedskew.data.datasets.uci_har import FILE, UciHar
from fedskew.data.find import VARIABLE, Files, folders


def real_data() -> Path:
    """The folder of real data sets; skips the test without one, and fails it in CI."""
    folder = os.environ.get("FEDSKEW_DATA")
    if folder:
        return Path(folder)
    message = "FEDSKEW_DATA does not name the folder of the data sets"
    if os.environ.get("CI"):
        pytest.fail(f"{message}, and CI must run the tests on real data")
    pytest.skip(message)


def one_line(error: pytest.ExceptionInfo[BadInput], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


# digits


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits().load()


def test_digits_are_read_as_scikit_learn_reads_them():
    from sklearn.datasets import load_digits

    for ours, theirs in zip(carried(), load_digits(return_X_y=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_digits_sizes(digits):
    from sklearn.datasets import load_digits

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
    from sklearn.datasets import load_digits

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
    with pytest.raises(BadInput) as error:
        Digits(test_fraction=fraction)
    one_line(error, "test_fraction")


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


# files that are not there, or not what they should be


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty data folder, with an empty cache folder behind it."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def small_signals(path: Path, **changes) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "X_train": rng.standard_normal((12, 9, 128)).astype(np.float32) * 3 + 1,
        "y_train": np.arange(12, dtype=np.uint8) % 6,
        "subject_train": np.arange(12, dtype=np.uint8) % 3,
        "X_test": rng.standard_normal((6, 9, 128)).astype(np.float32),
        "y_test": np.arange(6, dtype=np.uint8),
        "activity_labels": np.array(["A_B", "C", "D", "E", "F", "G"]),
    }
    np.savez_compressed(path, **{k: v for k, v in (arrays | changes).items() if v is not None})


def test_a_missing_file_is_one_line_with_the_places_and_what_to_do(folder, monkeypatch):
    with pytest.raises(BadInput) as error:
        UciHar().load()
    places = [str(place) for place in folders()]
    assert places[0] == str(folder)
    assert len(places) == 2
    one_line(error, "uci-har", FILE, *places, "FEDSKEW_DATA", "Human Activity Recognition", "X_train")
    assert "not set" not in str(error.value)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(BadInput) as error:
        UciHar().load()
    one_line(error, places[1], "FEDSKEW_DATA is not set")
    assert places[0] not in str(error.value)


def test_the_named_folder_comes_before_the_cache(folder):
    cache = folders()[1]
    cache.mkdir(parents=True)
    files = Files(dataset="a", licence="", classes=2, others=(("a.npz",), ("b.npz", "c.npz")), common=("c.npz",))
    (cache / "a.npz").write_text("cache")
    assert files.paths() == [cache / "a.npz"]
    (folder / "a.npz").write_text("named")
    assert files.paths() == [folder / "a.npz"]
    (folder / "a").mkdir()
    (folder / "a" / "a.npz").write_text("in a folder of its own")
    assert files.paths() == [folder / "a" / "a.npz"]


def test_a_set_of_files_counts_when_it_is_whole(folder):
    files = Files(dataset="a", licence="", classes=2, others=(("b.npz", "c.npz"),), common=("c.npz",))
    (folder / "b.npz").mkdir()
    assert files.here() == []
    (folder / "b.npz").rmdir()
    (folder / "b.npz").write_text("b")
    (folder / "c.npz").write_text("some other data set's")
    with pytest.raises(BadInput) as error:
        files.paths()
    one_line(error, "data set a: no file b.npz in", "fedskew data get a")
    (folder / "a").mkdir()
    (folder / "a" / "c.npz").write_text("c")
    assert files.paths() == [folder / "b.npz", folder / "a" / "c.npz"]


def test_a_tilde_is_the_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv(VARIABLE, "~/data")
    assert folders()[0] == folder


def test_a_small_file_of_the_right_form_is_read(folder):
    small_signals(folder / FILE)
    data = UciHar().load()
    assert data.classes[0] == "a b"
    assert data.x.shape == (12, 9, 128)
    np.testing.assert_allclose(data.x.mean(axis=(0, 2)), 0, atol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_one_line(folder, share):
    small_signals(folder / FILE)
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(BadInput) as error:
        UciHar().load()
    one_line(error, "uci-har", str(folder / FILE))


@pytest.mark.parametrize("compress", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("place", [0.1, 0.3, 0.6])
def test_a_damaged_file_is_one_line(folder, monkeypatch, place, compress):
    monkeypatch.setattr(np, "savez_compressed", compress)
    small_signals(folder / FILE)
    whole = bytearray((folder / FILE).read_bytes())
    middle = int(place * len(whole))
    whole[middle : middle + 40] = b"\xff" * 40
    (folder / FILE).write_bytes(whole)
    with pytest.raises(BadInput) as error:
        UciHar().load()
    one_line(error, "uci-har", str(folder / FILE))


def test_another_kind_of_file_is_one_line(folder):
    with (folder / FILE).open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(BadInput) as error:
        UciHar().load()
    one_line(error, "uci-har", str(folder / FILE))
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(BadInput) as error:
        UciHar().load()
    one_line(error, "uci-har", str(folder / FILE))


@pytest.mark.parametrize(
    "changes",
    [
        {"y_train": None},
        {"activity_labels": None},
        {"y_train": np.zeros(11, dtype=np.uint8)},
        {"y_test": np.full(6, 6, dtype=np.uint8)},
        {"subject_train": np.zeros(5, dtype=np.uint8)},
        {"X_test": np.zeros((6, 9, 64), dtype=np.float32)},
        {"X_train": np.full((12, 9, 128), np.nan, dtype=np.float32)},
        {"activity_labels": np.array([{"pickled": 1}] * 6, dtype=object)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_arrays_that_do_not_fit_are_one_line(folder, changes):
    small_signals(folder / FILE, **changes)
    with pytest.raises(BadInput) as error:
        UciHar().load()
    one_line(error, "uci-har")


# synthetic softmax


def test_synthetic_softmax_follows_the_listing():
    """Algorithms note 3.2: means, labels, features, each from one generator, and nothing between them."""
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
    loaded = SyntheticSoftmax(test="train").load()
    assert np.array_equal(loaded.x, features)
    assert np.array_equal(loaded.y, labels)


def test_fresh_rows_are_drawn_after_the_listings():
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


def test_bayes_accuracy_of_the_drift_demo_mixture():
    """Algorithms note 3.2: .824 on the 12,000 rows themselves, .830 on fresh draws."""
    means = np.random.default_rng(0).standard_normal((6, 30)) * 0.45
    data = SyntheticSoftmax().load()
    found = [
        float((((x[:, None] - means) ** 2).sum(2).argmin(1) == y).mean())
        for x, y in ((data.x, data.y), (data.x_test, data.y_test))
    ]
    assert found[0] == pytest.approx(0.824, abs=0.0006)
    assert found[1] == pytest.approx(0.830, abs=0.011)


def test_data_seeds_differ_and_notes_say_where_accuracy_is_measured():
    one, two = SyntheticSoftmax(rows=20).load(), SyntheticSoftmax(rows=20, data_seed=1).load()
    assert one.fingerprint() != two.fingerprint()
    assert one.fingerprint() == SyntheticSoftmax(rows=20).load().fingerprint()
    assert "training rows" in SyntheticSoftmax(rows=20, test="train").load().notes
    assert not one.notes


@pytest.mark.parametrize("options", [{"rows": 0}, {"features": 0}, {"classes": 0}, {"data_seed": -1}])
def test_synthetic_softmax_checks_its_options(options):
    with pytest.raises(BadInput) as error:
        SyntheticSoftmax(**options)
    one_line(error, next(iter(options)))


# what every data set must be


def valid(**changes) -> dict:
    return {
        "x": np.zeros((5, 3), dtype=np.float32),
        "y": np.array([0, 1, 2, 1, 0]),
        "x_test": np.zeros((2, 3), dtype=np.float32),
        "y_test": np.array([0, 2]),
        "classes": ("a", "b", "c"),
        "groups": np.array([1, 1, 2, 2, 3]),
        "name": "mine",
    } | changes


def with_bad(value: float) -> np.ndarray:
    x = np.zeros((5, 3), dtype=np.float32)
    x[1, 2] = x[1, 0] = x[4, 1] = value
    return x


def test_a_valid_data_set_is_taken():
    data = Dataset(**valid())
    assert data.num_classes == 3
    assert data.shape == (3,)
    assert Dataset(**valid(groups=None)).groups is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": np.array([0, 1, 2, 1])}, ["5 training rows", "4 labels"]),
        ({"y_test": np.array([0])}, ["2 test rows", "1 labels"]),
        ({"y": np.array([0, 1, 3, 1, 0])}, ["training labels", "0..2", "0..3"]),
        ({"y": np.array([0, -1, 2, 1, 0])}, ["training labels", "0..2", "-1..2"]),
        ({"y_test": np.array([0, 7])}, ["test labels", "0..7"]),
        ({"y": np.array([0.0, 1, 2, 1, 0])}, ["integers", "float64"]),
        ({"x": with_bad(np.nan)}, ["2 training rows", "finite"]),
        ({"x": with_bad(np.inf)}, ["2 training rows", "finite"]),
        ({"x_test": np.full((2, 3), np.nan)}, ["2 test rows", "finite"]),
        ({"x_test": np.zeros((2, 4))}, ["(3,)", "(4,)"]),
        ({"groups": np.array([1, 2])}, ["groups"]),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, dtype=int), "groups": None}, ["no training rows"]),
        ({"x_test": np.zeros((0, 3)), "y_test": np.zeros(0, dtype=int)}, ["no test rows"]),
    ],
)
def test_a_data_set_that_cannot_be_right_is_refused(changes, words):
    with pytest.raises(BadInput) as error:
        Dataset(**valid(**changes))
    one_line(error, "mine", *words)


@pytest.mark.parametrize("part", ["x", "y", "x_test", "y_test", "groups"])
def test_a_fingerprint_changes_with_any_value(part):
    changed = valid()
    changed[part] = changed[part].copy()
    changed[part][0] += 1
    assert Dataset(**changed).fingerprint() != Dataset(**valid()).fingerprint()
    assert Dataset(**valid()).fingerprint() == Dataset(**valid()).fingerprint()
    assert len(Dataset(**valid()).fingerprint()) == 16


def test_a_fingerprint_sees_groups_shapes_and_types():
    prints = {
        Dataset(**valid(**changes)).fingerprint()
        for changes in (
            {},
            {"groups": None},
            {"x": np.zeros((5, 3))},
            {"x": np.zeros((5, 3, 1)), "x_test": np.zeros((2, 3, 1))},
        )
    }
    assert len(prints) == 4


def test_own_data_cannot_be_loaded_again():
    with pytest.raises(BadInput) as error:
        Own(fingerprint="0123456789abcdef").load()
    one_line(error, "0123456789abcdef", "data=")


def test_the_catalogue():
    assert {Digits, UciHar, SyntheticSoftmax, Own} <= set(DATASETS.values())


def test_some_rows_are_others_in_each_part_and_all_of_them_stay_in_order():
    train, test = (some_rows(50, 20, part, "mine") for part in (0, 1))
    assert len(set(train.tolist())) == len(set(test.tolist())) == 20
    assert train.tolist() != test.tolist()
    assert some_rows(50, 0, 0, "mine").tolist() == list(range(50))

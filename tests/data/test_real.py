"""The loaders on the public data sets themselves, against published figures, and on small files of each form."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import stat
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.datasets.ag_news import AgNews
from fedskew.data.datasets.bitext import BitextRetail, BitextSupport
from fedskew.data.datasets.cifar import Cifar10, Cifar100
from fedskew.data.datasets.femnist import Femnist
from fedskew.data.datasets.mnist import NAMES, FashionMnist, Mnist
from fedskew.data.datasets.newsgroups import Newsgroups
from fedskew.data.datasets.synthetic import Synthetic
from fedskew.data.datasets.uci_har import CHANNELS, FOLDER, UciHar
from fedskew.data.find import VARIABLE
from fedskew.data.images import mosaics, standardised
from fedskew.data.texts import words
from tests.data.test_catalogue import real_data
from tests.data.test_download import idx_bytes

# the files themselves


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


# small files of each form


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_idx_files_packed_or_not(folder):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (30, 28, 28), dtype=np.uint8), np.arange(30, dtype=np.uint8) % 10
    place = folder / "fashion-mnist"
    place.mkdir()
    for name, array in zip(NAMES, (x, y, x[:10], y[:10]), strict=True):
        (place / name).write_bytes(idx_bytes(array))
    plain = FashionMnist().load()
    np.testing.assert_allclose(plain.x[:, 0], (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)
    assert plain.y_test.tolist() == list(range(10))
    for name in NAMES:
        (place / f"{name}.gz").write_bytes(gzip.compress((place / name).read_bytes()))
    assert FashionMnist().load().fingerprint() == plain.fingerprint()
    (place / f"{NAMES[1]}.gz").write_bytes(gzip.compress(idx_bytes(y[:29])))
    with pytest.raises(BadInput, match="30 training rows but 29 labels"):
        FashionMnist().load()
    (place / f"{NAMES[0]}.gz").write_bytes(gzip.compress(idx_bytes(x))[:500])
    with pytest.raises(BadInput, match="cannot read"):
        FashionMnist().load()


def test_cifar_100_reads_fine_and_coarse_labels(folder):
    rows = b"".join(bytes([i // 5, i]) + bytes([i]) * 3072 for i in range(100))
    with tarfile.open(folder / "cifar-100-binary.tar.gz", "w:gz") as archive:
        for part in ("train", "test"):
            info = tarfile.TarInfo(f"cifar-100-binary/{part}.bin")
            info.size = len(rows)
            archive.addfile(info, io.BytesIO(rows))
    fine, coarse = Cifar100().load(), Cifar100(labels="coarse").load()
    assert fine.y.tolist() == list(range(100))
    assert coarse.y.tolist() == [i // 5 for i in range(100)]
    assert (fine.num_classes, coarse.num_classes) == (100, 20)


def test_mosaics_of_another_size_are_one_line(folder):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "WEBP", lossless=True)
    packed = np.frombuffer(buffer.getvalue(), dtype=np.uint8)
    for part in ("train", "test"):
        np.savez(
            folder / f"cifar10_{part}.npz",
            webp=packed,
            offsets=np.array([0, len(packed)]),
            labels=np.zeros(1000, dtype=np.uint8),
            class_names=np.array(["a"]),
        )
    with pytest.raises(BadInput, match=r"cifar10_train.npz.*a mosaic has 64 x 64 pixels, expected 1280 x 800") as error:
        Cifar10().load()
    assert "\n" not in str(error.value)


def test_binary_images_of_another_size_are_one_line(folder):
    with tarfile.open(folder / "cifar-100-binary.tar.gz", "w:gz") as archive:
        for part in ("train", "test"):
            info = tarfile.TarInfo(f"cifar-100-binary/{part}.bin")
            info.size = 2 * (2 + 28 * 28)
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    with pytest.raises(BadInput, match=r"do not hold rows of 2 \+ 3072 bytes"):
        Cifar100().load()


def leaf(path: Path, people: dict[str, list[int]], pixels: int = 784) -> None:
    data = {
        name: {"x": [[0.5] * (pixels - 1) + [y / 61] for y in labels], "y": labels} for name, labels in people.items()
    }
    write(path, json.dumps({"users": list(people), "num_samples": [], "user_data": data}))


def test_femnist_has_a_client_a_writer(folder):
    leaf(folder / "femnist" / "train" / "all_data_0.json", {"f02": [1, 2, 3], "f01": [4]})
    leaf(folder / "femnist" / "train" / "all_data_1.json", {"f03": [61, 0]})
    leaf(folder / "femnist" / "test" / "all_data_0.json", {"f01": [5]})
    data = Femnist().load()
    assert data.x.shape == (6, 1, 28, 28)
    assert data.groups is not None
    assert data.groups.tolist() == [1, 1, 1, 0, 2, 2]
    assert data.y.tolist() == [1, 2, 3, 4, 61, 0]
    assert [data.classes[c] for c in (9, 10, 36, 61)] == ["9", "A", "a", "z"]
    assert data.x.std(dtype=np.float64) == pytest.approx(1, abs=1e-5)
    leaf(folder / "femnist" / "train" / "all_data_2.json", {"f09": [1]}, pixels=100)
    with pytest.raises(BadInput, match="writer f09"):
        Femnist().load()
    write(folder / "femnist" / "train" / "all_data_2.json", '{"users": ["a"')
    with pytest.raises(BadInput, match="cannot read"):
        Femnist().load()


def test_ag_news_reads_the_original_form(folder):
    rows = '"3","Title, one","Text ""quoted"""\n"1","Two","Other"\n"2","a","b"\n"4","c","d"\n'
    write(folder / "ag-news" / "train.csv", rows)
    write(folder / "ag-news" / "test.csv", rows)
    data = AgNews(length=4).load()
    assert data.texts is not None
    assert data.texts[0][0] == 'Title, one Text "quoted"'
    assert data.y.tolist() == [2, 0, 1, 3]
    assert data.notes == ""
    write(folder / "ag-news" / "test.csv", '"3","only two"\n')
    with pytest.raises(BadInput, match="its rows do not have the 3 columns"):
        AgNews().load()
    for topic in ("Sports", "5"):
        write(folder / "ag-news" / "test.csv", f'"1","a","b"\n"{topic}","a","b"\n')
        with pytest.raises(BadInput, match=f"the topic of row 2 is '{topic}', expected 1, 2, 3 or 4"):
            AgNews().load()
    write(folder / "ag-news" / "test.csv", '"3","",""\n')
    with pytest.raises(BadInput, match="1 texts of the test part are empty, the first one is row 1"):
        AgNews().load()


def test_newsgroups_from_the_archive_and_from_lines_are_the_same(folder):
    posts = [("train", "sci.space", "To the moon"), ("train", "alt.x", "Hm"), ("test", "alt.x", "Ho é")]
    with tarfile.open(folder / "20news-bydate.tar.gz", "w:gz") as archive:
        for i, (part, group, text) in enumerate(posts):
            content = f"From: me\nSubject: it\n\n{text}".encode("latin-1")
            info = tarfile.TarInfo(f"20news-bydate-{part}/{group}/{i}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    one = Newsgroups().load()
    assert one.texts == (("To the moon", "Hm"), ("Ho é",))
    assert one.classes == ("alt.x", "sci.space")
    (folder / "20news-bydate.tar.gz").unlink()
    with lzma.open(folder / "20newsgroups_bydate.jsonl.xz", "wt", encoding="utf-8") as file:
        for part, group, text in posts:
            file.write(json.dumps({"split": part, "group": group, "text": f"From: me\nSubject: it\n\n{text}"}) + "\n")
    assert Newsgroups().load().fingerprint() == one.fingerprint()
    with lzma.open(folder / "20newsgroups_bydate.jsonl.xz", "at", encoding="utf-8") as file:
        file.write(json.dumps({"split": "test", "group": "new.group", "text": "\n\nx"}) + "\n")
    with pytest.raises(BadInput, match=r"the training part has no post to new\.group"):
        Newsgroups().load()


def test_bitext_retail_and_wrong_columns(folder):
    path = folder / BitextRetail.files.remotes[0].file
    lines = [f"a,word{i} order,ORDER,{intent}" for intent in ("cancel", "track") for i in range(10)]
    write(path, "tags,instruction,category,intent\n" + "\n".join(lines) + "\n")
    data = BitextRetail().load()
    assert data.classes == ("cancel", "track")
    assert np.bincount(data.y_test).tolist() == [2, 2], "the same ten texts twice: a pair stays together"
    write(path, "tags,message,category,intent\na,b,c,d\n")
    with pytest.raises(BadInput, match="it has no column instruction"):
        BitextRetail().load()
    write(path, "tags,instruction,category,intent\n" + "\n".join([*lines, "a, ,ORDER,track"]) + "\n")
    with pytest.raises(BadInput, match=f"1 texts of {path.name} are empty, the first one is row 21; leave"):
        BitextRetail().load()
    write(path, "instruction,category,intent\na,b,c\nd,e\n")
    with pytest.raises(BadInput, match="a row is shorter than the header"):
        BitextRetail().load()


def official_zip(path: Path, nested: bool) -> None:
    rng, inner = np.random.default_rng(0), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr(f"{FOLDER}/activity_labels.txt", "1 WALKING\n2 LYING_DOWN\n")
        for part, rows in (("train", 6), ("test", 4)):
            archive.writestr(f"{FOLDER}/{part}/y_{part}.txt", "".join(f"{1 + i % 2}\n" for i in range(rows)))
            archive.writestr(f"{FOLDER}/{part}/subject_{part}.txt", "".join(f"{1 + i // 2}\n" for i in range(rows)))
            tables = {f"{part}/X_{part}.txt": 561}
            tables |= {f"{part}/Inertial Signals/{channel}_{part}.txt": 128 for channel in CHANNELS}
            for name, width in tables.items():
                buffer = io.StringIO()
                np.savetxt(buffer, rng.standard_normal((rows, width)), fmt="%16.7e")
                archive.writestr(f"{FOLDER}/{name}", buffer.getvalue())
    if not nested:
        path.write_bytes(inner.getvalue())
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{FOLDER}.zip", inner.getvalue())


def test_uci_har_reads_the_official_files_packed_or_not(folder):
    official_zip(folder / "UCI HAR Dataset.zip", nested=False)
    features, signals = UciHar(form="features").load(), UciHar().load()
    assert features.shape == (561,)
    assert signals.shape == (9, 128)
    assert features.y.tolist() == signals.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert features.classes == ("walking", "lying down")
    assert features.groups is not None
    assert features.groups.tolist() == [1, 1, 2, 2, 3, 3]
    with zipfile.ZipFile(folder / "UCI HAR Dataset.zip") as archive:
        archive.extractall(folder)
    (folder / "UCI HAR Dataset.zip").unlink()
    assert UciHar().load().fingerprint() == signals.fingerprint()
    official_zip(folder / UciHar.files.remotes[0].file, nested=True)
    assert UciHar(form="features").load().fingerprint() == features.fingerprint()


def test_a_hostile_archive_of_uci_har_writes_nothing(folder):
    """Names that leave the folder, and a link, inside the archive and inside the one in it."""
    path = folder / UciHar.files.remotes[0].file
    official_zip(path, nested=True)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../escaped-fedskew.txt", "out")
        archive.writestr("/tmp/escaped-fedskew.txt", "out")
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    before = sorted(folder.parent.rglob("*"))
    assert UciHar().load().shape == (9, 128)
    assert sorted(folder.parent.rglob("*")) == before
    assert not Path("/tmp/escaped-fedskew.txt").exists()


# synthetic(alpha, beta)


def test_synthetic_labels_follow_each_devices_own_model():
    """Of a device without any spread of its own, and of the IID form, by redrawing with the same generator."""
    data = Synthetic(iid=True, devices=3, data_seed=4).load()
    rng = np.random.default_rng(4)
    sizes = (np.floor(rng.lognormal(4, 2, 3)) + 50).clip(max=10_000).astype(int)
    rng.normal(0, 1, 3), rng.normal(0, 1, 3)
    weights = rng.standard_normal((61, 10))
    first = rng.standard_normal((sizes[0], 60)) * np.arange(1, 61) ** -0.6
    kept = sizes[0] - sizes[0] // 5
    assert np.array_equal(data.x[:kept], first[:kept])
    assert np.array_equal(data.y[:kept], (first[:kept] @ weights[:-1] + weights[-1]).argmax(1))
    assert data.groups is not None
    assert np.bincount(data.groups).tolist() == [n - n // 5 for n in sizes]
    assert len(data.y_test) == sum(n // 5 for n in sizes)


@pytest.mark.parametrize(("scale", "expected"), [("variance", 4.0 + 1 / 60), ("deviation", 16.0 + 1 / 60)])
def test_synthetic_spreads_the_devices_inputs_as_it_says(scale, expected):
    """The mean over the 60 features of a device's inputs varies by Var(B_k) + 1 / 60, and a little within the device."""
    data = Synthetic(alpha=0, beta=4, scale=scale, devices=4000, max_rows=60).load()
    means = np.array([data.x[data.groups == k].mean() for k in range(4000)])
    assert means.var() == pytest.approx(expected, rel=0.08)


def test_synthetic_readings_agree_at_0_and_1():
    for value in (0.0, 1.0):
        one, two = (Synthetic(alpha=value, beta=value, scale=s).load() for s in ("variance", "deviation"))
        assert one.fingerprint() == two.fingerprint()
    assert Synthetic(beta=0.5).load().fingerprint() != Synthetic(beta=0.5, scale="deviation").load().fingerprint()


def test_alpha_changes_no_label():
    """A mean u_k of all entries of W_k and b_k adds u_k (1 + sum of x) to every class's score: the largest stays the largest."""
    zero = Synthetic(alpha=0).load()
    for alpha in (0.5, 100.0):
        other = Synthetic(alpha=alpha).load()
        assert np.array_equal(other.x, zero.x)
        assert np.array_equal(other.y, zero.y)


def test_input_variances_fall_as_the_paper_says():
    data = Synthetic(iid=True, devices=40, max_rows=2000).load()
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(data.x.var(0), expected, rtol=0.1)

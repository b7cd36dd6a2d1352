"""Image loaders on small files: what they read, and one line for damaged and hostile files."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.data import DATASETS
from fedskew.data.datasets.images import Cifar10, Cifar100, FashionMnist, Mnist
from fedskew.data.datasets.leaf import Femnist
from tests.archives import cifar_archive, idx_bytes, tar_of
from tests.commands import output_of

# MNIST

NAMES = Mnist.files.others[0]


def mnist_by_hand(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images = np.arange(20, dtype=np.uint8)[:, None, None].repeat(28, 1).repeat(28, 2)
    labels = np.arange(20, dtype=np.uint8) % 10
    for name, array in zip(NAMES, (images, labels, images, labels), strict=True):
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))


def test_files_placed_by_hand_are_found_and_verified(folder):
    mnist_by_hand(folder)
    assert Mnist().load().shape == (1, 28, 28)
    assert not DATASETS["fashion-mnist"].files.here(), "it has the same file names, in a folder of its own"
    assert output_of("data", "path", "mnist").split() == [str(folder / f"{name}.gz") for name in NAMES]
    assert "does not have the published SHA-256" in output_of("data", "verify", "mnist", code=1)


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


# CIFAR


def test_hostile_archive_writes_nothing(folder, tmp_path):
    path = folder / "cifar-10" / "cifar-10-binary.tar.gz"
    cifar_archive(path)
    before = sorted(tmp_path.rglob("*"))
    data = Cifar10().load()
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/escaped-fedskew.txt").exists()
    assert data.x.shape == (100, 3, 32, 32)
    assert data.y[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    # rows 0..19 repeat five times: standardised, row i is (i - 9.5) / std(0..19)
    expected = (np.arange(20) - 9.5) / np.arange(20).std()
    np.testing.assert_allclose(data.x_test[:, 2, 5, 7], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"data_batch_3": b"\0" * 3000}, "cannot read"),
        ({"test_batch": bytes([77]) + b"\0" * 3072}, "test labels must lie in 0..9, found 77..77"),
    ],
)
def test_cifar_archive_that_is_not_one_gives_a_one_line_error(folder, members, words):
    path = folder / "cifar-10" / "cifar-10-binary.tar.gz"
    cifar_archive(path, **members)
    with pytest.raises(BadInput, match=words):
        Cifar10().load()


def test_cifar_100_reads_fine_and_coarse_labels(folder):
    rows = b"".join(bytes([i // 5, i]) + bytes([i]) * 3072 for i in range(100))
    tar_of(folder / "cifar-100-binary.tar.gz", {f"cifar-100-binary/{part}.bin": rows for part in ("train", "test")})
    fine, coarse = Cifar100().load(), Cifar100(labels="coarse").load()
    assert fine.y.tolist() == list(range(100))
    assert coarse.y.tolist() == [i // 5 for i in range(100)]
    assert (fine.num_classes, coarse.num_classes) == (100, 20)


def test_binary_images_of_another_size_give_one_line_errors(folder):
    rows = bytes(2 * (2 + 28 * 28))
    tar_of(folder / "cifar-100-binary.tar.gz", {f"cifar-100-binary/{part}.bin": rows for part in ("train", "test")})
    with pytest.raises(BadInput, match=r"do not hold rows of 2 \+ 3072 bytes"):
        Cifar100().load()


# FEMNIST


def leaf(path: Path, people: dict[str, list[int]], pixels: int = 784) -> None:
    data = {
        name: {"x": [[0.5] * (pixels - 1) + [y / 61] for y in labels], "y": labels} for name, labels in people.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"users": list(people), "num_samples": [], "user_data": data}))


def test_femnist_has_a_client_a_writer(folder):
    leaf(folder / "femnist" / "train" / "all_data_0.json", {"f02": [1, 2, 3], "f01": [4]})
    leaf(folder / "femnist" / "train" / "all_data_1.json", {"f03": [61, 0]})
    leaf(folder / "femnist" / "test" / "all_data_0.json", {"f01": [5]})
    data = Femnist().load()
    assert data.x.shape == (6, 1, 28, 28)
    assert data.groups.tolist() == [1, 1, 1, 0, 2, 2]
    assert data.y.tolist() == [1, 2, 3, 4, 61, 0]
    assert [data.classes[c] for c in (9, 10, 36, 61)] == ["9", "A", "a", "z"]
    assert data.x.std(dtype=np.float64) == pytest.approx(1, abs=1e-5)
    leaf(folder / "femnist" / "train" / "all_data_2.json", {"f09": [1]}, pixels=100)
    with pytest.raises(BadInput, match=r"all_data_2\.json, it is damaged or another file: cannot reshape"):
        Femnist().load()
    (folder / "femnist" / "train" / "all_data_2.json").write_text('{"users": ["a"')
    with pytest.raises(BadInput, match="cannot read"):
        Femnist().load()

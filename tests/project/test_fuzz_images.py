"""The files that image data sets come in: whatever they hold, a data set or one line, nothing written, and memory bounded."""

import gzip
import io
import os
import random
import tarfile
import tracemalloc
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from fedskew.core.errors import BadInput
from fedskew.data import find
from fedskew.data.datasets import images
from fedskew.data.datasets.images import Cifar10, Mnist, idx, mosaics, read_cifar
from fedskew.data.find import VARIABLE
from tests.archives import add, cifar_archive, idx_bytes
from tests.project.test_fuzz import LENGTHS, SEEDS, damaged, fuzz

NAMES = Mnist.files.others[0]

ARCHIVE, BATCHES = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
BESIDE: dict[str, Any] = {"labels": np.arange(1000) % 10, "class_names": np.array(list("0123456789"))}
GREY = np.arange(20, dtype=np.uint8)[:, None, None].repeat(28, 1).repeat(28, 2)
LABELS = np.arange(20, dtype=np.uint8) % 10
DIGITS: dict[str, Any] = {"X_train": GREY, "y_train": LABELS, "X_test": GREY, "y_test": LABELS}


@cache
def webp(width: int = 1280, height: int = 800) -> bytes:
    stream = io.BytesIO()
    Image.radial_gradient("L").resize((width, height)).convert("RGB").save(stream, "WEBP", lossless=True, method=0)
    return stream.getvalue()


@cache
def samples() -> dict[str, bytes]:
    """A sound file of each kind: as it is handed in, and what it packs, where a checksum would catch every damage to that."""
    with TemporaryDirectory() as folder:
        cifar_archive(Path(folder) / "c", rows=10)
        archive = (Path(folder) / "c").read_bytes()
    return {
        "cifar": archive,
        "cifar, unpacked": gzip.decompress(archive),
        "mosaics": packed(webp())["cifar10_train.npz"],
        "mosaic": webp(),
        "mnist images": idx_bytes(GREY),
        "mnist labels": idx_bytes(LABELS),
        "mnist, packed": gzip.compress(idx_bytes(GREY)),
        "mnist.npz": npz(DIGITS),
    }


def npz(arrays: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def packed(mosaic: bytes, **arrays: Any) -> dict[str, bytes]:
    """Both files of mosaics; this is the first."""
    own = {"webp": np.frombuffer(mosaic, np.uint8), "offsets": np.array([0, len(mosaic)])}
    sound = {"webp": np.frombuffer(webp(), np.uint8), "offsets": np.array([0, len(webp())])}
    return {
        "cifar10_train.npz": npz({**BESIDE, **own, **arrays}),
        "cifar10_test.npz": npz({**BESIDE, **sound}),
    }


def mnist(name: str, content: bytes, end: str = "") -> dict[str, bytes]:
    kinds = ("mnist images", "mnist labels")
    return {
        **{f"{n}{end}": gzip.compress(samples()[k]) if end else samples()[k] for n, k in zip(NAMES, kinds * 2, strict=True)},
        f"{name}{end}": content,
    }  # fmt: skip


def behind(sound: bytes, seed: int) -> bytes:
    """A file where only the beginning is damaged."""
    return damaged(sound[:16], seed) + sound[16:]


def arrays_of(arrays: dict[str, Any], seed: int) -> dict[str, Any]:
    """Some of these arrays replaced by anything."""
    luck = random.Random(seed)
    made: dict[str, Any] = {}
    for name, sound in arrays.items():
        kind = luck.choice([np.int64, np.uint8, np.float64, "U3", np.bool_])
        shape = luck.choice([(), (0,), (1,), (2,), (1000,), (10, 100), (20, 28, 28), sound.shape, sound.shape])
        wild = np.random.default_rng(seed).integers(luck.choice([-3, 0]), luck.choice([10, 300, 2**62]), shape)
        made[name] = luck.choice([sound, sound, wild.astype(kind), sound[:-1], sound[:0], np.zeros_like(sound)])
    return made


def tar_of(seed: int) -> bytes:
    """An archive with mostly the right names, and random kinds, targets and sizes."""
    luck = random.Random(seed)
    stream, rows = io.BytesIO(), b"".join(bytes([i]) + bytes([i] * 3072) for i in range(10))
    names = [*(f"{BATCHES}/data_batch_{i}.bin" for i in range(1, 6)), f"{BATCHES}/test_batch.bin"]
    kinds = [tarfile.REGTYPE] * 30 + [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(luck.choice([name] * 30 + ["../x", "/x", f"./{name}", ""]))
            info.type = luck.choice([*kinds, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE, b"x", b"L"])
            info.linkname = luck.choice([name, names[0], luck.choice(names), "/etc/passwd", "../../etc/passwd", ""])
            info.size = luck.choice([len(rows)] * 12 + [0, 1, 2**33]) if info.isreg() else 0
            archive.fileobj.write(info.tobuf(tarfile.GNU_FORMAT) + rows[: min(info.size, len(rows))])  # type: ignore[union-attr]
            archive.fileobj.write(bytes(-min(info.size, len(rows)) % 512))  # type: ignore[union-attr]
        archive.offset = stream.tell()
    return stream.getvalue()


KINDS: dict[str, tuple[Any, Callable[[int], dict[str, bytes]]]] = {
    "cifar": (Cifar10(), lambda seed: {ARCHIVE: damaged(samples()["cifar"], seed)}),
    "cifar, unpacked": (Cifar10(), lambda seed: {ARCHIVE: damaged(samples()["cifar, unpacked"], seed)}),
    "cifar, hostile": (Cifar10(), lambda seed: {ARCHIVE: tar_of(seed)}),
    "mosaics": (Cifar10(), lambda seed: {**packed(webp()), "cifar10_train.npz": damaged(samples()["mosaics"], seed)}),
    "mosaic": (Cifar10(), lambda seed: packed(damaged(webp(), seed))),
    "arrays beside mosaics": (
        Cifar10(),
        lambda seed: packed(webp(), **arrays_of({**BESIDE, "offsets": np.array([0, len(webp())])}, seed)),
    ),
    "mnist images": (Mnist(), lambda seed: mnist(NAMES[0], behind(samples()["mnist images"], seed))),
    "mnist labels": (Mnist(), lambda seed: mnist(NAMES[1], damaged(samples()["mnist labels"], seed))),
    "mnist, packed": (Mnist(), lambda seed: mnist(NAMES[0], damaged(samples()["mnist, packed"], seed), ".gz")),
    "arrays of mnist": (Mnist(), lambda seed: {"mnist.npz": npz(arrays_of(DIGITS, seed))}),
    "mnist.npz": (Mnist(), lambda seed: {"mnist.npz": damaged(samples()["mnist.npz"], seed)}),
}
"""The data set that reads them, and its files from a seed."""


def load(kind: str, seed: int) -> None:
    dataset, made = KINDS[kind]
    with TemporaryDirectory() as outside, patch.dict(os.environ, {VARIABLE: f"{outside}/data"}):
        folder = Path(outside) / "data"
        folder.mkdir()
        contents = made(seed)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        try:
            dataset.load()
        finally:
            assert sorted(str(path.relative_to(outside)) for path in Path(outside).rglob("*")) == sorted(
                ["data", *(f"data/{name}" for name in contents)]
            )


@pytest.mark.parametrize("limits", LENGTHS, ids=["", "long"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_file_of_images_is_read_or_refused_in_one_line(kind: str, limits: settings) -> None:
    fuzz(limits, partial(load, kind), SEEDS)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_links_are_not_followed_and_only_files_are_batches(kind: bytes, tmp_path: Path) -> None:
    """A link to itself would be followed without end; a folder in a batch's place would leave its rows out."""
    with tarfile.open(tmp_path / "a", "w") as archive:
        add(archive, "one", bytes(3073))
        info = tarfile.TarInfo("two")
        info.type, info.linkname = kind, "two"
        archive.addfile(info)
    assert len(read_cifar(tmp_path / "a", ("one",), 1)[1]) == 1
    with pytest.raises(ValueError, match="two is not a file"):
        read_cifar(tmp_path / "a", ("one", "two"), 1)


def test_no_more_is_unpacked_than_the_data_sets_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of zeros in 64 KiB, where no file may have more than one."""
    monkeypatch.setattr(images, "LARGEST", 1 << 20)
    monkeypatch.setattr(find, "LARGEST", 1 << 20)
    zeros = bytes(1 << 26)
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz", compresslevel=6) as archive:
        add(archive, "one", zeros)
    (tmp_path / "i.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 4, 0, 0, 0]) + zeros, 6))
    del zeros
    tracemalloc.start()
    for read in (lambda: read_cifar(tmp_path / "c.tar.gz", ("one",), 1), lambda: idx(tmp_path / "i.gz")):
        with pytest.raises(ValueError, match="of at most 1,048,576 bytes"):
            read()
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()


def test_a_mosaic_is_webp_and_of_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formats are not even tried: some of their readers start programs."""
    stream = io.BytesIO()
    Image.new("RGB", (1280, 800)).save(stream, "PNG")
    with pytest.raises(OSError, match="cannot identify"):
        images.mosaic(stream.getvalue())
    with pytest.raises(ValueError, match="640 x 1600 pixels, expected 1280 x 800"):
        images.mosaic(webp(640, 1600))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match="decompression bomb"):
        images.mosaic(webp())


def test_there_is_a_mosaic_for_every_label(tmp_path: Path) -> None:
    """Otherwise missing images would be arbitrary bytes of memory."""
    for name, content in packed(webp(), labels=np.arange(2000) % 10).items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"labels of shape \(2000,\) for 1 mosaics of 1000 images"):
        mosaics(tmp_path / "cifar10_train.npz")


def load_from(folder: Path, dataset: Any, contents: dict[str, bytes]) -> Any:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with patch.dict(os.environ, {VARIABLE: str(folder)}):
        return dataset.load()


@pytest.mark.parametrize(
    ("dataset", "contents", "words"),
    [
        (Mnist(), {**DIGITS, "X_train": GREY.astype(float)}, "are float64, expected bytes"),
        (Mnist(), {**DIGITS, "X_test": GREY[0, 0, 0]}, r"have shape \(\), expected \(28, 28\)"),
        (
            Mnist(),
            {**DIGITS, "y_test": LABELS[:, None]},
            r"are uint8 of shape \(20, 1\), expected one integer for each image",
        ),
        (
            Mnist(),
            {**DIGITS, "X_train": np.zeros_like(GREY)},
            "channel 0 of the training part is empty or has only one",
        ),
        (Cifar10(), {"labels": np.arange(1000) % 10 - 1}, "the training part has no row of some classes"),
        (Cifar10(), {"labels": np.where(np.arange(1000), np.arange(1000) % 10, 2**62)}, r"0..9, found 0..4611686018"),
    ],
)
def test_arrays_of_no_images_give_one_line(dataset: Any, contents: dict[str, Any], words: str, tmp_path: Path) -> None:
    files = {"mnist.npz": npz(contents)} if isinstance(dataset, Mnist) else packed(webp(), **contents)
    with pytest.raises(BadInput, match=words) as error:
        load_from(tmp_path, dataset, files)
    assert "\n" not in str(error.value)


def test_undamaged_samples_load(tmp_path: Path) -> None:
    sound = {
        "cifar": (Cifar10(), {ARCHIVE: samples()["cifar"]}),
        "unpacked": (Cifar10(), {ARCHIVE: samples()["cifar, unpacked"]}),
        "mosaics": (Cifar10(), packed(webp())),
        "mnist": (Mnist(), mnist(NAMES[0], samples()["mnist images"])),
        "packed": (Mnist(), mnist(NAMES[0], samples()["mnist, packed"], ".gz")),
        "npz": (Mnist(), {"mnist.npz": samples()["mnist.npz"]}),
    }
    rows = {}
    for kind, (dataset, contents) in sound.items():
        (tmp_path / kind).mkdir()
        rows[kind] = len(load_from(tmp_path / kind, dataset, contents).x)
    assert rows == {"cifar": 50, "unpacked": 50, "mosaics": 1000, "mnist": 20, "packed": 20, "npz": 20}

"""Small archives for tests."""

import io
import tarfile
from pathlib import Path

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    """Return the bytes of an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + np.asarray(array.shape, dtype=">u4").tobytes() + array.tobytes()


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def tar_of(path: Path, members: dict[str, bytes]) -> None:
    """Write a packed archive of these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            add(archive, name, content)


def cifar_archive(path: Path, rows: int = 20, **members: bytes) -> None:
    """Return a small binary CIFAR-10. All pixels of a row are its number. Some names and a link lead out of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
            content = b"".join(bytes([i % 10]) + bytes([i]) * 3072 for i in range(rows))
            add(archive, f"cifar-10-batches-bin/{name}", members.get(name.partition(".")[0], content))
        add(archive, "../../escaped.txt", b"out")
        add(archive, "/tmp/escaped-fedskew.txt", b"out")
        link = tarfile.TarInfo("cifar-10-batches-bin/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)

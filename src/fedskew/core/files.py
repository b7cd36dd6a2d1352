"""Files that an experiment or a user names: paths, whole files, and TOML."""

from __future__ import annotations

import errno
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import BadInput, FedskewError, require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_BYTES = 1 << 20
"""Largest size of an experiment file or a method file."""

UNFINISHED = ".unfinished-"
"""Beginning of the names of folders with files that are being written. A killed process leaves one behind."""


def read_small(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a file of at most ``most`` bytes. Raises `OSError` for a larger file or an endless device."""
    with path.open("rb") as file:
        contents = file.read(most + 1)
    if len(contents) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB")
    return contents


def require_regular(path: Path) -> None:
    """Raise `OSError` for a device or a pipe, which might be read for ever. A missing path passes."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")


@contextmanager
def replacing(path: Path, mode: int = 0) -> Iterator[Path]:
    """Yield a path to write to. Its file then replaces ``path`` in one step; after an error it is removed.

    Nobody else can guess, place or follow that path: it is in a new folder of this user, beside ``path``. If ``path`` is a link,
    its target is replaced. A device or pipe is written to. A new file gets the permissions ``mode``. Raises `OSError`.
    """
    target = Path(os.path.realpath(path))  # a circle ends at a link
    if target.is_symlink():
        raise OSError(errno.ELOOP, "its links lead in a circle")
    if target.exists() and not target.is_file():
        yield target
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=UNFINISHED, dir=target.parent) as folder:
        partial = Path(folder) / target.name
        if mode:
            partial.touch(mode)
        yield partial
        if target.exists() and not mode:
            shutil.copymode(target, partial)
        partial.replace(target)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder to fill. It then takes the place of ``folder``; after an error ``folder`` is as before.

    Raises `OSError`.
    """
    target = folder.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=UNFINISHED, dir=target.parent) as place:
        new, old = Path(place) / "new", Path(place) / "old"
        new.mkdir()
        yield new
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise


def write_whole(path: str | Path, contents: str | bytes, what: str, mode: int = 0) -> Path:
    """Write a file whole or not at all, with its folder, as `replacing` does; return its path.

    Raises `FedskewError` if it cannot be written. The message begins with ``what``.
    """
    path = Path(path)
    try:
        with replacing(path, mode) as partial:
            partial.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    except OSError as error:
        raise FedskewError(f"{what} {path}: cannot be written: {error.strerror}") from None
    return path


def whole_path(path: str) -> str:
    """Return the absolute path of an existing file or folder, so that a run can be repeated from any folder; else ``path``.

    ``path`` may be a Hugging Face name. A local folder of the same name takes precedence, as in their libraries.
    """
    place = Path(path).expanduser()
    return str(place.resolve()) if path and place.exists() else path


def require_exists(path: Path) -> None:
    """Raise `BadInput` if the path does not exist."""
    require(path.exists(), f"{path}: no such file or folder{'' if path.is_absolute() else f' in {Path.cwd()}'}")


def file_text(path: Path) -> str:
    """Read the text of an experiment file. Raises `BadInput` if it cannot be read."""
    try:
        return read_small(path).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(f"experiment file {path}: cannot be read: {reason}") from None


def toml_table(text: str, where: str) -> dict[str, Any]:
    """Parse a TOML document. Raises `BadInput`, which names ``where``, if it is not valid."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BadInput(f"{where}: not valid TOML: too many brackets within each other") from None
    except ValueError as error:  # also raised for numbers with thousands of digits
        raise BadInput(f"{where}: not valid TOML: {error}") from None


HEADER = 1 << 12
"""Largest size of an array's header in bytes."""


def bounded(file: np.lib.npyio.NpzFile, name: str, most: int) -> NDArray[Any]:
    """Read the array ``name``. Raises `KeyError` if there is none, `ValueError` if its data exceed ``most`` bytes."""
    if name not in file:
        raise KeyError(name)
    assert file.zip is not None
    size = file.zip.getinfo(f"{name}.npy").file_size
    if size > most + HEADER:
        raise ValueError(f"{name} unpacks to {size:,} bytes, expected at most {most:,}")
    return file[name]


def numbers_in(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield all numbers in nested tables and lists, with the name of the entry that holds them."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from numbers_in(part, str(key))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from numbers_in(part, name)
    elif isinstance(value, int | float):
        yield name, value

"""Data files: their names, sources and checksums, the folders that are searched, and errors when they cannot be read.

Files are searched in the folder named by ``FEDSKEW_DATA``, then in a per-user cache folder.
"""

import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import platformdirs

from fedskew.core.errors import DAMAGED, BadInput
from fedskew.core.npz import bounded
from fedskew.data.dataset import Baselines, Dataset, Numbered, Rows
from fedskew.data.preprocessing import Preprocessing

VARIABLE = "FEDSKEW_DATA"

LARGEST = 1 << 28
"""Most bytes of an unpacked file; the largest of these data sets has 154 million."""

UNREADABLE = (*DAMAGED, IndexError, tarfile.TarError, lzma.LZMAError)
"""Errors of readers for files that are cut short, damaged, or of another kind."""

T = TypeVar("T")


@dataclass(frozen=True)
class Remote:
    """A file at its public source: size in bytes (0: unknown), published checksum (or ""), and its name if the URL has another."""

    url: str
    size: int = 0
    sha256: str = ""
    name: str = ""

    @property
    def file(self) -> str:
        return self.name or self.url.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of a data set at the public source, and ``others``: sets of files that the loader reads too.

    ``natural`` names the kind of natural client. ``how`` says how to get files that cannot be downloaded. Names in ``common``
    occur in other data sets, too; such files are searched only in a subfolder named after the data set. A ``*`` matches any name.
    ``packaged`` files are part of this package.
    """

    dataset: str
    licence: str
    classes: int
    source: str = ""
    natural: str = ""
    remotes: tuple[Remote, ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    how: str = ""
    common: tuple[str, ...] = ()
    packaged: tuple[Path, ...] = ()

    @property
    def forms(self) -> list[tuple[str, ...]]:
        """The sets of file names that the loader reads. The public source's names come first."""
        canonical = tuple(remote.file for remote in self.remotes)
        return [*([canonical] if canonical else []), *self.others]

    def here(self) -> list[Path]:
        """The first set of files that is complete, or an empty list."""
        if self.packaged:
            return [*self.packaged]
        for form in self.forms:
            found = [located(self.dataset, name, name in self.common) for name in form]
            if all(found):
                return [path for paths in found for path in paths]
        return []

    def paths(self) -> list[Path]:
        """As `here`; raises `BadInput` with the folders that were searched and how to get the files."""
        if found := self.here():
            return found
        names = " or ".join(form[0] for form in self.forms)
        places = " and ".join(str(folder) for folder in folders())
        hint = "" if os.environ.get(VARIABLE) else f" ({VARIABLE} is not set)"
        how = self.how or f"`fedskew data get {self.dataset}` fetches it"
        raise BadInput(
            f"data set {self.dataset}: no file {names} in {places}{hint}; {how}, or set {VARIABLE} to its folder"
        )

    def read(self, reader: Callable[[Path], T]) -> list[T]:
        """The result of ``reader`` for each file. Raises `BadInput` in one line for missing and damaged files."""
        found = []
        for path in self.paths():
            with reading(self.dataset, path):
                found.append(reader(path))
        return found

    def build(
        self,
        train: tuple[Rows, Rows],
        test: tuple[Rows, Rows],
        classes: Sequence[str] = (),
        *,
        target: str = "",
        clients: Numbered | None = None,
        columns: tuple[str, ...] = (),
        texts: tuple[Sequence[str], Sequence[str]] | None = None,
        vocabulary: int = 0,
        sensitive: str = "",
        preprocessing: Preprocessing | None = None,
        baselines: Baselines | None = None,
        notes: str = "",
    ) -> Dataset:
        """The data set of these rows and labels. ``clients``: the natural client of each training row, and the clients' names."""
        groups, group_names = clients or (None, ())
        return Dataset(
            x=train[0],
            y=train[1],
            x_test=test[0],
            y_test=test[1],
            classes=tuple(classes),
            target=target,
            groups=groups,
            group_names=group_names,
            columns=columns,
            texts=texts,
            vocabulary=vocabulary,
            sensitive=sensitive,
            preprocessing=preprocessing,
            baselines=baselines or {},
            name=self.dataset,
            source=self.source,
            notes=notes,
        )


def folders() -> list[Path]:
    """The folders that are searched, in order."""
    named = os.environ.get(VARIABLE)
    return [*([Path(named).expanduser()] if named else []), platformdirs.user_cache_path("fedskew") / "data"]


def located(dataset: str, name: str, only_subfolder: bool) -> list[Path]:
    """The files of that name in the first folder that has any; of each folder, the data set's subfolder comes first."""
    for folder in folders():
        for place in (folder / dataset, *(() if only_subfolder else (folder,))):
            if found := sorted(path for path in place.glob(name) if path.is_file()):
                return found
    return []


@contextmanager
def reading(dataset: str, path: Path) -> Iterator[None]:
    """Turn the errors of readers into one line with the file's path."""
    try:
        yield
    except UNREADABLE as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(":")
        raise BadInput(f"data set {dataset}: cannot read {path}, it is damaged or another file: {reason}") from None


def opened(path: Path) -> IO[bytes]:
    """The file, unpacked if its name ends in ``.gz`` or ``.xz``, for reading bytes."""
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def text_of(path: Path, encoding: str = "utf-8") -> io.StringIO:
    """The text of a file, packed or not, with its line ends unchanged."""
    with opened(path) as file:
        return io.StringIO(file.read().decode(encoding), newline="")


def npz_arrays(path: Path, names: tuple[str, ...]) -> list[Rows]:
    """Arrays of an npz file by name, each at most `LARGEST` bytes. Nothing is unpickled."""
    with np.load(path, allow_pickle=False) as file:
        return [bounded(file, name, LARGEST) for name in names]

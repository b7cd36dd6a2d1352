"""Find and read the files of data sets. `Files` describes their names, sources and checksums.

Files are searched in the folder that ``FEDSKEW_DATA`` names, then in the user's cache folder.
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
from fedskew.data.dataset import Baselines, Dataset, Ints, Numbered, Rows
from fedskew.data.preprocessing import Preprocessing

VARIABLE = "FEDSKEW_DATA"

LARGEST = 1 << 28
"""Maximum size of an unpacked file in bytes. The largest known one has 154 million."""

UNREADABLE = (*DAMAGED, IndexError, tarfile.TarError, lzma.LZMAError)
"""Errors that readers raise for incomplete or damaged files, or files of another kind."""

T = TypeVar("T")


@dataclass(frozen=True)
class Remote:
    """A file at its public source: size in bytes (0: unknown), checksum (empty: unknown), and name if the URL has another."""

    url: str
    size: int = 0
    sha256: str = ""
    name: str = ""

    @property
    def file(self) -> str:
        return self.name or self.url.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of a data set: at the public source (``remotes``), or other sets of files that the loader reads (``others``).

    ``natural`` says what a natural client is. ``how`` says how to get files that cannot be downloaded. Names in ``common`` occur
    in other data sets, too; these files are searched only in a subfolder with the data set's name. A ``*`` matches any name.
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
        """The sets of file names that the loader reads; the public source's names come first."""
        canonical = tuple(remote.file for remote in self.remotes)
        return [*([canonical] if canonical else []), *self.others]

    def here(self) -> list[Path]:
        """Return the paths of the first complete set of files; an empty list if none is complete."""
        if self.packaged:
            return [*self.packaged]
        for form in self.forms:
            found = [located(self.dataset, name, name in self.common) for name in form]
            if all(found):
                return [path for paths in found for path in paths]
        return []

    def paths(self) -> list[Path]:
        """Return the paths of `here`. If there are none, raise `BadInput` with the searched folders and how to get the files."""
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
        """Call ``reader`` for each file; return the results. Raises `BadInput` for missing and damaged files."""
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
        persons: tuple[Ints, Ints] | None = None,
        columns: tuple[str, ...] = (),
        texts: tuple[Sequence[str], Sequence[str]] | None = None,
        vocabulary: int = 0,
        fewest: int = 1,
        sensitive: str = "",
        test_units: Ints | None = None,
        preprocessing: Preprocessing | None = None,
        baselines: Baselines | None = None,
        notes: str = "",
    ) -> Dataset:
        """Make the data set. ``train`` and ``test`` are (rows, targets).

        ``clients`` has the natural client (n,) of each training row, and the clients' names. ``test_units`` is as in `Dataset`.
        """
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
            persons=persons,
            columns=columns,
            texts=texts,
            vocabulary=vocabulary,
            fewest=fewest,
            sensitive=sensitive,
            test_units=test_units,
            preprocessing=preprocessing,
            baselines=baselines or {},
            name=self.dataset,
            source=self.source,
            notes=notes,
        )


def folders() -> list[Path]:
    """Return the searched folders in order."""
    named = os.environ.get(VARIABLE)
    return [*([Path(named).expanduser()] if named else []), platformdirs.user_cache_path("fedskew") / "data"]


def located(dataset: str, name: str, only_subfolder: bool) -> list[Path]:
    """Return the files of this name in the first folder that has any. The data set's subfolder is searched before the folder."""
    for folder in folders():
        for place in (folder / dataset, *(() if only_subfolder else (folder,))):
            if found := sorted(path for path in place.glob(name) if path.is_file()):
                return found
    return []


@contextmanager
def reading(dataset: str, path: Path) -> Iterator[None]:
    """Turn a reader's error into a one-line `BadInput` with the file's path."""
    try:
        yield
    except UNREADABLE as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(":")
        raise BadInput(f"data set {dataset}: cannot read {path}, it is damaged or another file: {reason}") from None


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading bytes; unpack it if its name ends in ``.gz`` or ``.xz``."""
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def text_of(path: Path, encoding: str = "utf-8") -> io.StringIO:
    """Read a file's text, unpacking it if necessary. Line ends stay unchanged."""
    with opened(path) as file:
        return io.StringIO(file.read().decode(encoding), newline="")


def npz_arrays(path: Path, names: tuple[str, ...]) -> list[Rows]:
    """Read arrays of an npz file by name, each at most `LARGEST` bytes. Nothing is unpickled."""
    with np.load(path, allow_pickle=False) as file:
        return [bounded(file, name, LARGEST) for name in names]

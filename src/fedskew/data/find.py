"""Where data files are looked for: the folder named by ``FEDSKEW_DATA``, then a per-user cache folder."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import IO

import platformdirs

from fedskew.core.errors import DAMAGED, BadInput

VARIABLE = "FEDSKEW_DATA"

UNREADABLE = (*DAMAGED, IndexError, tarfile.TarError, LZMAError)
"""What readers raise for files that are cut short, damaged, or another kind of file."""


@dataclass(frozen=True)
class Remote:
    """A file at its public source; ``sha256`` is the widely published checksum, empty where there is none. ``size`` in bytes."""

    file: str
    url: str
    size: int = 0
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Files:
    """What a data set consists of: the canonical files, and other sets of files that its loader reads as well.

    ``how`` says how to get them where they cannot be downloaded. ``natural`` says whose the natural clients are. Names in
    ``common`` are those of other data sets too, and count only in a subfolder named after this one.
    """

    dataset: str
    licence: str
    classes: int
    natural: str = ""
    remotes: tuple[Remote, ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    how: str = ""
    common: tuple[str, ...] = ()

    @property
    def forms(self) -> list[tuple[str, ...]]:
        """The sets of files that the loader reads, the canonical one first."""
        canonical = tuple(remote.file for remote in self.remotes)
        return [*([canonical] if canonical else []), *self.others]

    def here(self) -> list[Path]:
        """The first set of files that is complete; nothing if none is."""
        for form in self.forms:
            paths = [path for name in form if (path := located(self.dataset, name, name in self.common))]
            if len(paths) == len(form):
                return paths
        return []

    def paths(self) -> list[Path]:
        """The same; raises `BadInput` with the places searched and how to get the files."""
        if found := self.here():
            return found
        names = " or ".join(form[0] for form in self.forms)
        raise missing(self.dataset, names, self.how or f"`fedskew data get {self.dataset}` fetches it")


def folders() -> list[Path]:
    """The folders that are searched, in order."""
    named = os.environ.get(VARIABLE)
    return [*([Path(named).expanduser()] if named else []), platformdirs.user_cache_path("fedskew") / "data"]


def located(dataset: str, filename: str, own_folder: bool = False) -> Path | None:
    """The first file of that name, in a folder that is searched or (else only) in its subfolder named after the data set."""
    places = [
        place / filename for folder in folders() for place in (folder / dataset, *([] if own_folder else [folder]))
    ]
    return next((place for place in places if place.is_file()), None)


def missing(dataset: str, names: str, how: str) -> BadInput:
    places = " and ".join(str(folder) for folder in folders())
    hint = "" if os.environ.get(VARIABLE) else f" ({VARIABLE} is not set)"
    return BadInput(f"data set {dataset}: no file {names} in {places}{hint}; {how}, or set {VARIABLE} to its folder")


@contextmanager
def reading(dataset: str, path: Path) -> Iterator[None]:
    """Whatever a reader raises becomes one line with the file's place."""
    try:
        yield
    except UNREADABLE as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(":")
        raise BadInput(f"data set {dataset}: cannot read {path}, it is damaged or another file: {reason}") from None


def opened(path: Path) -> IO[bytes]:
    """The file, or what it holds if its name ends in ``.gz``, for reading bytes."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]

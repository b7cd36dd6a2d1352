"""Find and read the files of data sets. `Files` describes their names, sources and checksums.

Files are searched in the folder that ``FEDSKEW_DATA`` names, then in the user's cache folder. `kept` keeps what is computed from
them.
"""

import gzip
import hashlib
import http.client
import io
import lzma
import os
import re
import ssl
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
import platformdirs

from fedskew.core.errors import DAMAGED, BadInput, FedskewError, first_line
from fedskew.core.files import bounded, replacing
from fedskew.data.dataset import Dataset, Numbered, Rows

VARIABLE = "FEDSKEW_DATA"
CACHE = "FEDSKEW_CACHE"
"""Environment variable that sets the folder of computed files. By default it is a folder of the user."""

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
            groups = [located(self.dataset, name, name in self.common) for name in form]
            if all(groups):
                return [path for paths in groups for path in paths]
        return []

    def paths(self) -> list[Path]:
        """Return the paths of `here`. If there are none, raise `BadInput` with the searched folders and how to get the files."""
        if paths := self.here():
            return paths
        names = " or ".join(form[0] for form in self.forms)
        places = " and ".join(str(folder) for folder in folders())
        hint = "" if os.environ.get(VARIABLE) else f" ({VARIABLE} is not set)"
        how = self.how or f"`fedskew data get {self.dataset}` fetches it"
        raise BadInput(
            f"data set {self.dataset}: no file {names} in {places}{hint}; {how}, or set {VARIABLE} to its folder"
        )

    def read(self, reader: Callable[[Path], T]) -> list[T]:
        """Call ``reader`` for each file; return the results. Raises `BadInput` for missing and damaged files."""
        results = []
        for path in self.paths():
            with reading(self.dataset, path):
                results.append(reader(path))
        return results

    def build(
        self,
        train: tuple[Rows, Rows],
        test: tuple[Rows, Rows],
        classes: Sequence[str] = (),
        clients: Numbered | None = None,
        **facts: Any,
    ) -> Dataset:
        """Make the data set. ``train`` and ``test`` are (rows, targets); ``facts`` are further fields of `Dataset`.

        ``clients`` has the natural client (n,) of each training row, and the clients' names.
        """
        (x, y), (x_test, y_test), (groups, group_names) = train, test, clients or (None, ())
        facts |= {"classes": tuple(classes), "name": self.dataset, "source": self.source}
        return Dataset(x=x, y=y, x_test=x_test, y_test=y_test, groups=groups, group_names=group_names, **facts)


def folders() -> list[Path]:
    """Return the searched folders in order."""
    variable = os.environ.get(VARIABLE)
    return [*([Path(variable).expanduser()] if variable else []), platformdirs.user_cache_path("fedskew") / "data"]


def located(dataset: str, name: str, only_subfolder: bool) -> list[Path]:
    """Return the files of this name in the first folder that has any. The data set's subfolder is searched before the folder."""
    for folder in folders():
        for place in (folder / dataset, *(() if only_subfolder else (folder,))):
            if files := sorted(path for path in place.glob(name) if path.is_file()):
                return files
    return []


@contextmanager
def reading(dataset: str, path: Path) -> Iterator[None]:
    """Turn a reader's error into a one-line `BadInput` with the file's path."""
    try:
        yield
    except UNREADABLE as error:
        reason = first_line(error).rstrip(":")
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


def kept(name: str, make: Callable[[Path], None]) -> Rows:
    """Return the array in the cache file of this name, memory-mapped. If the file is missing, ``make(path)`` writes it first.

    It is written whole, so that an incomplete file is never read.
    """
    path = Path(os.environ.get(CACHE) or platformdirs.user_cache_path("fedskew") / "computed", f"{name}.npy")
    if not path.is_file():
        try:
            with replacing(path) as partial:
                make(partial)
        except OSError as error:
            raise FedskewError(f"cannot write {path}: {error.strerror}; set {CACHE} to another folder") from None
    # mode "c" is copy on write; PyTorch warns about read-only arrays
    return np.load(path, mmap_mode="c")


CHUNK = 1 << 16
TIMEOUT = 30.0
"""A connection that sends no byte for this number of seconds counts as broken."""

SLOWEST = 1000
"""A connection counts as broken if its average speed, from `TIMEOUT` on, is below this number of bytes a second."""

MOST_BYTES = 4 << 30
"""Maximum size in bytes of a file of unknown size. The largest known file has a tenth of it."""

OnProgress = Callable[[str, int, int], None]
"""Takes a file's name, the bytes received so far, and the file's size (0: unknown)."""


def home(files: Files) -> Path:
    """Return the download folder of a data set: a subfolder of the first searched folder."""
    return folders()[0] / files.dataset


def fetch(files: Files, on_progress: OnProgress = lambda file, done, size: None) -> list[Path]:
    """Download the missing files; return the paths of all. Raises `FedskewError`; another call resumes the download."""
    place = home(files)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedskewError(f"data set {files.dataset}: cannot make {place}: {error.strerror}") from None
    return [fetch_file(remote, place, on_progress) for remote in files.remotes]


def fetch_file(remote: Remote, place: Path, on_progress: OnProgress) -> Path:
    """Download one file; return its path. An unfinished file stays as ``.part`` for resuming, if there is a checksum."""
    target, part = place / remote.file, place / f"{remote.file}.part"
    if target.is_file():
        return target
    if not remote.sha256:
        part.unlink(missing_ok=True)
    advice = f"try again, or put {remote.file} from {remote.url} into {place}"
    try:
        receive(remote, part, on_progress)
        if remote.sha256 and (checksum := digest(part)) != remote.sha256:
            part.unlink()
            raise FedskewError(
                f"{remote.url}: the file was changed or damaged during the download, its SHA-256 is {checksum[:16]}... and not "
                f"{remote.sha256[:16]}...; nothing was kept, try again"
            )
        part.replace(target)
    except urllib.error.HTTPError as error:
        raise FedskewError(f"{remote.url}: the server answers {error.code} {error.reason}; {advice}") from None
    except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
        if not remote.sha256:
            part.unlink(missing_ok=True)
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise FedskewError(f"cannot download from {urlsplit(remote.url).hostname}: {reason}; {advice}") from None
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FedskewError(f"cannot write {target}: {error.strerror}; nothing was kept") from None
    return target


def receive(remote: Remote, part: Path, on_progress: OnProgress) -> None:
    """Download the missing bytes and append them to ``part``; if the server cannot resume, download all.

    Raises `ConnectionError` if the connection ends early.
    """
    done = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "fedskew"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return  # all bytes are there; the checksum decides if they are right
    with answer:
        resumed = answer.status == http.client.PARTIAL_CONTENT
        done = done if resumed else 0
        length = answer.headers.get("Content-Length") or "0"
        if not re.fullmatch("[0-9]{1,18}", length):
            raise http.client.HTTPException(f"the server gives the size {length[:40]!r}, which is no number")
        size = done + int(length) if int(length) else remote.size
        if not (size or remote.sha256 or answer.headers.get("Transfer-Encoding")):
            raise ConnectionError("the server does not say how long the file is, so it cannot be checked")
        most, start, before = min(size or MOST_BYTES, MOST_BYTES), monotonic(), done
        with open(part, "ab" if resumed else "wb", opener=without_following) as file:
            while block := answer.read1(CHUNK):
                done += len(block)
                if done > most:
                    part.unlink()
                    raise http.client.HTTPException(f"more than the {most:,} expected bytes")
                file.write(block)
                on_progress(remote.file, done, size)
                if done - before < SLOWEST * (monotonic() - start - TIMEOUT):
                    raise TimeoutError(f"less than {SLOWEST:,} bytes a second")
    if size and done < size:
        raise ConnectionError(f"the connection ended after {done:,} of {size:,} bytes")


def without_following(path: str, flags: int) -> int:
    """Open a file that is not a link. The name of an unfinished download is known, so another user could put a link there."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

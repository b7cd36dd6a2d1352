"""Downloading the files of a data set: resumed, checked, and given their name only when complete.

Archives are never unpacked to disk. Loaders read their members in place, so no name inside an archive can reach another folder.
"""

import hashlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

from fedskew.core.errors import FedskewError
from fedskew.data.find import Files, Remote, folders

CHUNK = 1 << 16
TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

SLOWEST = 1000
"""Bytes a second, on average from `TIMEOUT` on, below which a connection counts as broken."""

MOST_BYTES = 4 << 30
"""Most bytes of a file of unknown size; the largest known file has a tenth of it."""

OnProgress = Callable[[str, int, int], None]
"""Takes a file's name, the bytes received so far, and the file's size (0: unknown)."""


def home(files: Files) -> Path:
    """The folder for downloads of a data set: a subfolder of the first folder that is searched."""
    return folders()[0] / files.dataset


def fetch(files: Files, on_progress: OnProgress = lambda file, done, size: None) -> list[Path]:
    """Download the files that are missing and return all paths. Raises `FedskewError` in one line; then call it again."""
    place = home(files)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedskewError(f"data set {files.dataset}: cannot make {place}: {error.strerror}") from None
    return [fetch_file(remote, place, on_progress) for remote in files.remotes]


def fetch_file(remote: Remote, place: Path, on_progress: OnProgress) -> Path:
    """Download one file. If there is a checksum, an unfinished file stays as ``.part``, to be resumed."""
    target, part = place / remote.file, place / f"{remote.file}.part"
    if target.is_file():
        return target
    if not remote.sha256:
        part.unlink(missing_ok=True)
    advice = f"try again, or put {remote.file} from {remote.url} into {place}"
    try:
        receive(remote, part, on_progress)
        if remote.sha256 and (found := digest(part)) != remote.sha256:
            part.unlink()
            raise FedskewError(
                f"{remote.url}: the file was changed or damaged during the download, its SHA-256 is {found[:16]}... and not "
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
    """Append the missing bytes to ``part``, or write all if the server cannot resume. Raises `ConnectionError` if it ends early."""
    done = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "fedskew"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return  # no bytes are missing; the checksum decides whether they are right
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
        with part.open("ab" if resumed else "wb") as file:
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


def digest(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

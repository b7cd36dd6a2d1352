"""Download the files of a data set. Downloads resume, are checked, and get their final name only when complete.

Archives are never unpacked to disk; loaders read files inside them. Therefore no path in an archive can write to another folder.
"""

import hashlib
import http.client
import os
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

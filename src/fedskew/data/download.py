"""Fetching the files of a data set from their public source: resumed, checked, and under their name only when they are whole.

Archives are never unpacked to disk: loaders read their members in place, so no name inside an archive can reach another folder.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from fedskew.core.errors import FedskewError
from fedskew.data.find import Files, Remote, folders

CHUNK = 1 << 16
TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

MOST_BYTES = 4 << 30
"""Of a file whose size neither we nor the server know; the largest that we know of is a tenth of it."""

Tell = Callable[[str, int, int], None]
"""Hears a file's name, the bytes that are there, and how many there will be (0: unknown)."""


def home(files: Files) -> Path:
    """Where a data set is downloaded to: a subfolder of the first folder that is searched."""
    return folders()[0] / files.dataset


def fetch(files: Files, tell: Tell = lambda file, done, of: None) -> list[Path]:
    """Download what is not there yet; the paths. Raises `FedskewError` in one line, after which the call can be repeated."""
    place = home(files)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedskewError(f"data set {files.dataset}: cannot make {place}: {error.strerror}") from None
    return [fetch_file(remote, place, tell) for remote in files.remotes]


def fetch_file(remote: Remote, place: Path, tell: Tell) -> Path:
    """One file; an unfinished one stays beside it as ``.part`` if a checksum can tell, later on, that its halves fit together."""
    target, part = place / remote.file, place / f"{remote.file}.part"
    if target.is_file():
        return target
    if not remote.sha256:
        part.unlink(missing_ok=True)
    try:
        receive(remote, part, tell)
        if remote.sha256 and (found := digest(part)) != remote.sha256:
            part.unlink()
            raise FedskewError(
                f"{remote.url}: the file was altered or damaged on its way, its SHA-256 is {found[:16]}... and not "
                f"{remote.sha256[:16]}...; nothing was kept, try again"
            )
        part.replace(target)
    except urllib.error.HTTPError as error:
        raise FedskewError(
            f"{remote.url}: the server answers {error.code} {error.reason}; {by_hand(remote, place)}"
        ) from None
    except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        host = urlsplit(remote.url).hostname
        raise FedskewError(f"cannot download from {host}: {reason}; {by_hand(remote, place)}") from None
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FedskewError(f"cannot write {target}: {error.strerror}; nothing was kept") from None
    return target


def by_hand(remote: Remote, place: Path) -> str:
    return f"try again, or put {remote.file} from {remote.url} into {place}"


def receive(remote: Remote, part: Path, tell: Tell) -> None:
    """Append to ``part`` what it lacks, or all where the server cannot continue. Raises `ConnectionError` if it ends early."""
    there = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(remote.url, headers={"User-Agent": "fedskew"})
    if there:
        request.add_header("Range", f"bytes={there}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        # it is whole already, which the checksum tells, or not a part of this file
        return
    with answer:
        continued = answer.status == http.client.PARTIAL_CONTENT
        there = there if continued else 0
        length = answer.headers.get("Content-Length") or "0"
        if not re.fullmatch("[0-9]{1,18}", length):
            raise http.client.HTTPException(f"the server gives the size {length[:40]!r}, which is no number")
        of = there + int(length) if int(length) else remote.size
        if not (of or remote.sha256 or answer.headers.get("Transfer-Encoding")):
            raise ConnectionError(
                "the server does not say how long the file is, so nobody could tell whether it is whole"
            )
        with part.open("ab" if continued else "wb") as file:
            while block := answer.read(CHUNK):
                there += len(block)
                if there > (of or MOST_BYTES):
                    part.unlink()
                    raise http.client.HTTPException(f"more than the {of or MOST_BYTES:,} bytes that were to come")
                file.write(block)
                tell(remote.file, there, of)
    if of and there < of:
        if not remote.sha256:
            part.unlink()
        raise ConnectionError(f"the connection ended after {there:,} of {of:,} bytes")


def digest(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""The errors that users see. Each message is one line: what is wrong, where, and what to do instead."""

import difflib
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from tokenize import TokenError

SURROGATES = re.compile("[\ud800-\udfff]")
"""Characters that Python decodes from invalid UTF-8. They cannot be written to a file or database."""

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal, reorder a line or cannot be encoded, except line breaks and tabs."""


def visible(text: str) -> str:
    """Replace every unprintable character by its Python escape: an escape character becomes ``\\x1b``."""
    return text if text.isprintable() else UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


class FedskewError(Exception):
    """Base of all errors that fedskew raises on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        # join lines, because a library's message may have several
        super().__init__(visible(" ".join(line.strip() for line in message.splitlines())))

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class BadInput(FedskewError):
    """The input is invalid. Nothing was started."""

    exit_code = 2


class Diverged(FedskewError):
    """Training produced an infinite or undefined number. All earlier rounds are stored."""

    exit_code = 3


class TooFew(FedskewError):
    """A round received too few usable answers. All earlier rounds are stored."""


class NoRoom(FedskewError):
    """A private file of this process cannot be read or written. Everything up to the last checkpoint is stored."""


class Interrupted(FedskewError):
    """The user asked to stop. The run has a checkpoint and can be resumed."""

    exit_code = 130


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its class if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


DAMAGED = (
    *(OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, TokenError),
)
"""Exceptions that readers of JSON and NumPy files raise for a damaged file. `MemoryError`: the file may claim terabytes."""


def require(condition: bool, message: str) -> None:
    """Raise `BadInput` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise BadInput(message)


MOST = 2**63 - 1
"""The largest whole number that TOML and the run store hold."""


def require_storable(what: str, value: object) -> None:
    """Raise `BadInput` for a whole number above `MOST` or below -`MOST`, for text that is not Unicode, and for lists of these."""
    if isinstance(value, str):
        require(not SURROGATES.search(value), f"{what} must be UTF-8 text, got {value!r}")
    elif isinstance(value, int):
        require(-MOST <= value <= MOST, f"{what} must be at most 2^63 - 1 = {MOST} in size")
    elif isinstance(value, list | tuple):
        for part in value:
            require_storable(what, part)


def suggestion(wrong: str, names: Iterable[str]) -> str:
    """Return the end of an error message for an unknown name: the nearest known name, or all known names."""
    names = sorted({*names})
    if {*wrong.split(",")} <= {*names}:
        return f"write its names one by one: {wrong.replace(',', ' ')}"
    small = {name.lower(): name for name in names}
    near = difflib.get_close_matches(wrong.lower(), small, n=1, cutoff=0.5)
    if near:
        return f"did you mean {small[near[0]]!r}?"
    return "known are: " + ", ".join(names) if names else "none are known"

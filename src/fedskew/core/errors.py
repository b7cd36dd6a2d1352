"""The errors a user can meet. Each message is one line: what is wrong, where, what to write instead."""

from __future__ import annotations

import difflib
import struct
import zipfile
import zlib
from collections.abc import Iterable
from tokenize import TokenError


class FedskewError(Exception):
    """Base of all errors that fedskew raises on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        # what a library says, and is told on here, may have several lines
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


class BadInput(FedskewError):
    """The request cannot be carried out as written; nothing was started."""

    exit_code = 2


class Diverged(FedskewError):
    """Training produced an infinite or undefined number; everything before that round is stored."""

    exit_code = 3


class TooFew(FedskewError):
    """Too few usable answers for a round; everything before it is stored."""


class NoRoom(FedskewError):
    """A file that only this process has cannot be read or written; everything up to the last checkpoint is stored."""


class Interrupted(FedskewError):
    """The user asked to stop; the run was checkpointed and can be resumed."""

    exit_code = 130


DAMAGED = (
    *(OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, TokenError),
)
"""What the readers of JSON and NumPy's files raise at a damaged one; a claimed size of terabytes is among it."""


def require(condition: bool, message: str) -> None:
    """Raise `BadInput` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise BadInput(message)


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """The tail of an error about an unknown name: the nearest right one, or all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(wrong.lower(), known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return "known are: " + ", ".join(known) if known else "none are known"


def proximal_hazard(option: str, strength: float, lr: float) -> str:
    """Why SGD on a loss with a term ``strength / 2 * ||w - x||^2`` may diverge, or nothing."""
    if lr * strength < 1:
        return ""
    return (
        f"lr x {option} = {lr * strength:g}: an explicit proximal step overshoots from 1 and diverges from 2; "
        f"lower {option} below {1 / lr:.2g}"
    )

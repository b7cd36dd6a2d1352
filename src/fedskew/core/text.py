"""Text for readers and from users: numbers with a noun, names as papers write them, folds of cross-validation."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedskew.core.errors import require


def count(number: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(share: float) -> str:
    """``12 %``; one decimal below 1 %."""
    return f"{100 * share:.{int(0 < share < 0.01)}f} %"


def listed(names: Sequence[str]) -> str:
    """Join names: ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def capital(text: str) -> str:
    """Return the text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


TITLES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("titles.toml").read_text(encoding="utf-8"))
METHODS, SERVERS, SKEWS = TITLES["methods"], TITLES["servers"], TITLES["skews"]
"""By the name of a method, combination, server optimiser or skew, its name as papers write it."""


def plainly(name: str) -> str:
    """Return the name in lower case, without spaces, hyphens and underscores."""
    return re.sub(r"[-_\s]", "", name.lower())


BY_PLAIN_NAME = {plainly(name): title for table in (METHODS, SKEWS) for name, title in table.items()}


def title(name: str) -> str:
    """Return the name of a method or skew as papers write it, ``SCAFFOLD``, for any spelling; another name unchanged."""
    return BY_PLAIN_NAME.get(plainly(name), name)


class Folds(NamedTuple):
    """A split into folds. Each row is in one fold. If ``of_clients``, all rows of a client are in the same fold."""

    number: int
    of_clients: bool

    def __str__(self) -> str:
        return f"{self.number}{':clients' * self.of_clients}"


def parse_folds(text: str) -> Folds:
    """Parse ``5`` or ``4:clients``."""
    match = re.fullmatch(r"(\d{1,9})(:clients)?", text, re.ASCII)
    require(
        match is not None and int(match[1]) >= 2,
        f"folds: write a number of at least 2, such as 5, or 4:clients to leave out whole clients; got {text!r}",
    )
    assert match
    return Folds(int(match[1]), match[2] is not None)

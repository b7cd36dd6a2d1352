"""Reads the folds of cross-validation in the form that users write: ``5`` or ``4:clients``."""

import re
from typing import NamedTuple

from fedskew.core.errors import require


class Folds(NamedTuple):
    """A split into folds. Each row is in one fold. If ``of_clients``, all rows of a client are in the same fold."""

    number: int
    of_clients: bool

    def __str__(self) -> str:
        return f"{self.number}{':clients' * self.of_clients}"


def parse_folds(text: str) -> Folds:
    """Parse ``5`` or ``4:clients``."""
    found = re.fullmatch(r"(\d{1,9})(:clients)?", text, re.ASCII)
    require(
        found is not None and int(found[1]) >= 2,
        f"folds: write a number of at least 2, such as 5, or 4:clients to leave out whole clients; got {text!r}",
    )
    assert found
    return Folds(int(found[1]), found[2] is not None)

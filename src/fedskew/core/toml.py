"""Read TOML files and texts."""

import tomllib
from pathlib import Path
from typing import Any

from fedskew.core.errors import BadInput
from fedskew.core.places import read_small


def file_text(path: Path) -> str:
    """Read the text of an experiment file. Raises `BadInput` if it cannot be read."""
    try:
        return read_small(path).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(f"experiment file {path}: cannot be read: {reason}") from None


def toml_table(text: str, where: str) -> dict[str, Any]:
    """Parse a TOML document. Raises `BadInput`, which names ``where``, if it is not valid."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BadInput(f"{where}: not valid TOML: too many brackets within each other") from None
    except ValueError as error:  # also raised for numbers with thousands of digits
        raise BadInput(f"{where}: not valid TOML: {error}") from None

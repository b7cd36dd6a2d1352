"""Reading TOML."""

import tomllib
from typing import Any

from fedskew.core.errors import BadInput


def toml_table(text: str, where: str) -> dict[str, Any]:
    """Parse a TOML document. Raises a `BadInput` that names ``where``."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BadInput(f"{where}: not valid TOML: too many brackets within each other") from None
    except ValueError as error:  # of numbers with thousands of digits, too
        raise BadInput(f"{where}: not valid TOML: {error}") from None

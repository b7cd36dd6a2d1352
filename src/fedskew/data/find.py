"""Where data files are looked for: the folder named by ``FEDSKEW_DATA``, then a per-user cache folder."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from fedskew.core.errors import BadInput

VARIABLE = "FEDSKEW_DATA"


def folders() -> list[Path]:
    """The folders that are searched, in order."""
    named = os.environ.get(VARIABLE)
    return [*([Path(named).expanduser()] if named else []), platformdirs.user_cache_path("fedskew") / "data"]


def find(dataset: str, filename: str, how: str) -> Path:
    """The first file of that name; raises `BadInput` with the places searched and ``how`` to get the file."""
    for folder in folders():
        if (folder / filename).is_file():
            return folder / filename
    places = " and ".join(str(folder) for folder in folders())
    hint = "" if os.environ.get(VARIABLE) else f" ({VARIABLE} is not set)"
    raise BadInput(f"data set {dataset}: no file {filename} in {places}{hint}; {how}")

"""Where files lie that an experiment names."""

from __future__ import annotations

from pathlib import Path


def whole_path(path: str) -> str:
    """The whole path of what is there, so that a run goes on, and is repeated, from any folder; what is not there as it is written.

    A name of the Hugging Face hub is such a one, unless a folder has it, too, which its libraries then take as well.
    """
    place = Path(path).expanduser()
    return str(place.resolve()) if path and place.exists() else path

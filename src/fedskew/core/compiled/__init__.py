"""Loops that numba compiles for this processor (extra ``fast``); who asks for one knows how PyTorch does the same.

Compiled code lies beside these files, or where that cannot be written in numba's cache of the user, so that the next process
need not compile again.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def compiled(name: str) -> ModuleType | None:
    """A module of this folder, where numba is installed and finds a folder for what it compiles."""
    try:
        return import_module(f"fedskew.core.compiled.{name}")
    except (ImportError, RuntimeError):
        return None

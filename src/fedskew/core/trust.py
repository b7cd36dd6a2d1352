"""Which code may run. A list outside every run store remembers the code that this user has named or confirmed.

A run store may come from someone else. It names files and modules that a run needs. They are imported only if they are in the
list: a file by the hash of its contents, a module of an installed package by its name.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import platformdirs

from fedskew.core.errors import BadInput

FOLDER, SESSION = "FEDSKEW_CONFIG", "FEDSKEW_TRUSTED"
"""Environment variables: the folder of the list (default: the user's configuration folder), and keys if no list can be written."""

ASKED: ContextVar[bool] = ContextVar("ASKED", default=False)


def place() -> Path:
    """Return the path of the list. Each line has a key, and the name that the code had when it was added."""
    return Path(os.environ.get(FOLDER) or platformdirs.user_config_path("fedskew")) / "trusted-code.txt"


def known() -> set[str]:
    """Return the keys of all trusted code."""
    keys = set(os.environ.get(SESSION, "").split())
    with suppress(OSError):
        keys |= {line.partition(" ")[0] for line in place().read_text(encoding="utf-8", errors="replace").splitlines()}
    return keys


def key_of(contents: bytes) -> str:
    """Return the key of a code file's contents, or of a module's name."""
    return hashlib.sha256(contents).hexdigest()


def admit(contents: bytes, what: str) -> None:
    """Add code to the list. Inside `asking` raise `BadInput` instead if the code is not in the list."""
    key = key_of(contents)
    if key in known():
        return
    if ASKED.get():
        raise BadInput(
            f"{what} is code that you have not run or confirmed before; read it, and if you trust it, add --trust to the command"
        )
    try:
        place().parent.mkdir(parents=True, exist_ok=True)
        with place().open("a", encoding="utf-8") as file:
            file.write(f"{key} {' '.join(what.split())}\n")
    except OSError:
        # valid in this process and its child processes
        os.environ[SESSION] = f"{os.environ.get(SESSION, '')} {key}".strip()


def admit_module(name: str) -> None:
    """Do what `admit` does, for a class of an installed package by its name."""
    admit(f"module {name}".encode(), name)


@contextmanager
def asking() -> Iterator[None]:
    """Inside this context, input may come from someone else: only code in the list runs."""
    before = ASKED.set(True)
    try:
        yield
    finally:
        ASKED.reset(before)

"""Refuse work that needs more memory than the machine has. The system would end such a process without a message."""

import os

from fedskew.core.errors import require


def installed() -> int:
    """Return the size of this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(needed: int, what: str, instead: str) -> None:
    """Raise `BadInput` if ``what`` needs more bytes (``needed``) than the machine has. ``instead`` says what to do."""
    require(
        needed <= installed(),
        f"{what} needs {needed / 1e9:,.1f} GB of memory, but this machine has {installed() / 1e9:,.1f} GB; {instead}",
    )

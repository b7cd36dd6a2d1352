"""Waiting for other processes, with a limit."""

import time
from collections.abc import Callable


def wait_until(check: Callable[[], object], seconds: float = 60, said: Callable[[], str] = str) -> None:
    """Wait until the check holds. After these seconds, fail with what the other process has said."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, said()
        time.sleep(0.1)

"""Measure time in named spans that do not overlap. Nothing is measured unless `profiled` is active."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

REST = "other"
"""Name for the time outside all named spans."""


class Clock:
    """Seconds by span name. Time counts for the innermost span only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.open = [REST]
        self.since = time.perf_counter()

    def turn(self) -> None:
        """Add the time since the last call to the innermost span."""
        now = time.perf_counter()
        self.seconds[self.open[-1]] = self.seconds.get(self.open[-1], 0.0) + now - self.since
        self.since = now

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        self.turn()
        self.open.append(name)
        try:
            yield
        finally:
            self.turn()
            self.open.pop()


CLOCK: ContextVar[Clock | None] = ContextVar("CLOCK", default=None)
NOTHING = nullcontext()


def span(name: str) -> AbstractContextManager[None]:
    """Measure the time inside under ``name``, if `profiled` is active."""
    clock = CLOCK.get()
    return NOTHING if clock is None else clock.span(name)


@contextmanager
def profiled(before: dict[str, float]) -> Iterator[dict[str, float]]:
    """Measure spans within this context. Yields seconds by name, which start at ``before`` and are complete at the end."""
    clock = Clock()
    clock.seconds.update(before)
    token = CLOCK.set(clock)
    try:
        yield clock.seconds
    finally:
        clock.turn()
        CLOCK.reset(token)

"""The machine that executes the runs: its processor, its cores, its memory, and the time that parts of a run take.

Time is measured in named spans that do not overlap, and only while `profiled` is active.
"""

import ctypes
import os
import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path

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


# constants from glibc's malloc.h
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3


@cache
def keep_freed_memory() -> None:
    """Let this process keep freed memory blocks of up to 1 GiB, instead of returning them to the system.

    Every step allocates and frees vectors of millions of parameters. The first access to memory that is new from the system costs
    more than the arithmetic on it. Does nothing if the C library is not glibc.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(TRIM_THRESHOLD, (1 << 31) - 1)


SLOWER = 1.5
"""Minimum ratio of the rates in float32 and bfloat16 that a busy machine does not show by chance."""


def processor() -> str:
    """Return the processor's name, or its architecture if the system does not give a name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


START = "start the same command on every machine with `torchrun ... -m fedskew ...`"


def launcher() -> tuple[int, int]:
    """Return this process's rank and the number of ranks from ``torchrun``'s environment variables; (0, 1) without it.

    Raises `BadInput` if the variables are not valid.
    """
    values = {name: os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))}
    variables = ", ".join(f"{name}={value}" for name, value in values.items())
    require(all(value.isdecimal() for value in values.values()), f"{variables}: whole numbers are needed; {START}")
    rank, size = map(int, values.values())
    require(rank < size, f"{variables}: ranks go from 0 to WORLD_SIZE - 1; {START}, or unset RANK")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    require(size == 1 or not missing, f"{variables}, but {' and '.join(missing)} not set; {START}, or unset WORLD_SIZE")
    return rank, size


@cache
def slow_bf16() -> str:
    """Return a line if matrix products in bfloat16 take longer here than in float32; else "".

    They do on processors without bfloat16. The test multiplies matrices of 256 rows in both types; it takes about 50 ms.
    """
    import torch

    full = torch.ones(256, 256)
    rates = []
    for matrix in (full, full.bfloat16()):
        seconds = []
        for _ in range(6):
            began = time.perf_counter()
            torch.mm(matrix, matrix)
            seconds.append(time.perf_counter() - began)
        rates.append(2e-9 * len(matrix) ** 3 / min(seconds))
    if rates[1] > rates[0] / SLOWER:
        return ""
    return (
        f"precision bf16: slower on this processor, {rates[1]:.2g} instead of {rates[0]:.0f} GFLOP/s in a matrix product; "
        "--precision full is faster"
    )


def hardware() -> dict[str, str]:
    """Return the processor, number of cores and memory of this machine as text."""
    memory = f"{installed() / 2**30:.0f} GiB of memory"
    return {"processor": processor(), "cores": f"{cores()} cores", "memory": memory}


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Let PyTorch use ``count`` threads in this context; restore the number at its end."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


REST = "other"
"""Name for the time outside all named spans."""


class Clock:
    """Seconds by span name. Time counts for the innermost span only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.open = [REST]
        self.since = time.perf_counter()

    def turn(self) -> None:
        """Count the time since the last ``turn`` for the innermost span."""
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

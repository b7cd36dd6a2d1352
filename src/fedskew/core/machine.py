"""The machine that executes the runs: its processor, its cores, and its memory."""

import ctypes
import os
import platform
import time
from contextlib import suppress
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


@cache
def slow_bf16(side: int = 512) -> str:
    """Return a line if matrix products in bfloat16 take longer here than in float32, as on processors without it; else "".

    Multiplies matrices of ``side`` rows in both; takes about 50 ms.
    """
    import torch

    full = torch.ones(side, side)
    rates = []
    for matrix in (full, full.bfloat16()):
        seconds = []
        for _ in range(6):
            began = time.perf_counter()
            torch.mm(matrix, matrix)
            seconds.append(time.perf_counter() - began)
        rates.append(2e-9 * side**3 / min(seconds))
    if rates[1] > rates[0] / SLOWER:
        return ""
    return (
        f"precision bf16: slower on this processor, {rates[1]:.0f} instead of {rates[0]:.0f} GFLOP/s in a matrix product; "
        "--precision full is faster"
    )


def hardware() -> dict[str, str]:
    """Return the processor, number of cores and memory of this machine as text."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(),
        "cores": f"{cores()} cores",
        "memory": f"{memory / 2**30:.0f} GiB of memory",
    }

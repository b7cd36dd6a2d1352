"""Settings of the C library for freed memory."""

import ctypes
import platform
from functools import cache

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

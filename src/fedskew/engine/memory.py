"""What the C library does with freed memory."""

import ctypes
import platform
from functools import cache

# numbers of glibc's malloc.h
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3


@cache
def keep_freed_memory() -> None:
    """Let this process keep blocks of up to a gigabyte that it frees, instead of handing them back to the system.

    Vectors of millions of parameters come and go at every step, and the first touch of memory fresh from the system costs more
    than the arithmetic on it. Does nothing where the C library is not glibc.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(TRIM_THRESHOLD, (1 << 31) - 1)

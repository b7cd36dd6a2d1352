"""Freed memory stays with the process: blocks that come and go touch no new pages."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import numpy as np
from fedskew.core.machine import keep_freed_memory
def faults():
    counts = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.full(1 << 23, 1.0)
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(counts)
before = faults()
keep_freed_memory()
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are for glibc's malloc")
def test_freed_blocks_are_used_again():
    """A block of 64 MiB is at least 32 pages, of 2 MiB."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=100)
    before, after = map(int, done.stdout.split())
    assert before >= 32
    assert after < 10

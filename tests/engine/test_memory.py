"""Freed memory stays with the process: blocks that come and go touch no new pages."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from fedskew.engine.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def touch():
    torch.ones(1 << 24)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
counts = []
for _ in range(6):
    before = faults()
    touch()
    counts.append(faults() - before)
print(min(counts))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc is meant")
def test_freed_blocks_are_used_again():
    """A block of 64 MiB is 16,384 pages of 4 KiB."""

    def pages(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True, timeout=100
        )
        return int(done.stdout)

    assert pages("leave") > 1000
    assert pages("keep") < 100

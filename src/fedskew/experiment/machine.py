"""The machine that executes the runs."""

import os
import platform
from contextlib import suppress
from pathlib import Path


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


def hardware() -> dict[str, str]:
    """Return the processor, number of cores and memory of this machine as text."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(),
        "cores": f"{cores()} cores",
        "memory": f"{memory / 2**30:.0f} GiB of memory",
    }

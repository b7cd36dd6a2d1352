"""What trials of engines measured on this machine, kept in one small file; a file that is damaged or cannot be written is none."""

from __future__ import annotations

import hashlib
import math
import os
import platform
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch

from fedskew.experiment.prepare import cache_folder
from fedskew.loop.federation import Federation
from fedskew.loop.round import Work

MOST = 500
"""Workloads that are remembered; the oldest are forgotten."""


def place() -> Path:
    """The file."""
    return cache_folder() / "engines.json"


def recall(key: str) -> dict[str, float]:
    """Seconds by what they are of, as far as they are known."""
    return {name: value for name, value in entries().get(key, {}).items() if 0 < value < math.inf}


def remember(key: str, seconds: dict[str, float]) -> None:
    """Keep the seconds of a workload, in place of those known; the file is whole or as it was."""
    known = entries()
    known.pop(key, None)
    known[key] = {name: float(f"{value:.4g}") for name, value in seconds.items()}
    path = place()
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(dict(list(known.items())[-MOST:]))))
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def entries() -> dict[str, dict[str, float]]:
    try:
        return msgspec.json.decode(place().read_bytes(), type=dict[str, dict[str, float]])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return {}


def key_of(fed: Federation, work: Work) -> str:
    """The machine and everything of a round that its time depends on; numbers of steps to a quarter, since seeds change them."""
    steps = [len(plan.index) for plan in work.plans]
    batch = max(plan.index.shape[1] for plan in work.plans)
    measured = sum(len(plan.index) for plan in work.measured)
    slots = (fed.algorithm, fed.solver, fed.server_optimiser, fed.codec, fed.refinement)
    parts = [
        *(traits(slot) for slot in slots),
        *(fed.kept is not None, work.plans[0].warp is not None),
        *([str(getattr(task, "model", task)), task.space.shapes] for task in fed.tasks),
        *(fed.x.shape[1:], fed.x.dtype, work.view.x.dtype, fed.x.device, getattr(fed.task, "bf16", False)),
        *(len(steps), batch, about(sum(steps)), about(max(steps)), about(measured)),
    ]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    size = sum(task.space.size for task in fed.tasks)
    told = f"{type(fed.algorithm).__name__}, {size} parameters, {len(steps)} clients, batches of {batch}"
    return f"{machine(fed.x.device)}: {told}, {digest}"


def traits(slot: Any) -> list[Any]:
    """What a component is, and its options; of real numbers only whether they are 0: others take as long."""
    options = {f.name: getattr(slot, f.name) for f in fields(slot)}
    plain = {name: value != 0 if isinstance(value, float) else value for name, value in options.items()}
    return [type(slot).__module__, type(slot).__qualname__, plain]


def about(count: int) -> int:
    return round(3 * math.log2(count + 1))


def machine(device: torch.device) -> str:
    """Processor, cores, the graphics card where it is used, and the versions of what does the work."""
    card = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    return ", ".join(
        [processor(), *card, f"{cores()} cores", f"torch {torch.__version__}", f"fedskew {version('fedskew')}"]
    )


def processor() -> str:
    """Its name, where the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy() -> bool:
    """Whether others need the processor, so that what is measured now is not worth keeping."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > cores() + 0.5

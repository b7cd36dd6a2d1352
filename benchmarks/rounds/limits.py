"""The machine's limit for a round: its operations over the rate of the cores, its bytes over the memory bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.rounds.work import Workload, batches, cohort, module
from torch.utils.flop_counter import FlopCounterMode

TRIES = 5
"""Repeats; the fastest counts."""
SIDE, LARGE = 2048, 1 << 26
"""Rows and columns of a matrix product that is bound by arithmetic; numbers of a copy that is bound by memory."""


@dataclass(frozen=True)
class Rates:
    """Rates that all threads of PyTorch reach together."""

    float32: float  # operations a second in a large matrix product
    bf16: float  # the same in bfloat16
    memory: float  # bytes a second, read and written

    def or_better(self, other: Rates) -> Rates:
        """The larger of each pair of rates."""
        return Rates(*map(max, astuple(self), astuple(other)))


@dataclass(frozen=True)
class Needs:
    """The least work of a round in any implementation."""

    operations: float  # multiplications and additions in matrix products and convolutions, forward and backward
    bytes: float  # every row once; every client's model read once, what it sends written once and read once
    steps: int  # of all clients together


def rates() -> Rates:
    """Measure the machine; takes about a second."""
    a, source = torch.ones(SIDE, SIDE), torch.ones(LARGE)
    half, target = a.bfloat16(), torch.empty_like(source)
    with torch.no_grad():
        return Rates(
            float32=2 * SIDE**3 / fastest(lambda: F.linear(a, a)),
            bf16=2 * SIDE**3 / fastest(lambda: F.linear(half, half)),
            memory=2 * source.nbytes / fastest(lambda: target.copy_(source)),
        )


def fastest(action: Callable[[], object]) -> float:
    taken = []
    for _ in range(TRIES):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return min(taken)


def needs(work: Workload) -> Needs:
    """Count the operations of one batch in plain PyTorch; every row of the round has the same number."""
    fed = work.federation()
    task: Any = fed.task
    x0 = task.space.flatten(task.model)
    clients = cohort(fed)
    x, y = next(batches(fed, int(clients[0]), None))
    net = module(fed, x0)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(net(x)[1], y).backward()
    sizes = fed.partition.sizes[clients]
    return Needs(
        operations=counter.get_total_flops() / len(x) * int(sizes.sum()) * work.epochs,
        bytes=fed.x[0].nbytes * int(sizes.sum()) + 3 * x0.nbytes * len(clients),
        steps=int((-(-sizes // work.batch)).sum()) * work.epochs,
    )


def limit(work: Workload, of: Rates) -> dict[str, float]:
    """The work of a round, and the least seconds that it takes."""
    needed = needs(work)
    arithmetic = needed.operations / (of.bf16 if work.bf16 else of.float32)
    return {**asdict(needed), "seconds": max(arithmetic, needed.bytes / of.memory)}

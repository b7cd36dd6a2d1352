"""Poolings of images of bfloat16: our loop against PyTorch's, alone and within a client's steps, interleaved in one run.

    python benchmarks/pooling.py [--repeats 15]

The images are those of McMahan's CNN on 50 rows of 3 x 32 x 32, on one thread. The limit is memory: forward 2 bytes of each
number are read and 0.75 written, backward the other way round; beside it stands a copy of the images, 2 bytes each way.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from fedskew.core.compiled import pooling
from fedskew.engine import rewrite, sequential
from fedskew.engine.memory import keep_freed_memory
from fedskew.engine.trace import Traced, live
from precision import STEPS, assembly, seconds

aten = torch.ops.aten
IMAGES = ((50, 32, 32, 32), (50, 64, 16, 16))
PAIRS = ([2, 2], [2, 2], [0, 0], [1, 1], False)


def alone(x: Tensor) -> dict[str, Callable[[], object]]:
    """Each way to pool images, forward and backward."""
    (largest, which), (theirs, places) = pooling.largest(x), aten.max_pool2d_with_indices(x, *PAIRS[:4])
    gradient = torch.randn_like(theirs)
    back = partial(aten.max_pool2d_with_indices_backward, gradient, x, *PAIRS, places)
    if not (torch.equal(largest, theirs) and torch.equal(pooling.handed_back(gradient, which), back())):
        raise AssertionError("the two differ")
    return {
        "a copy": x.clone,
        "forward, ours": partial(pooling.largest, x),
        "forward, PyTorch's": partial(aten.max_pool2d_with_indices, x, *PAIRS[:4]),
        "backward, ours": partial(pooling.handed_back, gradient, which),
        "backward, PyTorch's": back,
    }


def within() -> dict[str, Callable[[], object]]:
    """A client's steps, with our loop and without it."""
    work = assembly("cnn", "bf16")
    record = Traced(live(work.federation.program))

    def without() -> None:
        with (
            mock.patch.object(rewrite, "compiled", return_value=None),
            mock.patch.object(sequential, "traced", return_value=record),
        ):
            seconds(work)

    return {f"{STEPS} steps, ours": partial(seconds, work), f"{STEPS} steps, PyTorch's": without}


def medians(actions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Milliseconds of each, in turn, after one of each for what is made at first."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats + 1):
        for name, action in actions.items():
            began = time.perf_counter()
            action()
            times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="interleaved times of each kind")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"torch {torch.__version__}, one thread, medians of {repeats} interleaved times")
    for shape in IMAGES:
        images = torch.randn(shape).bfloat16().contiguous(memory_format=torch.channels_last)
        told = medians(alone(images), 10 * repeats)
        print(f"{shape}: {', '.join(f'{name} {taken:.2f} ms' for name, taken in told.items())}")
    ours, theirs = medians(within(), repeats).values()
    print(
        f"{STEPS} steps of McMahan's CNN: {ours:.1f} ms, with PyTorch's poolings {theirs:.1f} ms, {theirs / ours:.2f}x"
    )


if __name__ == "__main__":
    main()

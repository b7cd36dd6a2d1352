"""A step of AdamW on one thread: fedskew's pure function against PyTorch's optimisers, which change their state in place.

    python benchmarks/solvers.py [--repeats 50]

A step reads and writes w, m and v and reads g: seven passes of 4 bytes a parameter are the limit. A pure function makes its results
anew, so that the memory it takes counts, too. Gradients are often exactly 0 (embeddings of words that a batch lacks, dead units)
or so small that their squares are subnormal; a root of those is up to 32 times slower on some processors.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedskew.core.machine import keep_freed_memory
from fedskew.slots import AdamW

SIZES = (372_727, 3_800_000)
SPARSE = 0.1
"""The share of gradient entries that are not 0, as in an embedding."""


def microseconds(action: Callable[[], object], repeats: int) -> float:
    """Median time of one call, after three warm-up calls."""
    times = []
    for _ in range(repeats + 3):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times[3:])


def gradients(size: int) -> dict[str, Tensor]:
    g = 1e-3 * torch.randn(size)
    return {
        "any gradient": g,
        "nine of ten are 0": g * (torch.rand(size) < SPARSE),
        "subnormal squares": 1e-18 * g.sign(),
    }


def by_fedskew(g: Tensor) -> Callable[[], object]:
    solver, w, lr = AdamW(weight_decay=0.0), torch.randn(len(g)), torch.tensor(1e-3)
    state = solver.update(g, solver.init(w), w, lr)[1]
    return lambda: solver.update(g, state, w, lr)


def by_torch(g: Tensor, fused: bool) -> Callable[[], object]:
    w = torch.randn(len(g), requires_grad=True)
    w.grad = g
    optimiser = torch.optim.AdamW([w], lr=1e-3, weight_decay=0.0, fused=fused)
    return optimiser.step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print("microseconds a step    parameters    fedskew    torch    torch, fused    fedskew / torch")
    for size in SIZES:
        for name, g in gradients(size).items():
            ways = (by_fedskew(g), by_torch(g, fused=False), by_torch(g, fused=True))
            own, theirs, fused = (microseconds(way, parsed.repeats) for way in ways)
            print(f"{name:20} {size:12,} {own:10.0f} {theirs:8.0f} {fused:15.0f} {own / theirs:18.2f}")


if __name__ == "__main__":
    main()

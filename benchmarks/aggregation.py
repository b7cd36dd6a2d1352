"""A round's sums over the clients' updates against one memory pass over them, interleaved in one run.

    python benchmarks/aggregation.py [--clients 100] [--parameters 1100000] [--repeats 5] [--threads 1]

The limit is the pass: reading every number once and adding it up. Times are medians, of the processor (all threads), which a
busy machine disturbs least, and of the clock.

PyTorch has no product of float32 rows that adds up in float64, so that a chunk is copied to float64 first: the copy alone is two
passes' worth, and each norm or product on the twice as large copy in cache is one more. Adding up in float32 would be one pass,
and would lose what the copy is for: updates that differ in their last digits. The compiled loops (`fedskew[fast]`) convert in
registers. The cosines of all pairs one by one, a Gram matrix, would be C^2 P additions and multiplications, far more than memory
takes.

A round of FedAvg takes one look at the updates, which tells the mean, drift, distances, norms and each update's cosine with the
mean. Eleven million parameters of 100 clients take 4.4 GB.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedskew.core import vectors
from fedskew.core.compiled import compiled
from fedskew.core.vectors import spread, weighted_sum

Action = Callable[[], object]
PASS = "one memory pass"


def seconds(action: Action) -> tuple[float, float]:
    """Of the processor and of the clock."""
    began, clock = time.process_time(), time.perf_counter()
    action()
    return time.process_time() - began, time.perf_counter() - clock


def sides(weights: Tensor, deltas: Tensor) -> dict[str, Action]:
    """Each sum as compiled and as PyTorch does it."""

    def from_size(large: int, action: Callable[[Tensor, Tensor], object]) -> Action:
        def act() -> object:
            vectors.LARGE = large
            return action(weights, deltas)

        return act

    found: dict[str, Action] = {PASS: deltas.sum}
    for way, large in (("compiled", 1), ("PyTorch", sys.maxsize)):
        if way == "PyTorch" or compiled("sums"):
            found[f"weighted mean, {way}"] = from_size(large, weighted_sum)
            found[f"mean, drift, norms, cosines, {way}"] = from_size(large, spread)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=1_100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parsed = parser.parse_args()
    torch.set_num_threads(parsed.threads)
    deltas = torch.randn(parsed.clients, parsed.parameters, generator=torch.Generator().manual_seed(0))
    n = torch.arange(1.0, parsed.clients + 1)
    print(
        f"{parsed.clients} clients x {parsed.parameters:,} parameters, torch {torch.__version__}, {parsed.threads} threads"
    )
    print(f"loading the compiler: {seconds(lambda: compiled('sums'))[1]:.2f} s of the clock")
    parts = sides(n / n.sum(), deltas)
    for name, action in parts.items():
        print(f"{name}: the first time {seconds(action)[1]:.2f} s of the clock")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in parts}
    for _ in range(parsed.repeats):
        for name, action in parts.items():
            times[name].append(seconds(action))
    medians = {name: [statistics.median(kind) for kind in zip(*taken, strict=True)] for name, taken in times.items()}
    print(f"the pass: {deltas.nbytes / medians[PASS][1] / 1e9:.1f} GB/s by the clock")
    print(f"{'':46} {'processor':>20} {'clock':>20}")
    for name, taken in medians.items():
        cells = [f"{1000 * t:10.1f} ms {t / limit:5.2f}x" for t, limit in zip(taken, medians[PASS], strict=True)]
        print(f"{name:46}  {'  '.join(cells)}")


if __name__ == "__main__":
    main()

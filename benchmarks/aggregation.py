"""A round's sums over the clients' updates against one memory pass over them, interleaved in one run.

    python benchmarks/aggregation.py [--clients 100] [--parameters 1100000] [--repeats 5]

The limit is the pass: reading every number once and adding it up. Of processor time, which a busy machine disturbs least.
PyTorch has no product of float32 rows that adds up in float64, so that a chunk is copied to float64 first: the copy alone is two
passes' worth, and each norm or product on the twice as large copy in cache is one more. Adding up in float32 would be one pass,
and would lose what the copy is for: updates that differ in their last digits. All pairs of clients, a Gram matrix, would be
C^2 P additions and multiplications, far more than memory takes; the mean cosine needs none of it.
Eleven million parameters of 100 clients take 4.4 GB; the ratios do not depend on the number once it is far beyond the caches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from fedskew.core.vectors import weighted_sum
from fedskew.measure.drift import drift


def seconds(action: Callable[[], object]) -> float:
    """Of processor time."""
    began = time.process_time()
    action()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=1_100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parsed = parser.parse_args()
    deltas = torch.randn(parsed.clients, parsed.parameters, generator=torch.Generator().manual_seed(0))
    n = torch.arange(1.0, parsed.clients + 1)
    parts: dict[str, Callable[[], object]] = {
        "one memory pass": deltas.sum,
        "weighted mean (float64 sums)": lambda: weighted_sum(n / n.sum(), deltas),
        "drift, distances and norms (float64)": lambda: drift(deltas, n),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(parsed.repeats):
        for name, action in parts.items():
            times[name].append(seconds(action))
    first = statistics.median(times["one memory pass"])
    print(f"{parsed.clients} clients x {parsed.parameters:,} parameters, torch {torch.__version__}")
    for name, taken in times.items():
        print(f"{name:38} {1000 * statistics.median(taken):8.1f} ms  {statistics.median(taken) / first:5.1f}x")


if __name__ == "__main__":
    main()

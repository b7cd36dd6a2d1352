"""What processes tell each other of a cohort's updates: all rows, which each then looks at, or sums over their own.

    python benchmarks/exchange.py [--clients 100] [--parameters 1100000] [--processes 2] [--repeats 5]

On one machine, through gloo: times are medians of interleaved repeats by the clock, of mean, drift, distances and norms in every
process. The limit is what must travel: rows of other processes come to each; of sums, two of float64 go there and back.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from fedskew.core.vectors import Spread, spread
from fedskew.engine.distributed import Apart, Group, balanced, member
from fedskew.experiment.processes import work


def times(group: Group, clients: int, parameters: int, repeats: int) -> dict[str, float]:
    """Median seconds of each way; all processes take part."""
    torch.set_num_threads(1)
    shares = balanced([1] * clients, group.size)
    mine = torch.randn(len(shares[group.rank]), parameters, generator=torch.Generator().manual_seed(group.rank))
    weights = torch.full((clients,), 1 / clients)
    ways: dict[str, Callable[[], Spread]] = {
        "all rows": lambda: spread(weights, group.gather(mine, shares)),
        "sums": lambda: spread(weights, Apart(group, shares, mine)),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            group.agree(True)
            began = time.perf_counter()
            way()
            group.agree(True)
            if repeat:
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(some) for name, some in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=1_100_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parsed = parser.parse_args()
    clients, parameters, size = parsed.clients, parsed.parameters, parsed.processes
    with TemporaryDirectory() as folder:
        place = f"{folder}/group"
        task = partial(times, clients=clients, parameters=parameters, repeats=parsed.repeats)
        context = multiprocessing.get_context("spawn")
        for rank in range(1, size):
            context.Process(target=work, args=(place, rank, size, task), daemon=True).start()
        with member(store=dist.FileStore(place, size), rank=0, world_size=size) as group:
            found = task(group)
    share = (size - 1) / size
    travels = {"all rows": share * clients * parameters * 4, "sums": share * 2 * 2 * parameters * 8}
    print(f"{clients} clients x {parameters:,} parameters, {size} processes, torch {torch.__version__}")
    print(f"{'':10} {'ms':>8} {'MB to each':>12} {'times':>7}")
    for name, seconds in found.items():
        print(f"{name:10} {1000 * seconds:8.1f} {travels[name] / 1e6:12.1f} {seconds / found['sums']:7.2f}")


if __name__ == "__main__":
    main()

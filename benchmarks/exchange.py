"""What processes tell each other of a cohort in a round: all rows of its updates, which each then looks at, or sums over their own;
and of what is kept of the clients all of it, or what is not at home.

    python benchmarks/exchange.py [--clients 100] [--parameters 1100000] [--processes 2] [--repeats 5]

On one machine, through gloo: times are medians of interleaved repeats by the clock, in every process, of mean, drift, distances and
norms, and of taking what is kept of each client, one vector, and keeping it again. The cohort is drawn anew each time from a
population half as large again. The limit is what must travel: rows of other processes come to each; of sums, two of float64 go
there and back; of states at home, those whose clients are trained elsewhere do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.distributed as dist

from fedskew.core.trees import Tree
from fedskew.core.vectors import spread
from fedskew.engine.apart import Apart, share_of
from fedskew.engine.distributed import balanced
from fedskew.engine.group import Group, member
from fedskew.engine.homes import HomeStates, homes
from fedskew.engine.states import ClientStates
from fedskew.experiment.processes import work
from fedskew.skew.partition import Ints

Ways = dict[str, Callable[[Ints], float]]
"""Each does its part of a round with a cohort, and tells the bytes that came to each process, or left it, on the average."""


def of_updates(group: Group, clients: int, parameters: int) -> Ways:
    shares = balanced([1] * clients, group.size)
    mine = torch.randn(len(shares[group.rank]), parameters, generator=torch.Generator().manual_seed(group.rank))
    weights = torch.full((clients,), 1 / clients)

    def all_rows(_: Ints) -> float:
        spread(weights, group.gather(mine, shares))
        return clients * parameters * 4 * (1 - 1 / group.size)

    def sums(_: Ints) -> float:
        spread(weights, Apart(group, shares, mine))
        return 2 * 2 * parameters * 8 * (1 - 1 / group.size)

    return {"updates: all rows": all_rows, "updates: sums": sums}


def of_states(group: Group, parameters: int) -> Ways:
    """As SCAFFOLD's c_k and FedDyn's g_k are kept, from the shares of the round to the next."""

    def like() -> Tree:
        return {"c": torch.zeros(parameters)}

    everywhere, at_home = ClientStates(), HomeStates(group, ClientStates(), like)

    def all_states(clients: Ints) -> float:
        shares = balanced([1] * len(clients), group.size)
        mine = everywhere.get(clients, like)["c"][shares[group.rank]]
        everywhere.put(clients, {"c": group.gather(mine.mul_(2), shares)})
        return len(clients) * parameters * 4 * (1 - 1 / group.size)

    def homed(clients: Ints) -> float:
        lives = homes(clients, group.size)
        shares = balanced([1] * len(clients), group.size, lives)
        mine = share_of(at_home.get(clients, like), shares, group.rank)["c"]
        at_home.put(clients, {"c": Apart(group, shares, mine.mul_(2))})
        away = len(clients) - sum(len(np.intersect1d(*both)) for both in zip(lives, shares, strict=True))
        return 2 * away * parameters * 4 / group.size

    return {"states: to all": all_states, "states: at home": homed}


def times(group: Group, clients: int, parameters: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds and mean bytes of each way; all processes take part."""
    torch.set_num_threads(1)
    ways = of_updates(group, clients, parameters) | of_states(group, parameters)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    draw = np.random.default_rng(0)
    for repeat in range(-3, repeats):
        cohort = np.sort(draw.choice(clients + clients // 2, size=clients, replace=False))
        for name, way in ways.items():
            group.agree(True)
            began = time.perf_counter()
            travelled = way(cohort)
            group.agree(True)
            # by then, most of the population has states
            if repeat >= 0:
                taken[name].append((time.perf_counter() - began, travelled))
    seconds, bytes_ = ({name: [found[i] for found in some] for name, some in taken.items()} for i in range(2))
    return {name: (statistics.median(seconds[name]), statistics.mean(bytes_[name])) for name in ways}


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
    print(f"{clients} clients x {parameters:,} parameters, {size} processes, torch {torch.__version__}")
    print(f"{'':17} {'ms':>8} {'MB each':>8} {'times':>6}")
    for name, (seconds, travelled) in found.items():
        least = min(other for same, (other, _) in found.items() if same.split(":")[0] == name.split(":")[0])
        print(f"{name:17} {1000 * seconds:8.1f} {travelled / 1e6:8.1f} {seconds / least:6.2f}")


if __name__ == "__main__":
    main()

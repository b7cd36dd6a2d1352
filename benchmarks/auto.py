"""The engine that ``auto`` chooses against every fixed choice, interleaved in one run: how much slower than the best it is.

    python benchmarks/auto.py [--repeats 5] [--works 3]

Whole rounds of the first works of `fedskew bench`, on one thread and on all cores. The number of processes is not chosen: finding
out means starting them, which takes longer than many a run, and ``--workers`` says it.
"""

from __future__ import annotations

import argparse
import os
import statistics
from functools import partial

import torch

from fedskew.engine.choose import choose
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.experiment.bench import WORKLOADS, ours, seconds
from fedskew.loop.round import start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="interleaved rounds of each choice")
    parser.add_argument("--works", type=int, default=3, help="so many of the works of `fedskew bench`")
    parsed = parser.parse_args()
    print(f"torch {torch.__version__}, medians of {parsed.repeats} interleaved rounds")
    for work in WORKLOADS[: parsed.works]:
        fed = work.federation()
        x0 = fed.task.space.flatten(fed.task.model)  # type: ignore[attr-defined]
        for threads in sorted({1, os.cpu_count() or 1}):
            torch.set_num_threads(threads)
            chosen, _ = choose(fed, start(fed, x0), measure_local=False)
            fixed = {"sequential": Sequential(), "stacked": Stacked(), "stacked, 4 wide": Stacked(width=4)}
            times: dict[str, list[float]] = {name: [] for name in fixed}
            for _ in range(parsed.repeats + 1):
                for name, engine in fixed.items():
                    times[name].append(seconds(partial(ours, fed, engine, x0), threads))
            medians = {name: 1000 * statistics.median(taken[1:]) for name, taken in times.items()}
            auto = next(name for name, engine in fixed.items() if engine == chosen)
            told = ", ".join(f"{name} {ms:.1f} ms" for name, ms in medians.items())
            worse = medians[auto] / min(medians.values())
            print(f"{work.name}, threads {threads}: {told}; auto takes {auto}, {worse:.2f} times the best")


if __name__ == "__main__":
    main()

"""What ``engine = "auto"`` chooses against fixed choices of engine, width, threads and processes: how much slower than the best.

    python benchmarks/auto.py [--repeats 5] [--works 4]

Whole rounds of the first works of `fedskew bench`, interleaved, and from them the time of a run of a thousand, which starts its
processes once. Nothing remembered counts, and nothing is remembered. Sequential rounds over ten times the best are measured once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from functools import partial

import torch

from fedskew.engine.choose import Option
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.experiment.bench import LONG, WORKLOADS, Workload, helpers, of_workload, ours, ours_together, seconds
from fedskew.experiment.choice import Limits, chosen
from fedskew.experiment.remembered import cores


def fixed(work: Workload) -> list[Option]:
    """Every engine and width on one thread, on all cores, and in as many processes."""
    widths = [] if work.model == "cnn" else [work.clients // 2, work.clients // 4]
    engines = [Sequential(), Stacked(), *(Stacked(width=width) for width in widths)]
    ways = dict.fromkeys([(1, 1), (cores(), 1), (1, cores())])
    return [Option(engine, *way) for way in ways for engine in engines]


def medians(work: Workload, options: list[Option], repeats: int) -> dict[Option, tuple[float, float]]:
    """Seconds a round, and of the start.

    Several processes come one engine after the other, since each has a group of its own, and in turn with the best of one process:
    what the machine does meanwhile is the same for both.
    """
    fed, x0 = of_workload(work, LONG)
    times: dict[Option, list[float]] = {option: [] for option in options}
    starts: dict[Option, float] = {}
    alone = [option for option in options if option.workers == 1]
    for turn in range(repeats + 1):
        for option in alone:
            least = min((min(taken) for taken in times.values() if taken), default=0.0)
            if turn == 0 or min(times[option]) < 10 * least:
                times[option].append(seconds(partial(ours, fed, option.engine, x0), option.threads))
    found = {option: statistics.median(times[option][1:] or times[option]) for option in alone}
    best = min(alone, key=found.__getitem__)
    beside = partial(seconds, partial(ours, fed, best.engine, x0), best.threads)
    for option in [option for option in options if option.workers > 1]:
        began = time.perf_counter()
        with helpers(work, option.engine, option.workers, option.threads) as pipes:
            starts[option] = time.perf_counter() - began
            together = partial(seconds, partial(ours_together, fed, option.engine, pipes, x0), option.threads)
            together()
            found[option] = found[best] * statistics.median(together() / beside() for _ in range(repeats))
    return {option: (found[option], starts.get(option, 0.0)) for option in options}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each choice")
    parser.add_argument("--works", type=int, default=4, help="so many of the works of `fedskew bench`")
    parsed = parser.parse_args()
    print(f"torch {torch.__version__}, {cores()} cores, medians of {parsed.repeats} rounds, runs of {LONG} rounds")
    for work in WORKLOADS[: parsed.works]:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FEDSKEW_CACHE"] = folder
            limits = Limits(cores(), cores())
            auto, _ = chosen(*of_workload(work, LONG), False, limits, partial(of_workload, work, LONG))
        found = medians(work, list(dict.fromkeys([auto, *fixed(work)])), parsed.repeats)
        told = ", ".join(f"{option.label} {1000 * a_round:.1f} ms" for option, (a_round, _) in found.items())
        print(f"{work.name}: {told}", flush=True)
        runs = {option: LONG * a_round + start for option, (a_round, start) in found.items()}
        print(f"  auto takes {auto.label}: a run {runs[auto] / min(runs.values()):.2f} times the best", flush=True)


if __name__ == "__main__":
    main()

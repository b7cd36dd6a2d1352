"""Compare the choice of ``engine = "auto"`` with fixed engines, block widths and threads: how much slower it is than the best.

    python benchmarks/auto.py [--repeats 5] [--works 4]

Whole rounds of the first works of `make bench`, interleaved, for a run of a thousand rounds. Sequential rounds over ten times
the best are measured once.
"""

import argparse
import statistics
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedskew.core.machine import cores
from fedskew.engine.choose import EngineChoice
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.execution.plan import try_engines
from fedskew.loop.federation import Federation
from rounds.work import WORKLOADS, Workload, ours, seconds

LONG = 1000
"""Length of the run that the engine is chosen for."""


def of_workload(work: Workload, rounds: int) -> tuple[Federation, Tensor]:
    """The federation of a run with this number of rounds, and its initial model."""
    fed = replace(work.federation(), rounds=rounds)
    task: Any = fed.task
    return fed, task.space.flatten(task.model)


def fixed(work: Workload) -> list[EngineChoice]:
    """Every engine and block width, on one thread and on all cores."""
    widths = [] if work.model == "cnn" else [work.clients // 2, work.clients // 4]
    engines = [Sequential(), Stacked(), *(Stacked(width=width) for width in widths)]
    return [EngineChoice(engine, threads) for threads in dict.fromkeys([1, cores()]) for engine in engines]


def medians(work: Workload, options: list[EngineChoice], repeats: int) -> dict[EngineChoice, float]:
    """Seconds a round."""
    fed, x0 = of_workload(work, LONG)
    times: dict[EngineChoice, list[float]] = {option: [] for option in options}
    for turn in range(repeats + 1):
        for option in options:
            least = min((min(taken) for taken in times.values() if taken), default=0.0)
            if turn == 0 or min(times[option]) < 10 * least:
                times[option].append(seconds(partial(ours, fed, option.engine, x0), option.threads))
    return {option: statistics.median(taken[1:] or taken) for option, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each choice")
    parser.add_argument("--works", type=int, default=4, help="number of works of `make bench`")
    parsed = parser.parse_args()
    print(f"torch {torch.__version__}, {cores()} cores, medians of {parsed.repeats} rounds, runs of {LONG} rounds")
    for work in WORKLOADS[: parsed.works]:
        auto, _ = try_engines(*of_workload(work, LONG), sorted({1, cores()}))
        found = medians(work, list(dict.fromkeys([auto, *fixed(work)])), parsed.repeats)
        shown = ", ".join(f"{option.label} {1000 * a_round:.1f} ms" for option, a_round in found.items())
        print(f"{work.name}: {shown}", flush=True)
        print(f"  auto takes {auto.label}: {found[auto] / min(found.values()):.2f} times the best", flush=True)


if __name__ == "__main__":
    main()

"""Start-up, memory and time of one large population: 100,000 clients of 20 rows, SCAFFOLD, cohort 100. Memory follows the cohort.

Start-up is from finished data to the first round, the partition included; its processor time is what a quiet machine would take.
A round is without evaluation, which comes ten times a run, and on all cores, as a long run would choose.

python benchmarks/population.py [--clients 100000] [--cohort 100] [--hidden 32] [--rounds 20] [--json]
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from typing import Any

import numpy as np

from fedskew.api.functions import run
from fedskew.data.dataset import Dataset
from fedskew.execution.run import Progress
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment

ROWS, PART = 20, 100_000
"""Rows of each client; rows generated at a time, so that memory holds one copy of the data."""


def made(clients: int) -> Dataset:
    """Ten Gaussian clusters with standard deviation 1 around random means in 30 dimensions."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((10, 30), dtype=np.float32)
    y = rng.integers(0, 10, ROWS * clients)
    x = np.empty((len(y), 30), dtype=np.float32)
    for lo in range(0, len(y), PART):
        rng.standard_normal(out=x[lo : lo + PART], dtype=np.float32)
        x[lo : lo + PART] += means[y[lo : lo + PART]]
    y_test = rng.integers(0, 10, 2000)
    x_test = means[y_test] + rng.standard_normal((2000, 30), dtype=np.float32)
    return Dataset(x=x, y=y, x_test=x_test, y_test=y_test, classes=tuple("0123456789"))


def measure(parsed: argparse.Namespace) -> dict[str, Any]:
    """One run: seconds of start-up and rounds, peak memory in GiB of this process, accuracy by round."""
    experiment = with_method(Experiment(), parsed.algorithm).replace(
        skew="label-sorted",
        clients={"number": parsed.clients, "held_out": 0.0},
        selection={"name": "uniform", "clients": parsed.cohort},
        model=f"mlp:hidden=[{parsed.hidden}]",
        # all cores from the first round on, as a long run would choose
        training={
            "rounds": parsed.rounds,
            "states": parsed.states,
            "threads": os.cpu_count() or 1,
        },
        local={"epochs": 5, "batch_size": 10},
        evaluation={"every": max(2, parsed.rounds // 10), "max_clients": min(parsed.cohort, 1000)},
        engine=parsed.engine,
    )
    data = made(parsed.clients)
    rounds: list[tuple[Progress, float, float]] = []
    began, worked = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run(
            experiment,
            data=data,
            runs=folder,
            listener=lambda p: rounds.append((p, time.perf_counter() - began, time.process_time() - worked)),
        )
    alone = [p.seconds for p, _, _ in rounds if p.round and p.accuracy is None]
    return {
        "start": rounds[0][1],
        "start_processor": rounds[0][2],
        "round": statistics.median(alone),
        "all_rounds": rounds[-1][1] - rounds[0][1],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2,
        "data": data.x.nbytes / 1024**3,
        "accuracy": {p.round: p.accuracy for p, _, _ in rounds if p.accuracy is not None},
    }


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=32, help="units of the hidden layer")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--states", default="disk", choices=["auto", "disk", "memory"])
    parser.add_argument("--algorithm", default="scaffold")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    parsed = options().parse_args()
    found = measure(parsed)
    if parsed.json:
        print(json.dumps(found))
    else:
        print(
            f"{parsed.clients:,} clients x {ROWS} rows, cohort {parsed.cohort}, {parsed.algorithm}: "
            f"start-up {found['start']:.1f} s ({found['start_processor']:.1f} s of processor time), "
            f"{parsed.rounds} rounds in {found['all_rounds']:.1f} s (median {found['round']:.3f} s), "
            f"peak {found['peak']:.2f} GiB ({found['data']:.2f} of them rows), "
            f"accuracy {list(found['accuracy'].values())[-1]:.3f}"
        )

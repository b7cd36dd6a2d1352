"""Start-up, memory and time of a large population: 100,000 clients of 20 rows, cohort 100. Memory must follow the cohort.

Start-up is from finished data to the first round, the partition included; its processor time is what a quiet machine would take.

python benchmarks/population.py [--clients 100000] [--cohort 100] [--rounds 20] [--algorithm scaffold] [--engine auto]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time

import numpy as np

from fedskew.data.dataset import Dataset
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment
from fedskew.experiment.results import run
from fedskew.experiment.run import Progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--algorithm", default="scaffold")
    parser.add_argument("--engine", default="auto")
    parsed = parser.parse_args()
    rng = np.random.default_rng(0)
    n = 20 * parsed.clients
    means = rng.standard_normal((10, 30), dtype=np.float32)
    y = rng.integers(0, 10, n)
    data = Dataset(
        x=means[y] + rng.standard_normal((n, 30), dtype=np.float32),
        y=y,
        x_test=means[y[:2000]] + rng.standard_normal((2000, 30), dtype=np.float32),
        y_test=y[:2000],
        classes=tuple(map(str, range(10))),
    )
    experiment = with_method(Experiment(), parsed.algorithm).replace(
        skew="label-sorted",
        clients={"number": parsed.clients},
        selection={"name": "uniform", "clients": parsed.cohort},
        model="mlp:hidden=[32]",
        training={"rounds": parsed.rounds},
        local={"epochs": 5, "batch_size": 10},
        engine=parsed.engine,
    )
    began, worked = time.perf_counter(), time.process_time()
    rounds: list[Progress] = []
    started: list[float] = []
    processor: list[float] = []

    def heard(progress: Progress) -> None:
        started.append(time.perf_counter() - began)
        processor.append(time.process_time() - worked)
        rounds.append(progress)

    with tempfile.TemporaryDirectory() as folder:
        run(experiment, data=data, folder=folder, listener=heard)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    per_round = sorted(p.seconds for p in rounds if p.round)
    print(
        f"{parsed.clients:,} clients x 20 rows, cohort {parsed.cohort}, {parsed.algorithm}: start-up {started[0]:.1f} s "
        f"({processor[0]:.1f} s of processor time), "
        f"{parsed.rounds} rounds in {started[-1] - started[0]:.1f} s (median {per_round[len(per_round) // 2]:.3f} s), "
        f"peak {peak:.2f} GiB, accuracy {rounds[-1].accuracy:.3f}"
    )


if __name__ == "__main__":
    main()

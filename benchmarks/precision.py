"""A step of a CIFAR network in bfloat16 against float32, interleaved in one run.

    python benchmarks/precision.py [--repeats 5]

A round of one client with 10 batches of 50 random images of 3 x 32 x 32, with McMahan's CNN and the LeNet of NIID-Bench.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from fedskew.data.dataset import Dataset
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.execution.build import Assembly, assemble
from fedskew.experiment.config import Experiment
from fedskew.loop.round import play_round, start

STEPS, BATCH = 10, 50


def assembly(model: str, precision: str) -> Assembly:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((STEPS * BATCH, 3, 32, 32), dtype=np.float32)
    y = rng.integers(0, 10, len(x))
    rows = Dataset(x=x, y=y, x_test=x[:1], y_test=y[:1], classes=tuple("0123456789"))
    training = {"rounds": 1, "precision": precision}
    return assemble(
        Experiment(
            model=model,
            skew="pooled",
            local={"epochs": 1, "batch_size": BATCH},
            training=training,
            engine="sequential",
        ),
        rows,
    )


def seconds(of: Assembly) -> float:
    began = time.perf_counter()
    play_round(of.federation, Sequential(), start(of.federation, of.x0), ClientStates(), measure_local=False)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="interleaved rounds of each kind")
    repeats = parser.parse_args().repeats
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {repeats} interleaved rounds")
    for model in ("cnn", "lenet"):
        full, half = assembly(model, "full"), assembly(model, "bf16")
        seconds(full), seconds(half)
        times = [(seconds(full), seconds(half)) for _ in range(repeats)]
        a, b = (1000 * statistics.median(column) / STEPS for column in zip(*times, strict=True))
        ratio = statistics.median(f / h for f, h in times)
        print(f"{model:8} float32 {a:7.1f} ms a step, bf16 {b:7.1f} ms, ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()

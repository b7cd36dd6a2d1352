"""A training epoch on cached activations, against the whole encoder and against the trainable layers alone, interleaved.

    python benchmarks/prefix.py [--pooling first] [--steps 8] [--repeats 5] [--json]

MiniLM, texts of 64 tokens, batches of 32, the first four of six layers frozen, AdamW. Three ways to take the same steps: fedskew
without the cache, fedskew on kept activations, and plain PyTorch on the trainable layers with their inputs in memory. Quote the
ratios: machines are noisy, and all three share the noise. What the matrix products alone would save is counted, not timed.
"""

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedskew.data.dataset import Dataset
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.execution.build import Assembly, assemble
from fedskew.experiment.config import Experiment
from fedskew.loop.round import play_round, start

LENGTH, BATCH, CLASSES = 64, 32, 4


def data(steps: int) -> Dataset:
    """Random texts of full length, and their labels."""
    rng = np.random.default_rng(0)
    words = np.asarray(["market", "team", "science", "world", "price", "game", "space", "state"])
    texts = [" ".join(rng.choice(words, LENGTH)) for _ in range(steps * BATCH)]
    y = rng.integers(0, CLASSES, len(texts))
    x = np.zeros((len(texts), 1), dtype=np.float32)
    names = tuple("abcd")
    return Dataset(x=x, y=y, x_test=x[:1], y_test=y[:1], classes=names, texts=(texts, texts[:1]), name="words")


def experiment(cache: str, precision: str, pooling: str) -> Experiment:
    return Experiment(
        model=f"minilm:frozen=4,length={LENGTH},cache={cache},pooling={pooling}",
        skew="pooled",
        solver="adamw:lr=2e-5",
        local={"epochs": 1, "batch_size": BATCH},
        training={"rounds": 1, "precision": precision},
        engine="sequential",
    )


def epoch(assembly: Assembly) -> None:
    """One epoch of one client."""
    server = start(assembly.federation, assembly.x0)
    play_round(assembly.federation, Sequential(), server, ClientStates(), measure_local=False)


def plain_epoch(assembly: Assembly, precision: str) -> None:
    """The same steps on the trainable layers in a plain loop."""
    fed = assembly.federation
    net: Any = fed.task.model  # type: ignore[attr-defined]
    trained = [p for p in net.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=2e-5)
    for lo in range(0, len(fed.x), BATCH):
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = net(fed.x[lo : lo + BATCH])[1]
        F.cross_entropy(logits.float(), fed.y[lo : lo + BATCH]).backward()
        optimiser.step()


def seconds(action: Any, *args: Any) -> float:
    began = time.perf_counter()
    action(*args)
    return time.perf_counter() - began


def operations(assembly: Assembly) -> int:
    """Additions and multiplications in the matrix products of an epoch."""
    with FlopCounterMode(display=False) as counter:
        epoch(assembly)
    return int(counter.get_total_flops())


def measure(steps: int, repeats: int, precision: str, pooling: str) -> dict[str, Any]:
    """Median seconds a step, and the median ratios within each repeat."""
    rows = data(steps)
    whole, kept = (assemble(experiment(cache, precision, pooling), rows) for cache in ("none", "memory"))
    times: dict[str, list[float]] = {"uncached": [], "cached": [], "trainable alone": []}
    for warm in (True, *(False for _ in range(repeats))):
        taken = seconds(epoch, whole), seconds(epoch, kept), seconds(plain_epoch, kept, precision)
        for name, value in zip(times, taken, strict=True):
            times[name] += [] if warm else [value / steps]
    pairs = list(zip(*times.values(), strict=True))
    return {
        "precision": precision,
        "pooling": pooling,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **{f"{name}, ms a step": 1000 * statistics.median(values) for name, values in times.items()},
        "matrix products, uncached / cached": operations(whole) / operations(kept),
        "uncached / cached": statistics.median(u / c for u, c, _ in pairs),
        "cached / trainable alone": statistics.median(c / t for _, c, t in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="batches of an epoch")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved epochs of each kind")
    parser.add_argument("--precision", default="full", choices=["full", "bf16"])
    parser.add_argument(
        "--pooling", default="mean", choices=["mean", "first"], help="first: the last layer at one place only"
    )
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args()
    result = measure(parsed.steps, parsed.repeats, parsed.precision, parsed.pooling)
    if parsed.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name:36} {value:.2f}" if isinstance(value, float) else f"{name:36} {value}")


if __name__ == "__main__":
    main()

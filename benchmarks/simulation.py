"""Client-steps a second of a whole round, against a plain PyTorch loop doing exactly the same work, interleaved in one run.

    python benchmarks/simulation.py [--repeats 5] [--json]

A round of ours is everything but evaluation: planning the batches, local training, drift, aggregation. The plain loop copies
the model for each client, steps `torch.optim.SGD` over the same batches and averages the models; for images it is given the
better of the two memory formats. Both results are compared. Quote the ratios: machines are noisy, and both sides share the noise.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.algorithms import FedAvg
from fedskew.core.task import Classification
from fedskew.core.vectors import ParameterSpace
from fedskew.engine.choose import choose
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.loop.round import play_round, start
from fedskew.models import Cnn, Mlp, Softmax
from fedskew.skew.partition import Partition, offsets
from fedskew.slots import Everyone, ServerSgd, Sgd


@dataclass(frozen=True)
class Workload:
    name: str
    model: Any
    shape: tuple[int, ...]
    classes: int
    clients: int
    rows: int
    batch: int
    epochs: int
    at_least: float  # the ratio that must hold

    def federation(self) -> tuple[Federation, torch.nn.Module]:
        rng = np.random.default_rng(0)
        n = self.clients * self.rows
        net = self.model.build(self.shape, self.classes, torch.Generator().manual_seed(0))
        dealt = np.array_split(np.arange(n), self.clients)
        fed = Federation(
            algorithm=FedAvg(),
            task=Classification(net, ParameterSpace(net), self.classes),
            solver=Sgd(lr=0.05),
            server_optimiser=ServerSgd(),
            selection=Everyone(),
            planner=SeededPlanner(Local(epochs=self.epochs, batch_size=self.batch), 0),
            x=torch.as_tensor(rng.standard_normal((n, *self.shape), dtype=np.float32)),
            y=torch.as_tensor(rng.integers(0, self.classes, n)),
            partition=Partition(np.concatenate(dealt), offsets(dealt), tuple(map(str, range(self.clients))), 0, 0),
            seed=0,
        )
        return fed, net


WORKLOADS = [
    Workload("softmax 30-6, 30 x 400, B 32, E 10", Softmax(), (30,), 6, 30, 400, 32, 10, 4.0),
    Workload("MLP 60-32-10, 100 x 60, B 10, E 5", Mlp(hidden=(32,)), (60,), 10, 100, 60, 10, 5, 8.0),
    Workload("MLP 561-128-6, 10 x 735, B 64, E 5", Mlp(hidden=(128,)), (561,), 6, 10, 735, 64, 5, 1.0),
    Workload("CNN 32x32x3, 10 x 500, B 50, E 1", Cnn(), (3, 32, 32), 10, 10, 500, 50, 1, 0.95),
]


def plain_round(fed: Federation, net: torch.nn.Module, x0: Tensor, memory_format: torch.memory_format | None) -> Tensor:
    """One FedAvg round as most people write it; the new global model (P,)."""
    space = ParameterSpace(net)
    with torch.no_grad():
        for p, value in zip(net.parameters(), space.unflatten(x0).values(), strict=True):
            p.copy_(value)
    total = torch.zeros_like(x0)
    sizes = fed.partition.sizes
    for k in range(len(fed.partition)):
        local = copy.deepcopy(net)
        if memory_format is not None:
            local = local.to(memory_format=memory_format)
        optimiser = torch.optim.SGD(local.parameters(), lr=fed.solver.lr)
        plan = fed.planner.train(0, k, fed.partition.rows(k))
        for rows, mask in zip(plan.index, plan.mask, strict=True):
            index = torch.as_tensor(rows[mask > 0])
            inputs = fed.x[index]
            if memory_format is not None:
                inputs = inputs.contiguous(memory_format=memory_format)
            optimiser.zero_grad()
            F.cross_entropy(local(inputs)[1], fed.y[index]).backward()
            optimiser.step()
        total += sizes[k] / sizes.sum() * space.flatten(local)
    return total


def seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(work: Workload, repeats: int) -> dict[str, Any]:
    """Medians of interleaved rounds, in microseconds a client-step, and the ratio plain / ours."""
    fed, net = work.federation()
    server = start(fed, fed.task.space.flatten(net))  # type: ignore[attr-defined]
    engine, trial = choose(fed, server)
    formats: list[torch.memory_format | None] = [None]
    if len(work.shape) == 3:
        formats.append(torch.channels_last)

    def ours() -> Tensor:
        return play_round(fed, engine, server, ClientStates(), measure_local=False).server.x

    difference = float((ours() - plain_round(fed, net, server.x, formats[-1])).abs().max())
    plain: list[list[float]] = [[] for _ in formats]
    mine: list[float] = []
    for _ in range(repeats):
        for times, memory_format in zip(plain, formats, strict=True):
            times.append(seconds(lambda f=memory_format: plain_round(fed, net, server.x, f)))
        mine.append(seconds(ours))
    steps = sum(len(fed.planner.train(0, k, fed.partition.rows(k)).index) for k in range(len(fed.partition)))
    best = min(plain, key=statistics.median)
    return {
        "work": work.name,
        "engine": trial["name"],
        "client_steps": steps,
        "plain_us": 1e6 * statistics.median(best) / steps,
        "ours_us": 1e6 * statistics.median(mine) / steps,
        "ratio": statistics.median(p / m for p, m in zip(best, mine, strict=True)),
        "at_least": work.at_least,
        "largest_difference": difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="interleaved rounds of each side")
    parser.add_argument("--only", help="workloads whose name holds this text")
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args()
    rows = [measure(w, parsed.repeats) for w in WORKLOADS if not parsed.only or parsed.only in w.name]
    if parsed.json:
        print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}, indent=2))
        return
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {parsed.repeats} interleaved rounds"
    )
    print(f"{'work':36} {'engine':10} {'plain µs':>9} {'ours µs':>9} {'ratio':>7} {'wanted':>7}  same model to")
    for r in rows:
        print(
            f"{r['work']:36} {r['engine']:10} {r['plain_us']:9.1f} {r['ours_us']:9.1f} {r['ratio']:6.2f}x "
            f"{r['at_least']:6.2f}x  {r['largest_difference']:.0e}"
        )


if __name__ == "__main__":
    main()

"""Whole rounds against other implementations of exactly the same work, interleaved, with their results compared.

A round of ours is everything but evaluation: planning the batches, local training, drift, aggregation. The plain loop copies
the model for each client, steps `torch.optim.SGD` over the same batches and averages the models; for images it is given the better
of the two memory formats. It also runs in several processes, which stay over all rounds: each trains its share of the clients on
its share of the cores. How the other simulators take part is in `benchmarks.rounds.peers`.
"""

import copy
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.algorithms import FedAvg
from fedskew.core.component import build
from fedskew.core.task import Task
from fedskew.core.trees import ParameterSpace
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.experiment.config import COMPONENTS
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.loop.round import call, play_round, start
from fedskew.loop.work import Engine
from fedskew.skew.partition import Ints, Partition, evenly, offsets
from fedskew.slots import ServerSgd, Sgd, Uniform
from fedskew.tasks.classification import Classification


@dataclass(frozen=True)
class Workload:
    """A round on random data."""

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    rows: int  # of each client
    batch: int
    epochs: int
    wanted: float  # how many times faster than the best other side a round is to be
    population: int = 0  # the round's clients are drawn from it; 0: there are no others
    bf16: bool = False  # in half precision, against our own float32

    @cache  # noqa: B019
    def federation(self) -> Federation:
        """The same in every process."""
        rng = np.random.default_rng(0)
        population = self.population or self.clients
        n = population * self.rows
        model = build("model", COMPONENTS["model"], self.model)
        net = model.build(self.shape, self.classes, torch.Generator().manual_seed(0))
        dealt = evenly(np.arange(n), population)
        return Federation(
            algorithm=FedAvg(),
            task=Task(Classification(), net, ParameterSpace(net), self.classes, self.bf16),
            solver=Sgd(lr=0.05),
            server_optimiser=ServerSgd(),
            selection=Uniform(clients=self.clients),
            planner=SeededPlanner(Local(epochs=self.epochs, batch_size=self.batch), 0),
            x=torch.as_tensor(rng.standard_normal((n, *self.shape), dtype=np.float32)),
            y=torch.as_tensor(rng.integers(0, self.classes, n)),
            partition=Partition(np.concatenate(dealt), offsets(dealt), tuple(map(str, range(population))), 0, 0),
            seed=0,
        )

    @property
    def engine(self) -> Engine:
        """The faster one: many clients as one batch, or for images one client after the other."""
        return Stacked() if len(self.shape) == 1 else Sequential()

    @property
    def memory_format(self) -> torch.memory_format | None:
        return torch.channels_last if len(self.shape) == 3 else None


WORKLOADS = (
    Workload("softmax 30-6, 30 x 400, B 32, E 10", "softmax", (30,), 6, 30, 400, 32, 10, 8.0),
    Workload("MLP 60-32-10, 100 of 1000 x 60, B 10, E 5", "mlp:hidden=[32]", (60,), 10, 100, 60, 10, 5, 12.0, 1000),
    Workload("MLP 561-128-6, 10 x 735, B 64, E 5", "mlp:hidden=[128]", (561,), 6, 10, 735, 64, 5, 1.45),
    Workload("CNN 32x32x3, 10 x 500, B 50, E 1", "cnn", (3, 32, 32), 10, 10, 500, 50, 1, 1.1),
    Workload("CNN 32x32x3 in bf16, 10 x 500, B 50, E 1", "cnn", (3, 32, 32), 10, 10, 500, 50, 1, 1.35, bf16=True),
)
FULL = tuple(
    replace(w, name=w.name.replace("x 500,", "x 5000,"), rows=5000) if w.model == "cnn" else w for w in WORKLOADS
)
"""The same works with ten times the images; a round takes half a minute."""


def cohort(fed: Federation) -> Ints:
    """The clients of the round."""
    return call(fed, 0)[0]


def module(fed: Federation, x0: Tensor) -> torch.nn.Module:
    """The model x0 (P,) as a PyTorch module."""
    task: Any = fed.task
    net: torch.nn.Module = copy.deepcopy(task.model)
    with torch.no_grad():
        for p, value in zip(net.parameters(), task.space.unflatten(x0).values(), strict=True):
            p.copy_(value)
    return net


def batches(fed: Federation, k: int, memory_format: torch.memory_format | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows and labels of every local step of a client."""
    plan = fed.planner.train(0, k, fed.partition.rows(k))
    for rows, mask in zip(plan.index, plan.mask, strict=True):
        index = torch.as_tensor(rows[mask > 0])
        x = fed.x[index]
        yield x if memory_format is None else x.contiguous(memory_format=memory_format), fed.y[index]


def trained(
    fed: Federation, net: torch.nn.Module, k: int, memory_format: torch.memory_format | None
) -> torch.nn.Module:
    """The model after the local steps of a client."""
    local = copy.deepcopy(net)
    if memory_format is not None:
        local = local.to(memory_format=memory_format)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(local.parameters(), lr=fed.solver.lr)
    for x, y in batches(fed, k, memory_format):
        optimiser.zero_grad()
        F.cross_entropy(local(x)[1], y).backward()
        optimiser.step()
    return local


def plain(fed: Federation, x0: Tensor, clients: Ints, memory_format: torch.memory_format | None) -> Tensor:
    """The weighted sum of these clients' models (P,) after one FedAvg round in plain PyTorch."""
    task: Any = fed.task
    net, sizes = module(fed, x0), fed.partition.sizes
    total, rows = torch.zeros_like(x0), sizes[cohort(fed)].sum()
    for k in clients.tolist():
        total += sizes[k] / rows * task.space.flatten(trained(fed, net, k, memory_format))
    return total


def ours(fed: Federation, engine: Engine, x0: Tensor) -> Tensor:
    """The next global model (P,)."""
    return play_round(fed, engine, start(fed, x0), ClientStates(), measure_local=False).server.x


def plain_share(work: Workload, size: int, x0: Any, rank: int) -> Any:
    """The weighted sum of the models (P,) of the clients of process ``rank`` of ``size``."""
    fed = work.federation()
    return plain(fed, torch.from_numpy(x0), cohort(fed)[rank::size], work.memory_format).numpy()


def in_precision(fed: Federation, bf16: bool) -> Federation:
    """The same work in half precision or in full."""
    task: Any = fed.task
    return replace(fed, task=replace(task, bf16=bf16))


Side = Callable[[Tensor], Tensor]
"""Plays a round: the next global model (P,) from this one."""


def sides(work: Workload, fed: Federation, pool: ProcessPoolExecutor | None, size: int) -> dict[str, tuple[Side, int]]:
    """fedskew and the plain loops by name, each with the threads of this process."""
    everybody, cores = cohort(fed), os.cpu_count() or 1

    def plain_together(x0: Tensor) -> Tensor:
        assert pool is not None
        parts = pool.map(partial(plain_share, work, size, x0.numpy()), range(size))
        return torch.from_numpy(sum(parts))

    found: dict[str, tuple[Side, int]] = {
        "plain": (lambda x0: plain(fed, x0, everybody, None), cores),
        "fedskew": (partial(ours, fed, work.engine), cores),
    }
    if cores > 1:
        found["fedskew, 1 thread"] = (partial(ours, fed, work.engine), 1)
    if work.memory_format is not None:
        found["plain, channels last"] = (lambda x0: plain(fed, x0, everybody, torch.channels_last), cores)
    if pool is not None:
        found[f"plain, {size} processes"] = (plain_together, 1)
    return found


def precisions(work: Workload, fed: Federation) -> dict[str, tuple[Side, int]]:
    """fedskew in full and in half precision by name, with all threads."""
    cores = os.cpu_count() or 1
    kinds = {"float32": in_precision(fed, False), "fedskew, bf16": in_precision(fed, True)}
    return {name: (partial(ours, kind, work.engine), cores) for name, kind in kinds.items()}


def seconds(action: Callable[[], Any], threads: int) -> float:
    torch.set_num_threads(threads)
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(work: Workload, repeats: int, processes: int, peers: Mapping[str, Side] | None = None) -> dict[str, Any]:
    """Seconds a round of every side, as many as ``repeats``, interleaved; the largest difference between any two results.

    ``processes`` is the number of the plain loop's, ``peers`` are other simulators in processes of their own. Half precision is
    measured against our own float32 only.
    """
    before, fed = torch.get_num_threads(), work.federation()
    task: Any = fed.task
    x0 = task.space.flatten(task.model)
    try:
        if work.bf16:
            return compared(work, x0, repeats, precisions(work, fed))
        if processes == 1:
            return compared(work, x0, repeats, sides(work, fed, None, 1) | others(peers))
        threads = max(1, (os.cpu_count() or 1) // processes)
        with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
            return compared(work, x0, repeats, sides(work, fed, pool, processes) | others(peers))
    finally:
        torch.set_num_threads(before)


def others(peers: Mapping[str, Side] | None) -> dict[str, tuple[Side, int]]:
    return {name: (side, 1) for name, side in (peers or {}).items()}


def compared(work: Workload, x0: Tensor, repeats: int, taken: Mapping[str, tuple[Side, int]]) -> dict[str, Any]:
    """One warm-up round of every side, whose models are compared, then the timed rounds in turn."""
    results = torch.stack([act(x0) for act, _ in taken.values()])
    times: dict[str, list[float]] = {name: [] for name in taken}
    for _ in range(repeats):
        for name, (act, threads) in taken.items():
            times[name].append(seconds(partial(act, x0), threads))
    return {
        "work": work.name,
        "engine": type(work.engine).__name__.lower(),
        "seconds": times,
        "ratio": ratio(times),
        "wanted": work.wanted,
        "largest_difference": float((results.max(0).values - results.min(0).values).max()),
    }


def ratio(times: dict[str, list[float]]) -> float:
    """The median time of the fastest other side, divided by the median time of fedskew's fastest side."""
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    mine = min(m for name, m in medians.items() if name.startswith("fedskew"))
    return min(m for name, m in medians.items() if not name.startswith("fedskew")) / mine

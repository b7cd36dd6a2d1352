"""Whole rounds against plain PyTorch loops doing exactly the same work, interleaved in one run, and their results compared.

A round of ours is everything but evaluation: planning the batches, local training, drift, aggregation. The plain loop copies
the model for each client, steps `torch.optim.SGD` over the same batches and averages the models; for images it is given the better
of the two memory formats. With several processes each trains its share of the clients on its share of the cores: the plain loop
in processes that stay, which is the best that it can do, and ours through PyTorch's process group.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from fedskew.algorithms import FedAvg
from fedskew.core.task import Classification
from fedskew.core.vectors import ParameterSpace
from fedskew.engine.choose import choose
from fedskew.engine.distributed import Distributed, Group, balanced
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.loop.round import Engine, play_round, start
from fedskew.models import Cnn, Mlp, Softmax
from fedskew.skew.partition import Ints, Partition, offsets
from fedskew.slots import Everyone, ServerSgd, Sgd


@dataclass(frozen=True)
class Workload:
    """A round on random data."""

    name: str
    model: Any
    shape: tuple[int, ...]
    classes: int
    clients: int
    rows: int  # of each client
    batch: int
    epochs: int
    wanted: float  # how many times faster than the best plain loop a round is to be

    def federation(self) -> Federation:
        """The same in every process."""
        rng = np.random.default_rng(0)
        n = self.clients * self.rows
        net = self.model.build(self.shape, self.classes, torch.Generator().manual_seed(0))
        dealt = np.array_split(np.arange(n), self.clients)
        return Federation(
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

    def memory_format(self) -> torch.memory_format | None:
        return torch.channels_last if len(self.shape) == 3 else None


WORKLOADS = (
    Workload("softmax 30-6, 30 x 400, B 32, E 10", Softmax(), (30,), 6, 30, 400, 32, 10, 8.0),
    Workload("MLP 60-32-10, 100 x 60, B 10, E 5", Mlp(hidden=(32,)), (60,), 10, 100, 60, 10, 5, 12.0),
    Workload("MLP 561-128-6, 10 x 735, B 64, E 5", Mlp(hidden=(128,)), (561,), 6, 10, 735, 64, 5, 1.5),
    Workload("CNN 32x32x3, 10 x 500, B 50, E 1", Cnn(), (3, 32, 32), 10, 10, 500, 50, 1, 1.1),
)


def plain(fed: Federation, x0: Tensor, clients: Ints, memory_format: torch.memory_format | None) -> Tensor:
    """What these clients add to the next global model (P,), in one FedAvg round as most people write it."""
    task: Any = fed.task
    space, net = task.space, copy.deepcopy(task.model)
    with torch.no_grad():
        for p, value in zip(net.parameters(), space.unflatten(x0).values(), strict=True):
            p.copy_(value)
    total, sizes = torch.zeros_like(x0), fed.partition.sizes
    for k in clients.tolist():
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


def ours(fed: Federation, engine: Engine, x0: Tensor) -> Tensor:
    """The next global model (P,)."""
    return play_round(fed, engine, start(fed, x0), ClientStates(), measure_local=False).server.x


def share(fed: Federation, rank: int, size: int) -> Ints:
    """The clients that process ``rank`` of ``size`` trains in the plain loop."""
    return balanced(fed.partition.sizes.tolist(), size)[rank]


def helper(work: Workload, engine: Engine, place: str, rank: int, size: int, threads: int, pipe: Any) -> None:
    """A process beside the first: takes part in rounds of either kind until it hears of no more."""
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", store=dist.FileStore(place, size), rank=rank, world_size=size)
    fed, together = work.federation(), Distributed(engine, Group(rank, size))
    while message := pipe.recv():
        kind, x0 = message[0], torch.from_numpy(message[1])
        if kind == "plain":
            pipe.send(plain(fed, x0, share(fed, rank, size), work.memory_format()).numpy())
        else:
            ours(fed, together, x0)
    dist.destroy_process_group()


@contextmanager
def helpers(work: Workload, engine: Engine, size: int, threads: int) -> Iterator[list[Any]]:
    """Pipes to ``size - 1`` processes beside this one, all of one process group."""
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder:
        place, pipes, processes = str(Path(folder) / "group"), [], []
        for rank in range(1, size):
            near, far = context.Pipe()
            process = context.Process(target=helper, args=(work, engine, place, rank, size, threads, far), daemon=True)
            process.start()
            pipes.append(near)
            processes.append(process)
        dist.init_process_group("gloo", store=dist.FileStore(place, size), rank=0, world_size=size)
        try:
            yield pipes
            for pipe in pipes:
                pipe.send(None)
            for process in processes:
                process.join(10)
        finally:
            for process in processes:
                process.terminate()
            dist.destroy_process_group()


def sides(work: Workload, fed: Federation, engine: Engine, pipes: list[Any], threads: int) -> dict[str, Any]:
    """By name: a function from a model to the next one, and the threads of this process."""
    everybody, size = np.arange(work.clients), len(pipes) + 1

    def plain_together(x0: Tensor) -> Tensor:
        for pipe in pipes:
            pipe.send(("plain", x0.numpy()))
        total = plain(fed, x0, share(fed, 0, size), work.memory_format())
        return total + sum(torch.from_numpy(pipe.recv()) for pipe in pipes)

    def ours_together(x0: Tensor) -> Tensor:
        for pipe in pipes:
            pipe.send(("ours", x0.numpy()))
        return ours(fed, Distributed(engine, Group(0, size)), x0)

    cores = threads * size
    found: dict[str, Any] = {
        "plain": (lambda x0: plain(fed, x0, everybody, None), cores),
        "fedskew": (lambda x0: ours(fed, engine, x0), cores),
    }
    if work.memory_format() is not None:
        found["plain, channels last"] = (lambda x0: plain(fed, x0, everybody, torch.channels_last), cores)
    if pipes:
        found[f"plain, {size} processes"] = (plain_together, threads)
        found[f"fedskew, {size} processes"] = (ours_together, threads)
    return found


def seconds(action: Callable[[], Any], threads: int) -> float:
    torch.set_num_threads(threads)
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(work: Workload, repeats: int, processes: int) -> dict[str, Any]:
    """Seconds a round of every side, as many as ``repeats``, interleaved; the largest difference between any two results."""
    before, cores = torch.get_num_threads(), os.cpu_count() or 1
    threads = max(1, cores // processes)
    fed = work.federation()
    task: Any = fed.task
    x0 = task.space.flatten(task.model)
    try:
        torch.set_num_threads(threads * processes)
        engine, trial = choose(fed, start(fed, x0), measure_local=False)
        with helpers(work, engine, processes, threads) as pipes:
            taken = sides(work, fed, engine, pipes, threads)
            results = torch.stack([act(x0) for act, _ in taken.values()])
            times: dict[str, list[float]] = {name: [] for name in taken}
            for _ in range(repeats):
                for name, (act, own_threads) in taken.items():
                    times[name].append(seconds(partial(act, x0), own_threads))
    finally:
        torch.set_num_threads(before)
    return {
        "work": work.name,
        "engine": trial["name"],
        "seconds": times,
        "ratio": ratio(times),
        "wanted": work.wanted,
        "largest_difference": float((results.max(0).values - results.min(0).values).max()),
    }


def ratio(times: dict[str, list[float]]) -> float:
    """How many times faster our faster side is than the fastest plain one, by medians over the rounds."""
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    best = {kind: min(m for name, m in medians.items() if name.startswith(kind)) for kind in ("plain", "fedskew")}
    return best["plain"] / best["fedskew"]

"""A federation small enough to run a hundred times a second: seven ragged clients, three classes, a tanh network, float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.core.algorithm import Algorithm
from fedskew.core.records import Batch, Server
from fedskew.core.task import Classification, Task
from fedskew.core.vectors import ParameterSpace
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.loop.round import play_round, start
from fedskew.loop.work import Engine, Outcome
from fedskew.skew.partition import Partition, offsets
from fedskew.slots import ServerSgd, Sgd, Uniform

SIZES = (5, 17, 40, 3, 1, 9, 24)
CLASSES, FEATURES, INPUTS = 3, 5, 4
PUBLIC = 24
"""Rows of the server's own."""


class Net(nn.Module):
    """43 parameters: a prime, so that sizes tell models from everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(INPUTS, FEATURES)
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.tanh(self.hidden(x))
        return z, self.out(z)


# a skeleton: its own tensors are never read, so its random start does not matter
NET = Net().double()
SPACE = ParameterSpace(NET)
TASK = Classification(NET, SPACE, CLASSES)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


X0 = normal(3, SPACE.size) / 2
"""Where training starts, (P,)."""


def labels(seed: int, rows: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).integers(0, CLASSES, rows))


def federation(
    algorithm: Algorithm, task: Task = TASK, rounds: int = 4, sizes: tuple[int, ...] = SIZES, **changes: Any
) -> Federation:
    """Clients of 1 to 40 rows, of which five take part in a round; two local epochs of batches of 7, the last ones shorter."""
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    options: dict[str, Any] = {
        "solver": Sgd(lr=0.1),
        "server_optimiser": ServerSgd(),
        "selection": Uniform(clients=5),
        "planner": SeededPlanner(Local(epochs=2, batch_size=7), seed=7),
    }
    return Federation(
        algorithm=algorithm,
        task=task,
        x=normal(0, sum(sizes), INPUTS),
        y=labels(1, sum(sizes)),
        partition=Partition(np.arange(sum(sizes)), offsets(rows), tuple(map(str, range(len(sizes)))), 0, 0),
        seed=7,
        rounds=rounds,
        server_data=server_rows(PUBLIC),
        **(options | changes),
    )


def server_rows(count: int) -> Batch:
    """The server's own: as many of each class, in two groups of people for the methods that compare them."""
    x, row = normal(4, count, INPUTS), torch.arange(count)
    x[:, -1] = row // CLASSES % 2
    return Batch(x, row % CLASSES, torch.ones(count, dtype=torch.float64))


@contextmanager
def one_thread() -> Iterator[None]:
    """Work this small only waits for further threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def play(
    fed: Federation,
    engine: Engine,
    rounds: int | None = None,
    server: Server | None = None,
    states: ClientStates | None = None,
) -> list[Outcome]:
    """The outcomes of the rounds up to ``rounds``, by default all that are planned; ``states`` is filled."""
    states = ClientStates() if states is None else states
    server = server or start(fed, X0)
    outcomes = []
    while server.round < (fed.rounds if rounds is None else rounds):
        outcomes.append(play_round(fed, engine, server, states))
        server = outcomes[-1].server
    return outcomes

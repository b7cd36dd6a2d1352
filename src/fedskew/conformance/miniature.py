"""The miniature federation: seven clients with 1 to 40 rows, three classes, a tanh network, float64. It runs 100 times a second."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.core.algorithm import Algorithm
from fedskew.core.contract import Selection, ServerOptimiser, Solver
from fedskew.core.records import Batch, Server
from fedskew.core.task import Task, TaskKind
from fedskew.core.trees import ParameterSpace
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, Planner, SeededPlanner
from fedskew.loop.round import play_round, start
from fedskew.loop.work import Engine, Outcome
from fedskew.skew.partition import Partition, offsets
from fedskew.slots import ServerSgd, Sgd, Uniform
from fedskew.tasks.classification import Classification

SIZES = (5, 17, 40, 3, 1, 9, 24)
CLASSES, FEATURES, INPUTS, LENGTH = 3, 5, 4, 5
PUBLIC = 24
"""Number of rows on the server."""


class Net(nn.Module):
    """A network with 43 parameters: a prime, so that no other size is a multiple. ``length`` is the number of output places."""

    def __init__(self, outputs: int = CLASSES, length: int = 0) -> None:
        super().__init__()
        self.length = length
        self.hidden = nn.Linear(INPUTS, FEATURES)
        self.out = nn.Linear(FEATURES, outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.tanh(self.hidden(x))
        if not self.length:
            return z, self.out(z)
        places = z[..., None, :] * torch.arange(1, self.length + 1).to(z)[:, None] / self.length
        return places.mean(-2), self.out(places)


# parameters are always given as a vector, so the module's own random values do not matter
NET = Net().double()
SPACE = ParameterSpace(NET)
TASK = Task(Classification(), NET, SPACE, CLASSES)


def normal(seed: int, *shape: int) -> Tensor:
    """Draw standard normal numbers of this shape."""
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape))


X0 = normal(3, SPACE.size) / 2
"""Initial model (P,) with 43 parameters."""


def start_of(fed: Federation) -> Tensor:
    """Return the federation's initial model (P,)."""
    return normal(3, fed.task.space.size) / 2


def targets(kind: str, rows: int) -> Tensor:
    """Return targets (rows, ...) of this kind."""
    row = torch.arange(rows)
    if kind == "classes":
        return row % CLASSES
    if kind == "number":
        return normal(2, rows)
    if kind == "labels":
        return (normal(2, rows, CLASSES) > 0).long()
    if kind == "survival":
        return torch.stack([normal(2, rows).exp(), (row % 3 > 0).double()], 1)
    symbols = (row[:, None] + torch.arange(LENGTH)) % CLASSES
    return symbols.where(torch.arange(LENGTH) < LENGTH - row[:, None] % 3, -1)


LOCAL: Planner = SeededPlanner(Local(epochs=2, batch_size=7), seed=7)
"""Two local epochs with batches of 7 rows; the last batch of an epoch is shorter."""


def federation(
    algorithm: Algorithm,
    task: Task = TASK,
    sizes: tuple[int, ...] = SIZES,
    *,
    solver: Solver = Sgd(lr=0.1),  # noqa: B008
    server_optimiser: ServerOptimiser = ServerSgd(),  # noqa: B008
    selection: Selection = Uniform(clients=5),  # noqa: B008
    planner: Planner = LOCAL,
) -> Federation:
    """Build a federation with clients of these sizes and four planned rounds."""
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return Federation(
        algorithm=algorithm,
        task=task,
        solver=solver,
        server_optimiser=server_optimiser,
        selection=selection,
        planner=planner,
        x=normal(0, sum(sizes), INPUTS),
        y=torch.tensor(np.random.default_rng(1).integers(0, CLASSES, sum(sizes))),
        partition=Partition(np.arange(sum(sizes)), offsets(rows), tuple(map(str, range(len(sizes)))), 0, 0),
        seed=7,
        rounds=4,
        server_data=server_rows(PUBLIC),
    )


def slots_of(kind: TaskKind) -> dict[str, Any]:
    """Return the fields of the federation that depend on the task."""
    length = LENGTH if kind.target == "symbols" else 0
    outputs = kind.num_outputs(CLASSES if kind.target in ("classes", "labels", "symbols") else 0)
    net, y = Net(outputs, length).double(), targets(kind.target, sum(SIZES))
    task = Task(kind.fitted(y.numpy()), net, ParameterSpace(net), outputs)
    return {"task": task, "y": y, "server_data": server_rows(PUBLIC)._replace(y=targets(kind.target, PUBLIC))}


def server_rows(count: int) -> Batch:
    """Return the server's rows: balanced classes, and two groups of people for methods of group fairness."""
    x, row = normal(4, count, INPUTS), torch.arange(count)
    x[:, -1] = row // CLASSES % 2
    return Batch(x, row % CLASSES, torch.ones(count, dtype=torch.float64))


def play(
    fed: Federation,
    engine: Engine,
    rounds: int | None = None,
    server: Server | None = None,
    states: ClientStates | None = None,
) -> list[Outcome]:
    """Play the rounds up to ``rounds`` (default: all planned rounds), with ``states``; return their outcomes."""
    states = ClientStates() if states is None else states
    server = server or start(fed, start_of(fed))
    outcomes = []
    while server.round < (fed.rounds if rounds is None else rounds):
        outcomes.append(play_round(fed, engine, server, states))
        server = outcomes[-1].server
    return outcomes

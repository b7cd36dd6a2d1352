"""Small federations for exact tests: scalar quadratics, and ragged clients with a tiny network, all in float64."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.conformance import miniature
from fedskew.core.records import Batch, Server
from fedskew.core.task import Task
from fedskew.core.trees import ParameterSpace
from fedskew.engine.sequential import Sequential
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.loop.round import start
from fedskew.loop.work import Outcome
from fedskew.skew.partition import Partition, offsets
from fedskew.slots import Everyone, ServerSgd, Sgd
from fedskew.tasks.classification import Classification


@dataclass(frozen=True)
class Quadratic:
    """f_k(w) = h/2 (w - b)^2 for a row (h, b); the optimum of the uniform mean is sum(h b) / sum(h)."""

    num_classes: int = 1
    stacks, joint, pooled_names, pooled_primary, model = True, False, (), "", nn.Module()

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        value = x[:, 0] / 2 * (w[0] - x[:, 1]) ** 2
        return value[:, None], value[:, None]

    def measured(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        return means

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        return self.outputs(w, x)[1]

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return logits[:, 0]

    def scores(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": logits[:, 0]}


@dataclass(frozen=True)
class Linear(Quadratic):
    """f_k(w) = <g, w> for a row g: constant gradients."""

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        value = x @ w
        return value[:, None], value[:, None]


@dataclass(frozen=True)
class StepsOf:
    """A planner that gives client k exactly ``steps[k]`` full local batches."""

    steps: tuple[int, ...]

    def batch_sizes(self, sizes):
        return sizes

    def parts(self, client: int) -> int:
        return self.steps[client]

    def train(self, round_: int, client: int, rows):
        from fedskew.core.records import BatchPlan

        return BatchPlan(np.tile(rows, (self.steps[client], 1)), np.ones((self.steps[client], len(rows))))


def partition_of(sizes: list[int]) -> Partition:
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return Partition(np.arange(sum(sizes)), offsets(rows), tuple(str(k) for k in range(len(sizes))), 0, 0)


def exact_clients(task, rows, steps, algorithm, *, lr, server=None, solver=None, sizes=None) -> Federation:
    """One row a client (or ``sizes`` rows), full-batch steps."""
    x = torch.tensor(rows, dtype=torch.float64)
    return Federation(
        algorithm=algorithm,
        task=task,
        solver=solver or Sgd(lr=lr),
        server_optimiser=server or ServerSgd(),
        selection=Everyone(),
        planner=StepsOf(tuple(steps)),
        x=x,
        y=torch.zeros(len(x), dtype=torch.long),
        partition=partition_of(sizes or [1] * len(x)),
        seed=0,
    )


def play(fed: Federation, x0, rounds: int, engine=None, server: Server | None = None, states=None) -> list[Outcome]:
    """Outcomes of the rounds; ``states`` is filled."""
    server = server or start(fed, torch.as_tensor(x0, dtype=torch.float64))
    return miniature.play(fed, engine or Sequential(), rounds, server, states)


class TinyNet(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.b = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.tanh(self.a(x))
        return z, self.b(z)


class OneLayer(nn.Module):
    """The logits are a linear layer of the row; the features are the row."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.out = layer

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.out(x)


def classifier(net: nn.Module, classes: int, bf16: bool = False) -> Task:
    """Classification by this module."""
    return Task(Classification(), net, ParameterSpace(net), classes, bf16)


NET = TinyNet().double()
TASK = classifier(NET, 3)
X0 = torch.randn(TASK.space.size, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 2
RAGGED = [5, 17, 40, 3, 1, 9, 24]


def ragged(algorithm, *, local=None, selection=None, server=None, solver=None, seed=7, sizes=None) -> Federation:
    """Clients of 1 to 40 rows with a small tanh network, and thirty rows of the server's own."""
    sizes = sizes or RAGGED
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.standard_normal((sum(sizes), 6)))
    y = torch.tensor(rng.integers(0, 3, sum(sizes)))
    return Federation(
        algorithm=algorithm,
        task=TASK,
        solver=solver or Sgd(lr=0.1),
        server_optimiser=server or ServerSgd(),
        selection=selection or Everyone(),
        planner=SeededPlanner(local or Local(epochs=2, batch_size=7), seed),
        x=x,
        y=y,
        partition=partition_of(sizes),
        seed=seed,
        server_data=own_rows(30),
    )


def own_rows(count: int) -> Batch:
    """The server's rows: independent of the clients', as many of each class."""
    x = torch.tensor(np.random.default_rng(11).standard_normal((count, 6)))
    x[:, -1] = torch.arange(count) // 3 % 2  # two groups of people, for the methods that compare them
    return Batch(x, torch.arange(count) % 3, torch.ones(count).double())

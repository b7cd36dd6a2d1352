"""A federation: everything that stays the same over the rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from fedskew.core.algorithm import Algorithm, local_loss
from fedskew.core.contract import (
    Availability,
    Codec,
    Contract,
    Refinement,
    Selection,
    ServerOptimiser,
    Solver,
)
from fedskew.core.records import Batch, Info, Server, ServerView
from fedskew.core.seeding import Seed
from fedskew.core.task import Task
from fedskew.loop.local import Program, program
from fedskew.loop.plan import Planner
from fedskew.loop.sharing import Kept, keeping
from fedskew.loop.system import System
from fedskew.skew.concept import Labels
from fedskew.skew.partition import Ints, Partition
from fedskew.slots import Always, Uncompressed, Unrefined


class Tuning(NamedTuple):
    """Steps on a client's own rows that each personal model takes before it is measured."""

    planner: Planner
    lr: float | None  # None: the local solver's rate of the round


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything that stays the same over the rounds."""

    algorithm: Algorithm
    task: Task
    solver: Solver
    server_optimiser: ServerOptimiser
    selection: Selection
    planner: Planner
    x: Tensor  # (n, ...) pooled training rows
    y: Tensor  # (n,)
    partition: Partition
    seed: int
    rounds: int = 1  # that are planned
    availability: Availability = field(default_factory=Always)
    system: System = field(default_factory=System)
    server_data: Batch | None = None  # the server's own labelled rows
    codec: Codec = field(default_factory=Uncompressed)  # of the updates on their way to the server
    refinement: Refinement = field(default_factory=Unrefined)  # what the server does to the new model on its own rows
    tuning: Tuning | None = None  # of personal models, before they are measured
    # of further architectures: client k has number k modulo how many there are with ``task``
    others: tuple[Task, ...] = ()
    kept: Kept | None = None  # the part of the model that clients keep to themselves
    moving: Labels | None = None  # the labels over the rounds, where they change; y is how they begin
    hidden: Seed | None = None  # of what the server draws and no client may know; None: from the seed
    dtype: torch.dtype | None = None  # of all numbers, where x holds integers; None: that of x
    contract: Contract = field(init=False)  # the method's
    programs: tuple[Program, ...] = field(init=False)  # one for each architecture
    info: Info = field(init=False)  # leading axis: all clients

    def __post_init__(self) -> None:
        object.__setattr__(self, "contract", self.algorithm.contract())
        if not self.contract.shares_model:
            object.__setattr__(self, "kept", Kept.everything(self.task.space.size, self.x.device))
        made = tuple(program(self.algorithm, task, self.solver) for task in self.tasks)
        kept = self.kept
        object.__setattr__(self, "programs", tuple(keeping(p, kept) for p in made) if kept else made)
        object.__setattr__(self, "info", describe(self))

    @property
    def tasks(self) -> tuple[Task, ...]:
        """One for each architecture."""
        return self.task, *self.others

    @property
    def program(self) -> Program:
        """Of the first architecture, which usually is the only one."""
        return self.programs[0]

    @property
    def server_seed(self) -> Seed:
        """Of what the server alone draws."""
        return self.seed if self.hidden is None else self.hidden

    @property
    def clients(self) -> Ints:
        return np.arange(len(self.partition))

    def view(self, server: Server) -> ServerView:
        """What the server's hooks see."""
        return ServerView(
            round=server.round,
            x=server.x,
            state=server.state,
            rounds=self.rounds,
            seed=self.server_seed,
            clients=self.info,
            task=self.task,
            data=self.server_data,
        )

    def targets(self, round_: int) -> Tensor:
        """The labels (n,) in a round."""
        return self.y if self.moving is None else torch.as_tensor(self.moving.at(round_)).to(self.y)

    def known(self, round_: int) -> Info:
        """`Info` of all clients in a round; leading axis: all clients."""
        if self.moving is None:
            return self.info
        return self.info._replace(label_counts=label_counts(self, self.targets(round_)))

    def rate(self, round_: int) -> float:
        """The client learning rate of a round."""
        return float(self.solver.lr * self.solver.lr_decay**round_)


def describe(fed: Federation) -> Info:
    """`Info` of all clients."""
    sizes = fed.partition.sizes
    return Info(
        index=torch.arange(len(sizes), device=fed.x.device),
        num_examples=numbers(fed, sizes),
        label_counts=label_counts(fed, fed.y),
        batch_size=numbers(fed, fed.planner.batch_sizes(sizes)),
    )


def label_counts(fed: Federation, y: Tensor) -> Tensor:
    """(K, classes) training rows of all clients."""
    return numbers(fed, fed.partition.label_counts(y.cpu().numpy(), fed.task.num_classes))


def numbers(fed: Federation, values: Any) -> Tensor:
    """Counts as numbers to reckon with."""
    return torch.as_tensor(values, dtype=fed.dtype or fed.x.dtype, device=fed.x.device)


def warmed_up(fed: Federation, x: Tensor, steps: int) -> Tensor:
    """The initial model (P,) of every architecture after ``steps`` steps of the local solver on all of the server's rows.

    As in local training, weight decay belongs to the loss of a linear solver; AdamW decouples it.
    """
    data, solver = fed.server_data, fed.solver
    if data is None or not steps:
        return x
    state, decay = solver.init(x), solver.weight_decay if solver.linear else 0.0
    slope = grad(lambda w: sum(local_loss(task, w, data) for task in fed.tasks))
    for _ in range(steps):
        x, state = solver.update(slope(x) + decay * x, state, x, x.new_tensor(fed.rate(0)))
    return x

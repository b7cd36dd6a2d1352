"""A federation: everything that is constant over the rounds."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from fedskew.core.algorithm import Algorithm, local_loss
from fedskew.core.contract import Availability, Codec, Contract, Refinement, Selection, ServerOptimiser, Solver
from fedskew.core.records import Batch, Info, Server, ServerView
from fedskew.core.seeding import Seed
from fedskew.core.sites import Floats
from fedskew.core.task import Task
from fedskew.loop.plan import Planner, System
from fedskew.loop.sharing import Intercepts, OwnPart, answering, keeping
from fedskew.loop.work import Program, program
from fedskew.skew.concept import Labels
from fedskew.skew.partition import Ints, Partition
from fedskew.slots import Always, Uncompressed, Unrefined
from fedskew.slots.optimisers import rate_factor


class PersonalTuning(NamedTuple):
    """Fine-tuning of personal models on the client's own rows, before they are measured."""

    planner: Planner
    lr: float | None  # learning rate; None: the local solver's in this round


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything that is constant over the rounds. There are K clients with n training rows in total."""

    algorithm: Algorithm
    task: Task
    solver: Solver
    server_optimiser: ServerOptimiser
    selection: Selection
    planner: Planner
    x: Tensor  # (n, ...) pooled training rows
    y: Tensor  # (n, ...)
    partition: Partition
    seed: int
    rounds: int = 1  # planned
    availability: Availability = field(default_factory=Always)
    system: System = field(default_factory=System)
    server_data: Batch | None = None  # the server's own labelled rows
    codec: Codec = field(default_factory=Uncompressed)  # encodes updates for the server
    refinement: Refinement = field(default_factory=Unrefined)  # trains the new global model on the server's rows
    tuning: PersonalTuning | None = None  # fine-tuning of personal models
    # tasks of further architectures: client k has architecture k modulo the number of all, which includes ``task``
    others: tuple[Task, ...] = ()
    own_part: OwnPart | None = None  # the part of the model that each client keeps
    intercepts: Intercepts | None = None  # of the personal models
    moving: Labels | None = None  # the labels of each round, if they change; y has the first ones
    hidden: Seed | None = None  # secret seed of the server's random numbers; None: use ``seed``
    dtype: torch.dtype | None = None  # type of the parameters, if x holds integers; None: the type of x
    weights: Tensor | None = None  # (K,) the clients' own weights in averages; None: all are 1
    rates: Floats | None = None  # (K,) the clients' learning rates before the schedule; None: all have the solver's

    def __post_init__(self) -> None:
        if not self.contract.shares_model:
            object.__setattr__(self, "own_part", OwnPart.everything(self.task.space.size, self.x.device))

    @cached_property
    def contract(self) -> Contract:
        """The contract of the method."""
        return self.algorithm.contract()

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """One program for each architecture."""
        programs = tuple(program(self.algorithm, task, self.solver) for task in self.tasks)
        if part := self.own_part:
            programs = tuple(keeping(p, part) for p in programs)
        if intercepts := self.intercepts:
            programs = tuple(answering(p, intercepts) for p in programs)
        return programs

    @cached_property
    def info(self) -> Info:
        """The `Info` of all clients before the first round, with a leading axis of all clients."""
        sizes = self.partition.sizes
        return Info(
            index=torch.arange(len(sizes), device=self.x.device),
            num_examples=numbers(self, sizes),
            label_counts=label_counts(self, self.y),
            batch_size=numbers(self, self.planner.batch_sizes(sizes)),
        )

    def sent(self, rows: Tensor) -> Tensor:
        """Return the entries (..., P or fewer) of vectors (..., P) that clients share."""
        return self.own_part.sent(rows) if self.own_part else rows

    @property
    def shares_nothing(self) -> bool:
        """True if clients keep their whole models, so that the server's model stays as it began."""
        return self.own_part is not None and not len(self.own_part.others)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The task of each architecture."""
        return self.task, *self.others

    def tasks_of(self, clients: Ints) -> list[Task]:
        """Return the task of each of these clients."""
        return [self.tasks[int(k) % len(self.tasks)] for k in clients]

    @property
    def program(self) -> Program:
        """The program of the first architecture, usually the only one."""
        return self.programs[0]

    @property
    def server_seed(self) -> Seed:
        """The seed of the server's random numbers."""
        return self.seed if self.hidden is None else self.hidden

    @property
    def clients(self) -> Ints:
        return np.arange(len(self.partition))

    def view(self, server: Server) -> ServerView:
        """Return the view of the server that a method's hooks get."""
        return ServerView(
            round=server.round,
            x=server.x,
            state=server.state,
            rounds=self.rounds,
            seed=self.server_seed,
            clients=self.info,
            task=self.task,
            data=self.server_data,
            weights=torch.ones_like(self.info.num_examples) if self.weights is None else self.weights,
        )

    def targets(self, round_: int) -> Tensor:
        """Return the targets (n, ...) in a round."""
        return self.y if self.moving is None else torch.as_tensor(self.moving.at(round_)).to(self.y)

    def known(self, round_: int) -> Info:
        """Return the `Info` of all clients in a round, with a leading axis of all clients."""
        if self.moving is None:
            return self.info
        return self.info._replace(label_counts=label_counts(self, self.targets(round_)))

    def rate(self, round_: int) -> float:
        """Return the solver's learning rate of a round."""
        return float(self.solver.lr * rate_factor(self.solver.lr_decay, round_, self.rounds))

    def rates_in(self, round_: int) -> Floats | None:
        """Return the clients' learning rates (K,) of a round; None if all have the solver's."""
        return None if self.rates is None else self.rates * rate_factor(self.solver.lr_decay, round_, self.rounds)


def label_counts(fed: Federation, y: Tensor) -> Tensor:
    """Return the number of training rows of each client and class (K, classes); (K, 0) if the targets are not classes."""
    if not fed.task.num_classes:
        return numbers(fed, np.zeros((len(fed.partition), 0), dtype=np.int64))
    return numbers(fed, fed.partition.label_counts(y.cpu().numpy(), fed.task.num_classes))


def numbers(fed: Federation, values: Ints) -> Tensor:
    """Convert counts to a tensor with the type of the parameters."""
    return torch.as_tensor(values, dtype=fed.dtype or fed.x.dtype, device=fed.x.device)


def warmed_up(fed: Federation, x: Tensor, steps: int) -> Tensor:
    """Return the initial model (P,) after ``steps`` steps of the local solver on all rows of the server.

    With several architectures, the loss is the sum over all. As in local training, weight decay is part of the loss, except for
    AdamW, which decouples it.
    """
    data, solver = fed.server_data, fed.solver
    if data is None or not steps:
        return x
    state, decay = solver.init(x), solver.weight_decay if solver.linear else 0.0
    slope = grad(lambda w: sum(local_loss(task, w, data) for task in fed.tasks))
    for _ in range(steps):
        x, state = solver.update(slope(x) + decay * x, state, x, x.new_tensor(fed.rate(0)))
    return x

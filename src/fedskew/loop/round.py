"""The one server round: open it (who, with what view, on which batches), let an engine work, close it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm
from fedskew.core.errors import Diverged
from fedskew.core.records import Batch, Cohort, Info, Plan, Server, Upload, View
from fedskew.core.seeding import stream
from fedskew.core.task import Task
from fedskew.core.trees import Tree, leaves, map_leaves, num_bytes, pick
from fedskew.loop.local import Program, program
from fedskew.loop.plan import Planner, one_pass
from fedskew.loop.sharing import PART, Kept, keeping
from fedskew.measure.drift import drift
from fedskew.skew.partition import Ints, Partition


class States(Protocol):
    """Where client states live between rounds."""

    def get(self, clients: Ints, fresh: Callable[[], Tree]) -> Tree: ...

    def put(self, clients: Ints, states: Tree) -> None: ...


class Tuning(NamedTuple):
    """Steps on a client's own rows that each personal model takes before it is measured."""

    planner: Planner
    lr: float | None  # None: the local solver's rate of the round


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything that stays the same over the rounds."""

    algorithm: Algorithm
    task: Task
    solver: Any
    server_optimiser: Any
    selection: Any
    planner: Planner
    x: Tensor  # (n, ...) pooled training rows
    y: Tensor  # (n,)
    partition: Partition
    seed: int
    rounds: int = 1  # that are planned
    server_data: Batch | None = None  # the server's own labelled rows
    tuning: Tuning | None = None  # of personal models, before they are measured
    kept: Kept | None = None  # the part of the model that clients keep to themselves
    program: Program = field(init=False)
    info: Info = field(init=False)  # leading axis: all clients

    def __post_init__(self) -> None:
        made = program(self.algorithm, self.task, self.solver)
        object.__setattr__(self, "program", keeping(made, self.kept) if self.kept else made)
        object.__setattr__(self, "info", describe(self))

    @property
    def clients(self) -> Ints:
        return np.arange(len(self.partition))


class Work(NamedTuple):
    """One round's work for an engine. The parts of the view named in `OWN` have a leading axis C, the rest is shared."""

    clients: Ints  # (C,) sorted ids
    view: View
    plans: list[Plan]  # the local steps
    passes: list[Plan]  # the training rows once, for `before` and `after`
    measured: list[Plan]  # the rows on which local models are measured; empty: not this time


class Done(NamedTuple):
    """What an engine returns, in the order of ``Work.clients``."""

    uploads: Upload  # leading axis C
    states: Tree  # leading axis C
    scores: Tree  # sums (C,) over the measured rows at each local model; {} if not measured


class Outcome(NamedTuple):
    """What is known of a finished round."""

    server: Server
    work: Work
    done: Done
    measures: dict[str, Tensor]  # see `fedskew.measure.drift`
    steps: Ints  # (C,) local steps
    bytes_down: int  # to the whole cohort
    bytes_up: int  # from the whole cohort


class Engine(Protocol):
    """Drives the program of a federation over one round's work."""

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        """What the clients find on their data at the model they received, and their answers; leading axis C."""
        ...

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done: ...


def describe(fed: Federation) -> Info:
    """`Info` of all clients."""
    sizes = fed.partition.sizes
    num_classes = fed.task.num_classes
    counts = fed.partition.label_counts(fed.y.cpu().numpy(), num_classes)
    batch = [fed.planner.batch_size(int(n)) for n in np.unique(sizes)]
    batch_of = np.asarray(batch)[np.searchsorted(np.unique(sizes), sizes)]
    return Info(
        index=torch.arange(len(sizes), device=fed.x.device),
        num_examples=torch.as_tensor(sizes).to(fed.x),
        label_counts=torch.as_tensor(counts).to(fed.x),
        batch_size=torch.as_tensor(batch_of).to(fed.x),
    )


def start(fed: Federation, x0: Tensor) -> Server:
    """The server before round 0."""
    server = Server(
        round=0,
        x=x0,
        opt=fed.server_optimiser.init(x0),
        state={},
        rounds=fed.rounds,
        seed=fed.seed,
        clients=fed.info,
        task=fed.task,
        data=fed.server_data,
    )
    return server._replace(state=fed.algorithm.server_init(server))


def client_state(fed: Federation, x: Tensor) -> Tree:
    """That of a client that takes part for the first time."""
    state = fed.algorithm.client_init(x)
    return state | {PART: fed.kept.of_model(x)} if fed.kept else state


def open_round(
    fed: Federation, server: Server, states: States, measure_local: bool, cohort: Ints | None = None
) -> Work:
    """Make the views of a cohort, by default the one that the selection proposes, and plan its batches."""
    if cohort is None:
        cohort = fed.selection.select(fed.clients, stream(fed.seed, "select", server.round))
    plans = [fed.planner.train(server.round, int(k), fed.partition.rows(k)) for k in cohort]
    return work_of(fed, server, states, cohort, plans, rate(fed, server.round), measure_local)


def work_of(
    fed: Federation, server: Server, states: States, clients: Ints, plans: list[Plan], lr: float, measured: bool
) -> Work:
    """The work of these clients on these plans, under the server as it is."""
    part = fed.partition
    view = View(
        x=server.x,
        extras=fed.algorithm.broadcast(server),
        state=states.get(clients, lambda: client_state(fed, server.x)),
        info=pick(fed.info, torch.as_tensor(clients, device=fed.x.device)),
        before={},
        lr=torch.tensor(lr, dtype=server.x.dtype, device=server.x.device),
        steps=torch.tensor([len(plan.index) for plan in plans]).to(server.x),
    )
    return Work(
        clients=clients,
        view=view,
        plans=plans,
        passes=[one_pass(part.rows(k)) for k in clients],
        measured=[one_pass(part.measured_rows(k)) for k in clients] if measured else [],
    )


def prepare(
    fed: Federation, engine: Engine, server: Server, states: States, measure_local: bool
) -> tuple[Server, Work, tuple[int, int]]:
    """Open a round and let the method survey the proposed clients, where it does.

    Returns the server and the work then, and the bytes that the survey sent, down and up.
    """
    work = open_round(fed, server, states, measure_local)
    if not (fed.program.before or fed.program.convenes):
        return server, work, (0, 0)
    before, answers = engine.survey(fed.program, work, fed.x, fed.y)
    if not fed.program.convenes:
        return server, work._replace(view=work.view._replace(before=before)), (0, 0)
    sent = (len(work.clients) * (model_bytes(fed, server.x) + num_bytes(work.view.extras)), num_bytes(answers))
    state, chosen = fed.algorithm.convene(server, work.view.info, answers)
    server, ids = server._replace(state=state), chosen.cpu().numpy()
    known = {int(k): i for i, k in enumerate(work.clients)}
    at = torch.tensor([known.get(int(k), 0) for k in ids], device=fed.x.device)
    asked = torch.tensor([int(k) in known for k in ids], device=fed.x.device)
    work = open_round(fed, server, states, bool(work.measured), ids)
    before = map_leaves(lambda leaf: leaf[at] * asked.view(-1, *[1] * (leaf.dim() - 1)).to(leaf.dtype), before)
    return server, work._replace(view=work.view._replace(before=before)), sent


def close_round(fed: Federation, server: Server, work: Work, done: Done) -> Server:
    """Aggregate, and let the server optimiser step."""
    delta, state = fed.algorithm.aggregate(server, Cohort(work.view.info, done.uploads))
    if fed.kept:
        delta = fed.kept.without(delta)
    x, opt = fed.server_optimiser.update(-delta, server.opt, server.x)
    return server._replace(round=server.round + 1, x=x, opt=opt, state=state)


def play_round(fed: Federation, engine: Engine, server: Server, states: States, measure_local: bool = True) -> Outcome:
    """One whole round. Raises `Diverged` before anything is kept if an update or a model is not finite."""
    server, work, (asked_down, asked_up) = prepare(fed, engine, server, states, measure_local)
    done = engine.run(fed.program, work, fed.x, fed.y)
    measures = drift(done.uploads.delta, work.view.info.num_examples)
    check_finite(fed, server, work, done, measures["update_norm"])
    after = close_round(fed, server, work, done)
    if not bool(after.x.isfinite().all()):
        cause = server_cause(fed, server.round)
        raise Diverged(f"round {after.round}: the global model is no longer finite although all updates are; {cause}")
    states.put(work.clients, done.states)
    return Outcome(
        server=after,
        work=work,
        done=done,
        measures=measures,
        steps=np.asarray([len(plan.index) for plan in work.plans]),
        bytes_down=asked_down + received(fed, work),
        bytes_up=asked_up
        + num_bytes(done.uploads)
        - (len(work.clients) * fed.kept.num_bytes(server.x) if fed.kept else 0),
    )


def received(fed: Federation, work: Work) -> int:
    """Bytes that the clients who train receive; those who were surveyed have the model already."""
    model = 0 if fed.program.convenes else model_bytes(fed, work.view.x)
    return len(work.clients) * (model + num_bytes(work.view.extras))


def model_bytes(fed: Federation, x: Tensor) -> int:
    """What a client receives of the model."""
    return num_bytes({"x": x}) - (fed.kept.num_bytes(x) if fed.kept else 0)


def check_finite(fed: Federation, server: Server, work: Work, done: Done, norms: Tensor) -> None:
    """Raise `Diverged` naming the round, the client and the most likely cause."""
    bad = ~norms.isfinite()
    for sums in done.scores.values():
        bad = bad | ~sums.isfinite()
    what = "the loss or the update"
    if fed.program.personal and not bool(bad.any()):
        what = "its own model"
        for _, leaf in leaves(done.states):
            bad = bad | ~leaf.reshape(len(bad), -1).isfinite().all(1)
    if not bool(bad.any()):
        return
    position = int(bad.nonzero()[0, 0])
    name = fed.partition.names[int(work.clients[position])]
    others = f" and {int(bad.sum()) - 1} more" if int(bad.sum()) > 1 else ""
    raise Diverged(
        f"round {server.round + 1}, client {name}{others}: {what} is no longer finite; "
        f"{client_cause(fed, server.round)}; client {name} took {len(work.plans[position].index)} local steps"
    )


def client_cause(fed: Federation, round_: int) -> str:
    """Why local training most likely blew up, and what to try."""
    lr, momentum = rate(fed, round_), getattr(fed.solver, "momentum", 0.0)
    cause = fed.algorithm.hazard(lr)
    if not cause:
        cause = f"the client learning rate {lr:g} is too large"
        if momentum:
            cause += f" (with momentum {momentum:g} a step is up to {lr / (1 - momentum):g} gradients long)"
        cause += f"; try lr {lr / 5:.1g}, or fewer local steps"
    return f"most likely cause: {cause}"


def server_cause(fed: Federation, round_: int) -> str:
    """Why the server's step most likely blew up, and what to try."""
    cause = fed.algorithm.hazard(rate(fed, round_))
    return f"most likely cause: {cause or 'the step of the server optimiser; lower its lr, or its momentum'}"


def rate(fed: Federation, round_: int) -> float:
    """The client learning rate of a round."""
    return float(fed.solver.lr * fed.solver.lr_decay**round_)

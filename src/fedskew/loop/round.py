"""The one server round: open it (who, with what view, on which batches), let an engine work, close it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.algorithm import Algorithm
from fedskew.core.errors import Diverged
from fedskew.core.records import Batch, Cohort, Info, Plan, Server, Upload, View
from fedskew.core.seeding import stream, torch_stream
from fedskew.core.task import Task
from fedskew.core.trees import Tree, leaves, map_leaves, num_bytes, pick
from fedskew.loop.local import Program, program
from fedskew.loop.plan import Planner, one_pass
from fedskew.loop.sharing import PART, Kept, keeping
from fedskew.loop.system import Late, System, partial
from fedskew.measure.drift import drift
from fedskew.skew.partition import Ints, Partition
from fedskew.slots import Always, Uncompressed, Unrefined


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
    availability: Any = field(default_factory=Always)
    system: System = field(default_factory=System)
    server_data: Batch | None = None  # the server's own labelled rows
    tuning: Tuning | None = None  # of personal models, before they are measured
    kept: Kept | None = None  # the part of the model that clients keep to themselves
    codec: Any = field(default_factory=Uncompressed)  # of the updates on their way to the server
    refinement: Any = field(default_factory=Unrefined)  # what the server does to the new model on its own rows
    program: Program = field(init=False)
    info: Info = field(init=False)  # leading axis: all clients

    def __post_init__(self) -> None:
        made = program(self.algorithm, self.task, self.solver)
        object.__setattr__(self, "program", keeping(made, self.kept) if self.kept else made)
        object.__setattr__(self, "info", describe(self))

    @property
    def clients(self) -> Ints:
        return np.arange(len(self.partition))


class Turnout(NamedTuple):
    """How many clients there are at each stage of a round, up to those who train."""

    available: int
    selected: int  # of the available
    answered: int  # of the selected
    stragglers: int  # of those who are to train


class Work(NamedTuple):
    """One round's work for an engine. The parts of the view named in `OWN` have a leading axis C, the rest is shared."""

    clients: Ints  # (C,) sorted ids
    view: View
    plans: list[Plan]  # the local steps
    passes: list[Plan]  # the training rows once, for `before` and `after`
    measured: list[Plan]  # the rows on which local models are measured; empty: not this time
    turnout: Turnout
    memory: Tree  # what the codec kept of the clients' earlier updates; leading axis C


class Done(NamedTuple):
    """What an engine returns, in the order of ``Work.clients``."""

    uploads: Upload  # leading axis C
    states: Tree  # leading axis C
    scores: Tree  # sums (C,) over the measured rows at each local model; {} if not measured


class Outcome(NamedTuple):
    """What is known of a finished round. Uploads and measures are the clients' own, before a codec: they tell of the training."""

    server: Server
    work: Work
    done: Done
    measures: dict[str, Tensor]  # see `fedskew.measure.drift`; {} if nobody took part
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
    batch = [fed.planner.batch_size(k, n) for k, n in enumerate(sizes.tolist())]
    return Info(
        index=torch.arange(len(sizes), device=fed.x.device),
        num_examples=torch.as_tensor(sizes).to(fed.x),
        label_counts=torch.as_tensor(counts).to(fed.x),
        batch_size=torch.as_tensor(batch).to(fed.x),
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


def call(fed: Federation, round_: int) -> tuple[Ints, NDArray[np.bool_], Turnout]:
    """The clients that answer when the selection calls (sorted ids), who would answer (K,), and the numbers so far."""
    there = fed.availability.available(fed.info, round_, fed.seed)
    reached = there & fed.system.reached(len(there), round_, fed.seed)
    selected = fed.clients[there]
    if len(selected):
        selected = fed.selection.select(selected, stream(fed.seed, "select", round_))
    answered = selected[reached[selected]]
    return answered, reached, Turnout(int(there.sum()), len(selected), len(answered), stragglers=0)


def open_round(
    fed: Federation, server: Server, states: States, measure_local: bool, cohort: Ints, turnout: Turnout, late: Late
) -> Work:
    """Plan the batches of a cohort; those who are ``late`` get done with a part of theirs."""
    plans = [fed.planner.train(server.round, int(k), fed.partition.rows(k)) for k in cohort]
    for i, k in enumerate(cohort):
        if k in late:
            plans[i] = partial(plans[i], fed.planner.parts(int(k)), late[k])
    return work_of(fed, server, states, cohort, plans, rate(fed, server.round), measure_local, turnout)


def work_of(
    fed: Federation,
    server: Server,
    states: States,
    clients: Ints,
    plans: list[Plan],
    lr: float,
    measured: bool,
    turnout: Turnout,
) -> Work:
    """The work of these clients on these plans, under the server as it is."""
    part = fed.partition
    state, memory = taken_apart(states.get(clients, lambda: fresh(fed, server.x)))
    view = View(
        x=server.x,
        extras=fed.algorithm.broadcast(server),
        state=state,
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
        turnout=turnout,
        memory=memory,
    )


def open_training(
    fed: Federation, server: Server, states: States, measure_local: bool, cohort: Ints, turnout: Turnout
) -> Work:
    """Open the round for those who are to train, of whom some are stragglers."""
    late = fed.system.late(cohort, len(fed.partition), server.round, fed.seed)
    if fed.system.drop_stragglers:
        cohort = cohort[[k not in late for k in cohort]]
    return open_round(fed, server, states, measure_local, cohort, turnout._replace(stragglers=len(late)), late)


def fresh(fed: Federation, x: Tensor) -> Tree:
    """What is kept of a client that takes part for the first time."""
    return together(client_state(fed, x), fed.codec.init(x))


def together(state: Tree, memory: Tree) -> Tree:
    """What is kept of a client: the method's state, beside the codec's memory where it has one."""
    if not memory:
        return state
    return {"algorithm": state, "codec": memory} if state else {"codec": memory}


def taken_apart(kept: Tree) -> tuple[Tree, Tree]:
    """Inverse of `together`."""
    return (kept.get("algorithm", {}), kept["codec"]) if "codec" in kept else (kept, {})


def prepare(
    fed: Federation, engine: Engine, server: Server, states: States, measure_local: bool
) -> tuple[Server, Work, tuple[int, int]]:
    """Open a round and let the method survey the clients that answer, where it does.

    Returns the server and the work then, and the bytes that the survey sent, down and up.
    """
    answered, reached, turnout = call(fed, server.round)
    if not (fed.program.convenes and len(answered)):
        work = open_training(fed, server, states, measure_local, answered, turnout)
        if fed.program.before and len(work.clients):
            before, _ = engine.survey(fed.program, work, fed.x, fed.y)
            work = work._replace(view=work.view._replace(before=before))
        return server, work, (0, 0)
    work = open_round(fed, server, states, False, answered, turnout, {})
    before, answers = engine.survey(fed.program, work, fed.x, fed.y)
    sent = (len(answered) * (model_bytes(fed, server.x) + num_bytes(work.view.extras)), num_bytes(answers))
    state, chosen = fed.algorithm.convene(server, work.view.info, answers)
    server, ids = server._replace(state=state), chosen.cpu().numpy()
    work = open_training(fed, server, states, measure_local, ids[reached[ids]], turnout)
    known = {int(k): i for i, k in enumerate(answered)}
    at = torch.tensor([known.get(int(k), 0) for k in work.clients], dtype=torch.long, device=fed.x.device)
    asked = torch.tensor([int(k) in known for k in work.clients], dtype=torch.bool, device=fed.x.device)
    before = map_leaves(lambda leaf: leaf[at] * asked.view(-1, *[1] * (leaf.dim() - 1)).to(leaf.dtype), before)
    return server, work._replace(view=work.view._replace(before=before)), sent


def transmit(fed: Federation, server: Server, work: Work, uploads: Upload) -> tuple[Upload, Tree, int]:
    """What reaches the server, the codec's memory after it, and the bytes of all messages."""
    rows, draws = uploads.delta, None
    if fed.codec.random:
        streams = [torch_stream(fed.seed, "codec", server.round, int(k)) for k in work.clients]
        draws = torch.stack([torch.rand(rows.shape[1], generator=g, dtype=rows.dtype) for g in streams]).to(rows.device)
    delta, memory, sizes = fed.codec.encode(rows, work.memory, draws, fed.task)
    received = uploads._replace(delta=delta)
    unsent = len(rows) * fed.kept.num_bytes(server.x) if fed.kept else 0
    return received, memory, int(sizes.sum()) - unsent + num_bytes((uploads.extras, uploads.report))


def close_round(fed: Federation, server: Server, work: Work, done: Done) -> Server:
    """Aggregate, let the server optimiser step, and refine the model on the server's rows.

    A round in which nobody took part is only counted.
    """
    if not len(work.clients) and not fed.algorithm.acts_alone:
        return server._replace(round=server.round + 1)
    cohort = Cohort(work.view.info, done.uploads)
    delta, state = fed.algorithm.aggregate(server, cohort)
    if fed.kept:
        delta = fed.kept.without(delta)
    x, opt = fed.server_optimiser.update(-delta, server.opt, server.x)
    if cohort.size:
        x = fed.refinement.refine(server, x, cohort)
    return server._replace(round=server.round + 1, x=x, opt=opt, state=state)


def play_round(fed: Federation, engine: Engine, server: Server, states: States, measure_local: bool = True) -> Outcome:
    """One whole round. Raises `Diverged` before anything is kept if a model, or too many of the updates, are not finite."""
    server, work, (asked_down, asked_up) = prepare(fed, engine, server, states, measure_local)
    done, measures, sent = nothing_done(server), {}, 0
    uploads, memory = done.uploads, done.states
    if len(work.clients):
        done = engine.run(fed.program, work, fed.x, fed.y)
        measures = drift(done.uploads.delta, work.view.info.num_examples)
        check_finite(fed, server, work, done, measures["update_norm"])
        uploads, memory, sent = transmit(fed, server, work, done.uploads)
    after = close_round(fed, server, work, done._replace(uploads=uploads))
    if not bool(after.x.isfinite().all()):
        cause = server_cause(fed, server.round)
        raise Diverged(f"round {after.round}: the global model is no longer finite although all updates are; {cause}")
    states.put(work.clients, together(done.states, memory))
    return Outcome(
        server=after,
        work=work,
        done=done,
        measures=measures,
        steps=np.asarray([len(plan.index) for plan in work.plans], dtype=np.int64),
        bytes_down=asked_down + received(fed, work),
        bytes_up=asked_up + sent,
    )


def nothing_done(server: Server) -> Done:
    """What an engine would return of nobody."""
    return Done(Upload(server.x.new_empty(0, *server.x.shape), {}, {}), {}, {})


def received(fed: Federation, work: Work) -> int:
    """Bytes that those who train receive, in vain or not; those who were surveyed have the model already."""
    model = 0 if fed.program.convenes else model_bytes(fed, work.view.x)
    dropped = work.turnout.stragglers if fed.system.drop_stragglers else 0
    return (len(work.clients) + dropped) * (model + num_bytes(work.view.extras))


def model_bytes(fed: Federation, x: Tensor) -> int:
    """What a client receives of the model."""
    return num_bytes({"x": x}) - (fed.kept.num_bytes(x) if fed.kept else 0)


def check_finite(fed: Federation, server: Server, work: Work, done: Done, norms: Tensor) -> None:
    """Raise `Diverged` naming the round, the client and the most likely cause, if more is broken than the method bears."""
    bad = ~norms.isfinite()
    for sums in done.scores.values():
        bad = bad | ~sums.isfinite()
    what = "the loss or the update"
    if fed.program.personal and not bool(bad.any()):
        what = "its own model"
        for _, leaf in leaves(done.states):
            bad = bad | ~leaf.reshape(len(bad), -1).isfinite().all(1)
    if not bool(bad.any()) or int((~bad).sum()) >= fed.algorithm.fewest(len(bad)):
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
    cause = fed.algorithm.hazard(rate(fed, round_)) or "the step of the server optimiser; lower its lr, or its momentum"
    if fed.refinement.needs_data:
        cause += "; or the steps of the refinement; lower refine.lr"
    return f"most likely cause: {cause}"


def rate(fed: Federation, round_: int) -> float:
    """The client learning rate of a round."""
    return float(fed.solver.lr * fed.solver.lr_decay**round_)

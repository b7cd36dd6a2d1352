"""The one server round: open it (who, with what view, on which batches), let an engine work, close it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.algorithm import PUBLIC
from fedskew.core.contract import Codec
from fedskew.core.errors import Diverged
from fedskew.core.records import OWN, Cohort, Plan, Server, Upload, View
from fedskew.core.seeding import stream, torch_stream
from fedskew.core.spans import span
from fedskew.core.task import Task
from fedskew.core.trees import Tree, concatenate, map_leaves, num_bytes, pick
from fedskew.core.vectors import Spread, all_finite, spread
from fedskew.loop.failures import check_enough, check_finite, server_cause
from fedskew.loop.federation import Federation
from fedskew.loop.local import Program
from fedskew.loop.plan import one_pass
from fedskew.loop.sharing import PART, Shared
from fedskew.loop.system import Late, partial
from fedskew.measure.drift import of_spread
from fedskew.skew.partition import Ints
from fedskew.slots import Uncompressed
from fedskew.slots.codecs import encode


class States(Protocol):
    """Where client states live between rounds."""

    def get(self, clients: Ints, fresh: Callable[[], Tree]) -> Tree: ...

    def put(self, clients: Ints, states: Tree) -> None: ...


class Turnout(NamedTuple):
    """How many clients there are at each stage of a round, up to those who train."""

    available: int
    selected: int  # of the available
    answered: int  # of the selected
    stragglers: int  # of those who are to train


class Work(NamedTuple):
    """One round's work for an engine. The parts of the view named in `OWN` have a leading axis C, the rest is shared."""

    round: int  # rounds finished before it
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
    heard: Ints | None = None  # positions in the cohort of the clients that these are of, ascending; None: all of them


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


T = TypeVar("T")


def members_of(work: Work, at: Ints) -> Work:
    """The work of the clients at these positions of the cohort."""
    return work._replace(
        clients=work.clients[at],
        view=work.view._replace(**{part: pick(getattr(work.view, part), at) for part in OWN}),
        plans=[work.plans[i] for i in at],
        passes=[work.passes[i] for i in at],
        measured=[work.measured[i] for i in at] if work.measured else [],
        memory=pick(work.memory, at),
    )


def by_architecture(programs: tuple[Program, ...], work: Work, act: Callable[[Program, Work], T]) -> T:
    """What ``act`` gives (leading axis C) with each architecture's program and clients, back in the cohort's order."""
    if len(programs) == 1:
        return act(programs[0], work)
    own = work.clients % len(programs)
    groups = [np.flatnonzero(own == g) for g in range(len(programs))]
    parts = [act(p, members_of(work, at)) for p, at in zip(programs, groups, strict=True) if len(at)]
    back = torch.as_tensor(np.argsort(np.concatenate(groups)), device=work.view.x.device)
    joined: T = pick(concatenate(parts), back)
    return joined


def train(fed: Federation, engine: Engine, work: Work) -> Done:
    with span("local training"):
        return by_architecture(fed.programs, work, lambda p, part: engine.run(p, part, fed.x, fed.targets(part.round)))


def survey(fed: Federation, engine: Engine, work: Work) -> tuple[Tree, Tree]:
    with span("survey of the clients"):
        return by_architecture(
            fed.programs, work, lambda p, part: engine.survey(p, part, fed.x, fed.targets(part.round))
        )


def start(fed: Federation, x0: Tensor) -> Server:
    """The server before round 0."""
    server = Server(
        round=0,
        x=x0,
        opt=fed.server_optimiser.init(x0),
        state={},
    )
    return server._replace(state=fed.algorithm.server_init(fed.view(server)))


def call(fed: Federation, round_: int) -> tuple[Ints, NDArray[np.bool_], Turnout]:
    """The clients that answer when the selection calls (sorted ids), who would answer (K,), and the numbers so far."""
    there = fed.availability.available(fed.info, round_, fed.seed)
    reached = there & fed.system.reached(len(there), round_, fed.seed)
    selected = fed.clients[there]
    if len(selected):
        selected = fed.selection.select(selected, stream(fed.server_seed, "select", round_))
    answered = selected[reached[selected]]
    return answered, reached, Turnout(int(there.sum()), len(selected), len(answered), stragglers=0)


def open_round(
    fed: Federation, server: Server, states: States, measure_local: bool, cohort: Ints, turnout: Turnout, late: Late
) -> Work:
    """Make the views of a cohort and plan its batches; those who are ``late`` get done with a part of theirs."""
    plans = [fed.planner.train(server.round, int(k), fed.partition.rows(k)) for k in cohort]
    for i, k in enumerate(cohort):
        if k in late:
            plans[i] = partial(plans[i], fed.planner.parts(int(k)), late[k])
    work = work_of(fed, server, states, cohort, plans, fed.rate(server.round), measure_local)
    return work._replace(turnout=turnout)


def work_of(
    fed: Federation, server: Server, states: States, clients: Ints, plans: list[Plan], lr: float, measured: bool
) -> Work:
    """The work of these clients on these plans, under the server as it is; whatever may befall them, all are there."""
    part = fed.partition
    with span("client states"):
        state, memory = taken_apart(states.get(clients, lambda: fresh(fed, server.x)))
    view = View(
        x=server.x,
        extras=fed.algorithm.broadcast(fed.view(server)),
        state=state,
        info=pick(fed.known(server.round), torch.as_tensor(clients, device=fed.x.device)),
        before={},
        lr=torch.tensor(lr, dtype=server.x.dtype, device=server.x.device),
        steps=torch.tensor([len(plan.index) for plan in plans]).to(server.x),
    )
    return Work(
        round=server.round,
        clients=clients,
        view=view,
        plans=plans,
        passes=[one_pass(part.rows(k)) for k in clients],
        measured=[one_pass(part.measured_rows(k)) for k in clients] if measured else [],
        turnout=Turnout(len(clients), len(clients), len(clients), stragglers=0),
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
    state, sent = fed.algorithm.client_init(x), x
    if fed.kept:
        state, sent = state | {PART: fed.kept.of_model(x)}, fed.kept.sent(x)
    return together(state, fed.codec.init(sent))


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

    Returns the server and the work then, and the bytes so far: all that goes down, to dropped stragglers too, and up in answers.
    """
    answered, reached, turnout = call(fed, server.round)
    if not (fed.program.convenes and len(answered)):
        work = open_training(fed, server, states, measure_local, answered, turnout)
        if fed.program.before and len(work.clients):
            before, _ = survey(fed, engine, work)
            work = work._replace(view=work.view._replace(before=before))
        return server, work, (bytes_down(fed, work.view, len(answered), len(answered)), 0)
    work = open_round(fed, server, states, False, answered, turnout, {})
    before, answers = survey(fed, engine, work)
    down = bytes_down(fed, work.view, len(answered), len(answered))
    state, chosen = fed.algorithm.convene(fed.view(server), work.view.info, answers)
    server, ids = server._replace(state=state), chosen.cpu().numpy()
    called = ids[reached[ids]]
    work = open_training(fed, server, states, measure_local, called, turnout)
    down += bytes_down(fed, work.view, int((~np.isin(called, answered)).sum()), len(called))
    known = {int(k): i for i, k in enumerate(answered)}
    at = torch.tensor([known.get(int(k), 0) for k in work.clients], dtype=torch.long, device=fed.x.device)
    asked = torch.tensor([int(k) in known for k in work.clients], dtype=torch.bool, device=fed.x.device)
    before = map_leaves(lambda leaf: leaf[at] * asked.view(-1, *[1] * (leaf.dim() - 1)).to(leaf.dtype), before)
    return server, work._replace(view=work.view._replace(before=before)), (down, num_bytes(answers))


def bytes_down(fed: Federation, view: View, models: int, extras: int) -> int:
    """Of so many models, or what is shared of them, and so many of the method's additions."""
    model = num_bytes({"x": fed.kept.sent(view.x) if fed.kept else view.x})
    return models * model + extras * num_bytes(sent_extras(view))


def sent_extras(view: View) -> Tree:
    """The method's additions to the model, without what every client has anyway."""
    return {key: value for key, value in view.extras.items() if key != PUBLIC}


class Sent(NamedTuple):
    """What a cohort sends; leading axis C."""

    uploads: Upload  # as the server decodes them
    coded: Tree  # what the messages of the updates hold, as ``codec`` packs them
    codec: Codec
    states: Tree  # what is kept of the clients after it, see `together`
    num_bytes: int  # of all messages


def transmit(fed: Federation, work: Work, done: Done) -> Sent:
    """Encode what the clients share of their updates, and decode it as the server does."""
    uploads, states = done.uploads, done.states
    rows = fed.kept.sent(uploads.delta) if fed.kept else uploads.delta
    # where clients share nothing, there is nothing to encode
    codec = fed.codec if rows.shape[1] else Uncompressed()
    encoded = encode(codec, rows, work.memory, codec_draws(fed, codec, work, rows), shared_model(fed))
    received = fed.kept.received(encoded.received) if fed.kept else encoded.received
    if encoded.received is not rows and (factors := fed.contract.codec_loss):
        lost = uploads.delta - received
        states = {**states, **{name: states[name] + factor * lost for name, factor in factors.items()}}
    size = len(rows) * encoded.size + num_bytes((uploads.extras, uploads.report))
    return Sent(uploads._replace(delta=received), encoded.coded, codec, together(states, encoded.memory), size)


def codec_draws(fed: Federation, codec: Codec, work: Work, rows: Tensor) -> Tensor | None:
    """The codec's random numbers for these updates (C, P), if it takes some."""
    if not codec.random:
        return None
    streams = [torch_stream(fed.seed, "codec", work.round, int(k)) for k in work.clients]
    return torch.stack([torch.rand(rows.shape[1], generator=g, dtype=rows.dtype) for g in streams]).to(rows.device)


def shared_model(fed: Federation) -> Task | Shared:
    """What the numbers of an update on its way belong to."""
    return Shared(fed.task, fed.kept) if fed.kept else fed.task


def close_round(fed: Federation, server: Server, work: Work, done: Done, seen: Spread | None = None) -> Server:
    """Aggregate, let the server optimiser step, and refine the model on the server's rows.

    ``seen`` is what a look at the updates told. A round in which nobody took part is only counted.
    """
    if not len(work.clients) and not fed.contract.steps_alone:
        return server._replace(round=server.round + 1)
    cohort, view = Cohort(work.view.info, done.uploads, seen), fed.view(server)
    delta, state = fed.algorithm.aggregate(view, cohort)
    if fed.kept:
        delta = fed.kept.without(delta)
    x, opt = fed.server_optimiser.update(-delta, server.opt, server.x)
    if cohort.size:
        x = fed.refinement.refine(view, x, cohort)
    return server._replace(round=server.round + 1, x=x, opt=opt, state=state)


def play_round(fed: Federation, engine: Engine, server: Server, states: States, measure_local: bool = True) -> Outcome:
    """One whole round.

    Raises `Diverged` before anything is kept if a model, or too many of the updates, are not finite; `TooFew` if there are fewer
    updates than the method needs.
    """
    with span("planning the round"):
        server, work, (down, answers) = prepare(fed, engine, server, states, measure_local)
    nobody = Upload(server.x.new_empty(0, *server.x.shape), {}, {})
    done, seen, measures = Done(nobody, {}, {}), None, {}
    sent = Sent(nobody, {}, fed.codec, {}, 0)
    if len(work.clients):
        done = train(fed, engine, work)
        work = work if done.heard is None else members_of(work, done.heard)
        check_enough(fed, server.round, len(work.clients), work.turnout.selected)
        with span("measures"):
            n = work.view.info.num_examples
            seen = spread(n / n.sum(), done.uploads.delta)
            measures = of_spread(seen)
            check_finite(fed, server, work, done, measures["update_norm"])
        with span("codec"):
            sent = transmit(fed, work, done)
    with span("aggregation"):
        after = close_round(fed, server, work, done._replace(uploads=sent.uploads), seen)
    if not all_finite(after.x):
        cause = server_cause(fed, server.round)
        raise Diverged(f"round {after.round}: the global model is no longer finite although all updates are; {cause}")
    with span("client states"):
        states.put(work.clients, sent.states)
    return Outcome(
        server=after,
        work=work,
        done=done,
        measures=measures,
        steps=np.asarray([len(plan.index) for plan in work.plans], dtype=np.int64),
        bytes_down=down,
        bytes_up=answers + sent.num_bytes,
    )

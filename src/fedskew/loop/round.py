"""One round: select and prepare the clients, let them train, transmit their updates, and make the new model."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.algorithm import PUBLIC
from fedskew.core.contract import Codec
from fedskew.core.errors import Diverged
from fedskew.core.machine import span
from fedskew.core.records import BatchPlan, Cohort, Server, Upload, View
from fedskew.core.seeding import stream, torch_stream
from fedskew.core.task import Task
from fedskew.core.trees import Dispersion, Tree, all_finite, dispersion, map_leaves, num_bytes, pick
from fedskew.loop.batches import batch_shares
from fedskew.loop.federation import Federation, numbers
from fedskew.loop.limits import check_enough, check_finite, server_cause
from fedskew.loop.plan import Late, Planner, one_pass, partial
from fedskew.loop.sharing import PART, Shared
from fedskew.loop.work import Done, Engine, Outcome, States, Turnout, Work, by_group, members_of
from fedskew.measure.updates import drift_measures
from fedskew.skew.partition import Ints
from fedskew.slots import Uncompressed
from fedskew.slots.codecs import encode


def fresh(fed: Federation, x: Tensor) -> Tree:
    """Return the state of a client that takes part for the first time."""
    kept = {PART: fed.own_part.of_model(x)} if fed.own_part else {}
    return together(fed.algorithm.client_init(x) | kept, fed.codec.init(fed.sent(x)))


def together(state: Tree, memory: Tree) -> Tree:
    """Combine a client's states of the method and of the codec. If the codec has no state, it is the method's alone."""
    if not memory:
        return state
    return {"algorithm": state, "codec": memory} if state else {"codec": memory}


def taken_apart(both: Tree) -> tuple[Tree, Tree]:
    """Split a client's state into the method's and the codec's: the inverse of `together`."""
    return (both.get("algorithm", {}), both["codec"]) if "codec" in both else (both, {})


class Sent(NamedTuple):
    """The messages of a cohort, with leading axis C."""

    uploads: Upload  # as the server decodes them
    coded: Tree  # the contents of the messages, before ``codec`` packs them to bytes
    codec: Codec
    states: Tree  # the clients' new states, see `together`
    num_bytes: int  # size of all messages together


def transmit(fed: Federation, work: Work, done: Done) -> Sent:
    """Encode the shared part of the updates, and decode it as the server does."""
    uploads, states = done.uploads, done.states
    rows = fed.sent(uploads.delta)
    # if clients share nothing, there is nothing to encode
    codec = fed.codec if rows.shape[1] else Uncompressed()
    encoded = encode(codec, rows, work.memory, codec_draws(fed, codec, work, rows), shared_model(fed))
    received = fed.own_part.received(encoded.received) if fed.own_part else encoded.received
    if encoded.received is not rows and (factors := fed.contract.codec_loss):
        lost = uploads.delta - received
        states = {**states, **{name: states[name] + factor * lost for name, factor in factors.items()}}
    size = len(rows) * encoded.size + num_bytes((uploads.extras, uploads.report))
    uploads = uploads._replace(delta=received, notes={})
    return Sent(uploads, encoded.coded, codec, together(states, encoded.memory), size)


def codec_draws(fed: Federation, codec: Codec, work: Work, rows: Tensor) -> Tensor | None:
    """Draw uniform random numbers for the codec, with the updates' shape (C, P); None if the codec needs none."""
    if not codec.random:
        return None
    streams = [torch_stream(fed.seed, "codec", work.round, int(k)) for k in work.clients]
    return torch.stack([torch.rand(rows.shape[1], generator=g, dtype=rows.dtype) for g in streams]).to(rows.device)


def shared_model(fed: Federation) -> Task | Shared:
    """Return the model whose parameters an update holds: the whole model, or its shared part."""
    return Shared(fed.task, fed.own_part) if fed.own_part else fed.task


def call(fed: Federation, round_: int) -> tuple[Ints, NDArray[np.bool_], Turnout]:
    """Select clients for a round.

    Returns the ids of the selected clients that answer, ascending; for each of the K clients whether it would answer; the turnout.
    """
    available = fed.availability.available(fed.info, round_, fed.seed)
    reached = available & fed.system.reached(len(available), round_, fed.seed)
    selected = fed.clients[available]
    if len(selected):
        selected = fed.selection.select(selected, stream(fed.server_seed, "select", round_))
    answered = selected[reached[selected]]
    return answered, reached, Turnout(int(available.sum()), len(selected), len(answered), stragglers=0)


def work_of_round(
    fed: Federation,
    server: Server,
    states: States,
    measured: bool,
    cohort: Ints,
    late: Late,
    planner: Planner | None = None,
) -> Work:
    """Make the views of a cohort and plan its batches, with the ``planner`` of this round if it has one.

    Clients that are ``late`` do only a part of their plan.
    """
    plans = [(planner or fed.planner).train(server.round, int(k), fed.partition.rows(k)) for k in cohort]
    for i, k in enumerate(cohort):
        if k in late:
            plans[i] = partial(plans[i], fed.planner.parts(int(k)), late[k])
    work = work_of(fed, server, states, cohort, plans, fed.rate(server.round), measured)
    if planner:
        sizes = numbers(fed, planner.batch_sizes(fed.partition.sizes)[cohort])
        work = work._replace(view=work.view._replace(info=work.view.info._replace(batch_size=sizes)))
    return work


def work_of(
    fed: Federation, server: Server, states: States, clients: Ints, plans: list[BatchPlan], lr: float, measured: bool
) -> Work:
    """Make the work of these clients with these plans, from the current model. It ignores dropouts and stragglers."""
    with span("client states"):
        both = states.get(clients, lambda: fresh(fed, server.x))
    return work_on(fed, broadcast(fed, server), both, clients, plans, lr, measured)


class Broadcast(NamedTuple):
    """What the server sends to every client of a round."""

    round: int  # number of finished rounds
    x: Tensor  # (P,) the global model
    extras: Tree  # of the method


def broadcast(fed: Federation, server: Server) -> Broadcast:
    return Broadcast(server.round, server.x, fed.algorithm.broadcast(fed.view(server)))


def work_on(
    fed: Federation, sent: Broadcast, both: Tree, clients: Ints, plans: list[BatchPlan], lr: float, measured: bool
) -> Work:
    """Make the work of clients that received this broadcast. ``both`` has their states, as `together` combines them."""
    part, whole, (state, memory) = fed.partition, fed.task.joint, taken_apart(both)
    rates = fed.rates_in(sent.round)
    view = View(
        x=sent.x,
        extras=sent.extras,
        state=state,
        info=pick(fed.known(sent.round), torch.as_tensor(clients, device=fed.x.device)),
        before={},
        lr=torch.tensor(lr, dtype=sent.x.dtype, device=sent.x.device),
        steps=torch.tensor([len(plan.index) for plan in plans]).to(sent.x),
    )
    return Work(
        round=sent.round,
        clients=clients,
        view=view,
        plans=plans,
        passes=[one_pass(part.rows(k), whole) for k in clients],
        measured=[one_pass(part.measured_rows(k), whole) for k in clients] if measured else [],
        turnout=Turnout(len(clients), len(clients), len(clients), stragglers=0),
        memory=memory,
        rates=None if rates is None else rates[clients],
    )


def train_work(
    fed: Federation, engine: Engine, server: Server, states: States, measure_local: bool, cohort: Ints, turnout: Turnout
) -> tuple[Work, int]:
    """Draw the stragglers of a cohort, drop them if the system says so, and make the work of the others.

    Returns the work, and the bytes of the answers to the survey for batch sizes.
    """
    late = fed.system.late(cohort, len(fed.partition), server.round, fed.seed)
    if fed.system.drop_stragglers:
        cohort = cohort[[k not in late for k in cohort]]
    work = work_of_round(fed, server, states, measure_local, cohort, late)
    shares, answers = batch_shares(fed, engine, work)
    if shares:
        work = work_of_round(fed, server, states, measure_local, cohort, late, fed.planner.varied(shares))
    return work._replace(turnout=turnout._replace(stragglers=len(late))), answers


def survey(fed: Federation, engine: Engine, work: Work) -> tuple[Tree, Tree]:
    with span("survey of the clients"):
        return by_group(fed.programs, work, lambda p, part: engine.survey(p, part, fed.x, fed.targets(part.round)))


def prepare(
    fed: Federation, engine: Engine, server: Server, states: States, measure_local: bool
) -> tuple[Server, Work, tuple[int, int]]:
    """Prepare a round. If the method has a survey, it surveys the clients that answer, and then chooses some of them.

    Returns the server after the survey, the work, and the numbers of bytes down (also to dropped stragglers) and up (answers).
    """
    answered, reached, turnout = call(fed, server.round)
    if not (fed.program.convenes and len(answered)):
        work, up = train_work(fed, engine, server, states, measure_local, answered, turnout)
        if fed.program.before and len(work.clients):
            before, _ = survey(fed, engine, work)
            work = work._replace(view=work.view._replace(before=before))
        return server, work, (bytes_down(fed, work.view, len(answered), len(answered)) + up, up)
    work = work_of_round(fed, server, states, False, answered, {})
    before, answers = survey(fed, engine, work)
    down = bytes_down(fed, work.view, len(answered), len(answered))
    state, convened = fed.algorithm.convene(fed.view(server), work.view.info, answers)
    server, ids = server._replace(state=state), convened.cpu().numpy()
    called = ids[reached[ids]]
    work, up = train_work(fed, engine, server, states, measure_local, called, turnout)
    down += bytes_down(fed, work.view, int((~np.isin(called, answered)).sum()), len(called)) + up
    positions = {int(k): i for i, k in enumerate(answered)}
    at = torch.tensor([positions.get(int(k), 0) for k in work.clients], dtype=torch.long, device=fed.x.device)
    surveyed = torch.tensor([int(k) in positions for k in work.clients], dtype=torch.bool, device=fed.x.device)
    before = map_leaves(lambda leaf: leaf[at] * surveyed.view(-1, *[1] * (leaf.dim() - 1)).to(leaf.dtype), before)
    return server, work._replace(view=work.view._replace(before=before)), (down, up + num_bytes(answers))


def bytes_down(fed: Federation, view: View, models: int, extras: int) -> int:
    """Return the bytes for sending the model (or its shared part) ``models`` times, and the method's extras ``extras`` times."""
    return models * num_bytes({"x": fed.sent(view.x)}) + extras * num_bytes(sent_extras(view))


def sent_extras(view: View) -> Tree:
    """Return the extras that a method broadcasts, without those that every client has already."""
    return {key: value for key, value in view.extras.items() if key != PUBLIC}


def start(fed: Federation, x0: Tensor) -> Server:
    """Return the server before the first round."""
    server = Server(round=0, x=x0, opt=fed.server_optimiser.init(x0), state={})
    return server._replace(state=fed.algorithm.server_init(fed.view(server)))


def train(fed: Federation, engine: Engine, work: Work) -> Done:
    with span("local training"):
        return by_group(fed.programs, work, lambda p, part: engine.run(p, part, fed.x, fed.targets(part.round)))


def close_round(fed: Federation, server: Server, work: Work, done: Done, seen: Dispersion | None = None) -> Server:
    """Aggregate the updates, take the server optimiser's step, and refine the model on the server's rows; return the new server.

    ``seen`` are the moments of the updates, if known. In a round without clients only the round number changes, unless the method
    steps without clients.
    """
    if not len(work.clients) and not fed.contract.steps_alone:
        return server._replace(round=server.round + 1)
    cohort, view = Cohort(work.view.info, done.uploads, seen), fed.view(server)
    delta, state = fed.algorithm.aggregate(view, cohort)
    if fed.own_part:
        delta = fed.own_part.without(delta)
    x, opt = fed.server_optimiser.update(-delta, server.opt, server.x)
    if cohort.size:
        x = fed.refinement.refine(view, x, cohort)
    return server._replace(round=server.round + 1, x=x, opt=opt, state=state)


def decisions(
    fed: Federation, server: Server, after: Server, work: Work, done: Done, uploads: Upload
) -> dict[str, Tensor]:
    """Return the values that method and system declare in ``decides`` and that they have in this round.

    The server received ``uploads``, and is ``after`` at the end of the round.
    """
    keys = {**fed.system.decides, **type(fed.algorithm).decides}
    if not keys or not len(work.clients):
        return {}
    view = fed.view(server)._replace(after=after.state)
    of_server = fed.algorithm.decided(view, Cohort(work.view.info, uploads))
    values = {"batch_size": work.view.info.batch_size, **uploads.report, **done.uploads.notes, **of_server}
    return {key: values[name] for key in keys if (name := key.rpartition("/")[2]) in values}


def play_round(
    fed: Federation,
    engine: Engine,
    server: Server,
    states: States,
    measure_local: bool = True,
    received: Callable[[Work, Done], Done] = lambda work, done: done,
) -> Outcome:
    """Play one round. ``received`` returns the results that reach the server.

    Raises `Diverged` if the model, or too many of the updates, are not finite, and `TooFew` if there are fewer updates than the
    method needs. Client states are then unchanged.
    """
    with span("planning the round"):
        server, work, (down, answers) = prepare(fed, engine, server, states, measure_local)
    no_uploads = Upload(server.x.new_empty(0, *server.x.shape), {}, {})
    done, seen, measures = Done(no_uploads, {}, {}), None, {}
    sent = Sent(no_uploads, {}, fed.codec, {}, 0)
    if len(work.clients):
        done = received(work, train(fed, engine, work))
        work = work if done.received is None else members_of(work, done.received)
        check_enough(fed, server.round, len(work.clients), work.turnout.selected)
        with span("measures"):
            n = work.view.info.num_examples
            seen = dispersion(n / n.sum(), done.uploads.delta)
            measures = drift_measures(seen)
            check_finite(fed, server, work, done, measures["update_norm"])
        with span("codec"):
            sent = transmit(fed, work, done)
    with span("aggregation"):
        after = close_round(fed, server, work, done._replace(uploads=sent.uploads), seen)
        decided = decisions(fed, server, after, work, done, sent.uploads)
    if not all_finite(after.x):
        cause = server_cause(fed, server.round)
        raise Diverged(
            f"round {after.round}: the global model is no longer finite, although all updates are finite; {cause}"
        )
    with span("client states"):
        states.put(work.clients, sent.states)
    return Outcome(
        server=after,
        work=work,
        done=done,
        measures=measures,
        decisions=decided,
        steps=np.asarray([len(plan.index) for plan in work.plans], dtype=np.int64),
        bytes_down=down,
        bytes_up=answers + sent.num_bytes + (done.rejected or 0) * sent.num_bytes // max(len(work.clients), 1),
    )

"""Prepare a round: select clients, let the method survey them, make their views, and plan their batches."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.algorithm import PUBLIC
from fedskew.core.machine import span
from fedskew.core.records import Plan, Server, View
from fedskew.core.seeding import stream
from fedskew.core.task import joint
from fedskew.core.trees import Tree, map_leaves, num_bytes, pick
from fedskew.loop.federation import Federation
from fedskew.loop.plan import one_pass
from fedskew.loop.system import Late, partial
from fedskew.loop.transmit import fresh, taken_apart
from fedskew.loop.work import Engine, States, Turnout, Work, by_architecture
from fedskew.skew.partition import Ints


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
    fed: Federation, server: Server, states: States, measure_local: bool, cohort: Ints, turnout: Turnout, late: Late
) -> Work:
    """Make the views of a cohort and plan its batches. Clients that are ``late`` do only a part of their plan."""
    plans = [fed.planner.train(server.round, int(k), fed.partition.rows(k)) for k in cohort]
    for i, k in enumerate(cohort):
        if k in late:
            plans[i] = partial(plans[i], fed.planner.parts(int(k)), late[k])
    work = work_of(fed, server, states, cohort, plans, fed.rate(server.round), measure_local)
    return work._replace(turnout=turnout)


def work_of(
    fed: Federation, server: Server, states: States, clients: Ints, plans: list[Plan], lr: float, measured: bool
) -> Work:
    """Make the work of these clients with these plans, from the current model. It ignores dropouts and stragglers."""
    with span("client states"):
        kept = states.get(clients, lambda: fresh(fed, server.x))
    extras = fed.algorithm.broadcast(fed.view(server))
    return work_on(fed, server.round, server.x, extras, kept, clients, plans, lr, measured)


def work_on(
    fed: Federation,
    round_: int,
    x: Tensor,
    extras: Tree,
    kept: Tree,
    clients: Ints,
    plans: list[Plan],
    lr: float,
    measured: bool,
) -> Work:
    """Make the work of clients that received the model ``x`` (P,) and the broadcast ``extras``, and have the states ``kept``."""
    part, whole, (state, memory) = fed.partition, joint(fed.task), taken_apart(kept)
    view = View(
        x=x,
        extras=extras,
        state=state,
        info=pick(fed.known(round_), torch.as_tensor(clients, device=fed.x.device)),
        before={},
        lr=torch.tensor(lr, dtype=x.dtype, device=x.device),
        steps=torch.tensor([len(plan.index) for plan in plans]).to(x),
    )
    return Work(
        round=round_,
        clients=clients,
        view=view,
        plans=plans,
        passes=[one_pass(part.rows(k), whole) for k in clients],
        measured=[one_pass(part.measured_rows(k), whole) for k in clients] if measured else [],
        turnout=Turnout(len(clients), len(clients), len(clients), stragglers=0),
        memory=memory,
    )


def train_work(
    fed: Federation, server: Server, states: States, measure_local: bool, cohort: Ints, turnout: Turnout
) -> Work:
    """Draw the stragglers of a cohort, drop them if the system says so, and make the work of the others."""
    late = fed.system.late(cohort, len(fed.partition), server.round, fed.seed)
    if fed.system.drop_stragglers:
        cohort = cohort[[k not in late for k in cohort]]
    return work_of_round(fed, server, states, measure_local, cohort, turnout._replace(stragglers=len(late)), late)


def survey(fed: Federation, engine: Engine, work: Work) -> tuple[Tree, Tree]:
    with span("survey of the clients"):
        return by_architecture(
            fed.programs, work, lambda p, part: engine.survey(p, part, fed.x, fed.targets(part.round))
        )


def prepare(
    fed: Federation, engine: Engine, server: Server, states: States, measure_local: bool
) -> tuple[Server, Work, tuple[int, int]]:
    """Prepare a round. If the method has a survey, it surveys the clients that answer, and then chooses some of them.

    Returns the server after the survey, the work, and the numbers of bytes down (also to dropped stragglers) and up (answers).
    """
    answered, reached, turnout = call(fed, server.round)
    if not (fed.program.convenes and len(answered)):
        work = train_work(fed, server, states, measure_local, answered, turnout)
        if fed.program.before and len(work.clients):
            before, _ = survey(fed, engine, work)
            work = work._replace(view=work.view._replace(before=before))
        return server, work, (bytes_down(fed, work.view, len(answered), len(answered)), 0)
    work = work_of_round(fed, server, states, False, answered, turnout, {})
    before, answers = survey(fed, engine, work)
    down = bytes_down(fed, work.view, len(answered), len(answered))
    state, chosen = fed.algorithm.convene(fed.view(server), work.view.info, answers)
    server, ids = server._replace(state=state), chosen.cpu().numpy()
    called = ids[reached[ids]]
    work = train_work(fed, server, states, measure_local, called, turnout)
    down += bytes_down(fed, work.view, int((~np.isin(called, answered)).sum()), len(called))
    known = {int(k): i for i, k in enumerate(answered)}
    at = torch.tensor([known.get(int(k), 0) for k in work.clients], dtype=torch.long, device=fed.x.device)
    surveyed = torch.tensor([int(k) in known for k in work.clients], dtype=torch.bool, device=fed.x.device)
    before = map_leaves(lambda leaf: leaf[at] * surveyed.view(-1, *[1] * (leaf.dim() - 1)).to(leaf.dtype), before)
    return server, work._replace(view=work.view._replace(before=before)), (down, num_bytes(answers))


def bytes_down(fed: Federation, view: View, models: int, extras: int) -> int:
    """Return the bytes for sending the model (or its shared part) ``models`` times, and the method's extras ``extras`` times."""
    model = num_bytes({"x": fed.kept.sent(view.x) if fed.kept else view.x})
    return models * model + extras * num_bytes(sent_extras(view))


def sent_extras(view: View) -> Tree:
    """Return the extras that a method broadcasts, without those that every client has already."""
    return {key: value for key, value in view.extras.items() if key != PUBLIC}

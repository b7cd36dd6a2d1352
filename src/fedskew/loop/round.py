"""One round: prepare it, let an engine train the cohort, then transmit and aggregate the updates."""

import numpy as np
from torch import Tensor

from fedskew.core.errors import Diverged
from fedskew.core.machine import span
from fedskew.core.records import Cohort, Server, Upload
from fedskew.core.trees import Dispersion, all_finite, dispersion
from fedskew.loop.federation import Federation
from fedskew.loop.limits import check_enough, check_finite, server_cause
from fedskew.loop.prepare import prepare
from fedskew.loop.transmit import Sent, transmit
from fedskew.loop.work import Done, Engine, Outcome, States, Work, by_architecture, members_of
from fedskew.measure.updates import drift_measures


def start(fed: Federation, x0: Tensor) -> Server:
    """Return the server before the first round."""
    server = Server(
        round=0,
        x=x0,
        opt=fed.server_optimiser.init(x0),
        state={},
    )
    return server._replace(state=fed.algorithm.server_init(fed.view(server)))


def train(fed: Federation, engine: Engine, work: Work) -> Done:
    with span("local training"):
        return by_architecture(fed.programs, work, lambda p, part: engine.run(p, part, fed.x, fed.targets(part.round)))


def close_round(fed: Federation, server: Server, work: Work, done: Done, seen: Dispersion | None = None) -> Server:
    """Aggregate the updates, take the server optimiser's step, and refine the model on the server's rows; return the new server.

    ``seen`` are the moments of the updates, if known. In a round without clients only the round number changes, unless the method
    steps without clients.
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
    """Play one round.

    Raises `Diverged` if the model, or too many of the updates, are not finite, and `TooFew` if there are fewer updates than the
    method needs. Client states are then unchanged.
    """
    with span("planning the round"):
        server, work, (down, answers) = prepare(fed, engine, server, states, measure_local)
    no_uploads = Upload(server.x.new_empty(0, *server.x.shape), {}, {})
    done, seen, measures = Done(no_uploads, {}, {}), None, {}
    sent = Sent(no_uploads, {}, fed.codec, {}, 0)
    if len(work.clients):
        done = train(fed, engine, work)
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
        steps=np.asarray([len(plan.index) for plan in work.plans], dtype=np.int64),
        bytes_down=down,
        bytes_up=answers + sent.num_bytes,
    )

"""Scores of personal models, and of models that clients adapt who took no part in training."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm
from fedskew.core.contract import Solver
from fedskew.core.records import BatchPlan, Carry, Server, Upload, View
from fedskew.core.task import Task, pooled_primary
from fedskew.core.trees import Tree, stack
from fedskew.loop.evaluate import client_means, evaluate_clients, mean_of, stacked_means
from fedskew.loop.federation import Federation, PersonalTuning
from fedskew.loop.plan import no_steps
from fedskew.loop.round import broadcast, fresh, survey, work_of, work_on
from fedskew.loop.work import Done, Engine, Program, States, Work, by_group, program
from fedskew.skew.partition import Ints, Partition

CLIENTS = 128
"""Number of clients that are measured at a time, each with its own model."""


def measures_personal(fed: Federation) -> bool:
    """True if clients have personal models that differ from the global one."""
    return fed.program.personal is not None or fed.tuning is not None


def evaluate_personal(
    fed: Federation, engine: Engine, server: Server, states: States, clients: Ints
) -> dict[str, Tensor]:
    """Return mean scores (clients,) of each client's personal model on its measured rows; NaN for a client without such rows.

    A client that has never taken part gets a new state. Tuning does not change stored states.
    """
    parts = [
        scores_of(fed, engine, server, states, clients[lo : lo + CLIENTS]) for lo in range(0, len(clients), CLIENTS)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def scores_of(fed: Federation, engine: Engine, server: Server, states: States, clients: Ints) -> dict[str, Tensor]:
    """Return mean scores (clients, ...), as `evaluate_personal`, for a few clients at once."""
    plans = tuning_plans(fed, server.round, clients)
    work = work_of(fed, server, states, clients, plans, tuning_rate(fed, server.round), measured=True)
    return means_of(fed, engine, work)


def personal_models(fed: Federation, engine: Engine, server: Server, states: States, clients: Ints) -> Tensor:
    """Return the parameters (clients, P) of the clients' personal models after tuning."""
    models = []
    for lo in range(0, len(clients), CLIENTS):
        block = clients[lo : lo + CLIENTS]
        plans, lr = tuning_plans(fed, server.round, block), tuning_rate(fed, server.round)
        work = work_of(fed, server, states, block, plans, lr, measured=False)
        models.append(tuned(fed, engine, work, send_models=True).uploads.delta)
    return torch.cat(models)


def send_model(view: View, carry: Carry, sums: Tree) -> tuple[Upload, Tree]:
    return Upload(carry.w, {}, {}), {}


def tuning_plans(fed: Federation, round_: int, clients: Ints) -> list[BatchPlan]:
    """Return the plan of each client's tuning after ``round_`` rounds."""
    rows = [fed.partition.rows(int(k)) for k in clients]
    if fed.tuning is None:
        return [no_steps(r) for r in rows]
    return [fed.tuning.planner.train(round_, int(k), r) for k, r in zip(clients, rows, strict=True)]


def tuning_rate(fed: Federation, round_: int) -> float:
    """Return the learning rate of the tuning after ``round_`` rounds."""
    return fed.rate(round_) if fed.tuning is None or fed.tuning.lr is None else fed.tuning.lr


def tuned(fed: Federation, engine: Engine, work: Work, send_models: bool) -> Done:
    """Train the personal models by the tuning plans in ``work``. With ``send_models``, they are the uploads."""
    if fed.program.personal and fed.program.before:
        work = work._replace(view=work.view._replace(before=survey(fed, engine, work)[0]))
    if fed.tuning is not None and fed.tuning.lr is not None:
        work = work._replace(rates=None)
    programs = tuple(measuring(p, task, fed.solver) for p, task in zip(fed.programs, fed.tasks, strict=True))
    if send_models:
        programs = tuple(p._replace(final=send_model) for p in programs)
    return by_group(programs, work, lambda p, part: engine.run(p, part, fed.x, fed.targets(work.round)))


def means_of(fed: Federation, engine: Engine, work: Work) -> dict[str, Tensor]:
    """Train the personal models by the tuning plans in ``work``; return their mean scores (clients, ...)."""
    y, rows = fed.targets(work.round), [fed.partition.measured_rows(int(k)) for k in work.clients]
    done = tuned(fed, engine, work, send_models=bool(pooled_primary(fed.task)))
    sizes = torch.tensor([len(measured) for measured in rows])
    means = {name: mean_of(sums.double().cpu(), sizes) for name, sums in done.scores.items()}
    if not pooled_primary(fed.task):
        return means
    models = zip(fed.tasks_of(work.clients), done.uploads.delta, rows, strict=True)
    return stacked_means([client_means(task, w, fed.x, y, torch.as_tensor(measured)) for task, w, measured in models])


@lru_cache(maxsize=32)
def measuring(method: Program, task: Task, solver: Solver) -> Program:
    """Return a program of plain local training that starts from the method's personal model. It has no upload and no state."""

    def init(view: View) -> Carry:
        w = view.x if method.personal is None else method.personal(view)
        return Carry(w, solver.init(w), {}, view.lr.new_zeros(()))

    def final(view: View, carry: Carry, sums: Tree) -> tuple[Upload, Tree]:
        return Upload(carry.w.new_zeros(0), {}, {}), {}

    return program(Algorithm(), task, solver)._replace(init=init, final=final)


ROWS = (0, 5, 10, 20, 50, None)
"""Numbers of rows on which a client adapts the model; None: all. A client with fewer rows uses all of them."""


def adaptation_curve(
    fed: Federation, engine: Engine, server: Server, unseen: Partition, tuning: PersonalTuning, clients: Ints
) -> list[dict[str, Tensor]]:
    """Return, for each number in `ROWS`, mean scores (clients,) on each unseen client's held-out rows; NaN without such rows.

    With 0 rows, the server's model is measured. Otherwise the client starts like one that takes part for the first time, with the
    method's personal model if there is one. It then takes the steps of ``tuning`` on its first rows.
    """
    curve = [evaluate_clients(fed.task, server.x, fed.x, fed.targets(server.round), unseen, clients)]
    for most in ROWS[1:]:
        first_rows = unseen if most is None else unseen.first(most)
        # a client that took no part in training has no intercept, and no learning rate of its own
        adapting = replace(
            fed, partition=first_rows, tuning=tuning, planner=tuning.planner, intercepts=None, rates=None
        )
        blocks = [clients[lo : lo + CLIENTS] for lo in range(0, len(clients), CLIENTS)]
        parts = [adapted(fed, adapting, engine, server, block) for block in blocks]
        curve.append({name: torch.cat([part[name] for part in parts]) for name in parts[0]})
    return curve


def adapted(fed: Federation, unseen: Federation, engine: Engine, server: Server, clients: Ints) -> dict[str, Tensor]:
    """Return mean scores (clients,) of unseen clients after adaptation.

    ``unseen`` is their federation. They receive the model and extras that ``fed`` broadcasts.
    """
    states = stack([fresh(unseen, server.x)] * len(clients))
    plans, rate = tuning_plans(unseen, server.round, clients), tuning_rate(unseen, server.round)
    return means_of(unseen, engine, work_on(unseen, broadcast(fed, server), states, clients, plans, rate, True))

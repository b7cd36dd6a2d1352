"""Scores of personal models, and of models that clients adapt who took no part in training."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm
from fedskew.core.contract import Solver
from fedskew.core.records import BatchPlan, Carry, Server, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree, concatenate, stack
from fedskew.loop.evaluate import client_means, evaluate_clients, mean_of, stacked_means
from fedskew.loop.federation import Federation, PersonalTuning
from fedskew.loop.plan import NO_STEPS
from fedskew.loop.round import broadcast, fresh, survey, work_of, work_on
from fedskew.loop.work import Done, Engine, Program, States, T, Work, by_group, program
from fedskew.skew.partition import Ints, Partition

CLIENTS = 128
"""Number of clients that are measured at a time, each with its own model."""


def in_blocks(clients: Ints, act: Callable[[Ints], T]) -> T:
    """Call ``act`` with at most `CLIENTS` clients at a time; join the results along their leading axis."""
    return concatenate([act(clients[lo : lo + CLIENTS]) for lo in range(0, len(clients), CLIENTS)])


def measures_personal(fed: Federation) -> bool:
    """True if clients have personal models that differ from the global one."""
    return fed.program.personal is not None or fed.tuning is not None


def evaluate_personal(
    fed: Federation, engine: Engine, server: Server, states: States, clients: Ints
) -> dict[str, Tensor]:
    """Return mean scores (clients,) of each client's personal model on its measured rows; NaN for a client without such rows.

    A client that has never taken part gets a new state. Tuning does not change stored states.
    """
    return in_blocks(clients, lambda block: means_of(fed, engine, tuning_work(fed, server, states, block, True)))


def personal_models(fed: Federation, engine: Engine, server: Server, states: States, clients: Ints) -> Tensor:
    """Return the parameters (clients, P) of the clients' personal models after tuning."""
    works = partial(tuning_work, fed, server, states, measured=False)
    return in_blocks(clients, lambda block: tuned(fed, engine, works(block), send_models=True).uploads.delta)


def tuning_work(fed: Federation, server: Server, states: States, clients: Ints, measured: bool) -> Work:
    """Return the work of the clients' tuning after the server's rounds."""
    plans, lr = tuning(fed, server.round, clients)
    return work_of(fed, server, states, clients, plans, lr, measured)


def tuning(fed: Federation, round_: int, clients: Ints) -> tuple[list[BatchPlan], float]:
    """Return the plan of each client's tuning after ``round_`` rounds, and its learning rate."""
    if fed.tuning is None:
        return [NO_STEPS] * len(clients), fed.rate(round_)
    plans = [fed.tuning.planner.train(round_, int(k), fed.partition.rows(int(k))) for k in clients]
    return plans, fed.rate(round_) if fed.tuning.lr is None else fed.tuning.lr


def tuned(fed: Federation, engine: Engine, work: Work, send_models: bool) -> Done:
    """Train the personal models by the tuning plans in ``work``. With ``send_models``, they are the uploads."""
    if fed.program.personal and fed.program.before:
        work = work._replace(view=work.view._replace(before=survey(fed, engine, work)[0]))
    if fed.tuning is not None and fed.tuning.lr is not None:
        work = work._replace(rates=None)
    both = zip(fed.programs, fed.tasks, strict=True)
    programs = tuple(measuring(p, task, fed.solver, send_models) for p, task in both)
    return by_group(programs, work, lambda p, part: engine.run(p, part, fed.x, fed.targets(work.round)))


def means_of(fed: Federation, engine: Engine, work: Work) -> dict[str, Tensor]:
    """Train the personal models by the tuning plans in ``work``; return their mean scores (clients, ...)."""
    y, rows = fed.targets(work.round), [fed.partition.measured_rows(int(k)) for k in work.clients]
    done = tuned(fed, engine, work, send_models=bool(fed.task.pooled_primary))
    sizes = torch.tensor([len(measured) for measured in rows])
    means = {name: mean_of(sums.double().cpu(), sizes) for name, sums in done.scores.items()}
    if not fed.task.pooled_primary:
        return means
    models = zip(fed.tasks_of(work.clients), done.uploads.delta, rows, strict=True)
    return stacked_means([client_means(task, w, fed.x, y, torch.as_tensor(measured)) for task, w, measured in models])


@lru_cache(maxsize=32)
def measuring(method: Program, task: Task, solver: Solver, send_models: bool) -> Program:
    """Return a program of plain local training that starts from the method's personal model. It has no state.

    With ``send_models``, the models are the uploads; else there are none.
    """

    def init(view: View) -> Carry:
        w = view.x if method.personal is None else method.personal(view)
        return Carry(w, solver.init(w), {}, view.lr.new_zeros(()))

    def final(view: View, carry: Carry, sums: Tree) -> tuple[Upload, Tree]:
        return Upload(carry.w if send_models else carry.w.new_zeros(0), {}, {}), {}

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
        curve.append(in_blocks(clients, partial(adapted, fed, adapting, engine, server)))
    return curve


def adapted(fed: Federation, unseen: Federation, engine: Engine, server: Server, clients: Ints) -> dict[str, Tensor]:
    """Return mean scores (clients,) of unseen clients after adaptation.

    ``unseen`` is their federation. They receive the model and extras that ``fed`` broadcasts.
    """
    states = stack([fresh(unseen, server.x)] * len(clients))
    plans, rate = tuning(unseen, server.round, clients)
    return means_of(unseen, engine, work_on(unseen, broadcast(fed, server), states, clients, plans, rate, True))

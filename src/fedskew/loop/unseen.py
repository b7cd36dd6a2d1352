"""Scores on clients that took no part in training: of the server's model, and of models adapted on some of their rows."""

from dataclasses import replace

import torch
from torch import Tensor

from fedskew.core.records import Server
from fedskew.core.trees import stack
from fedskew.loop.evaluate import evaluate_clients
from fedskew.loop.federation import Federation, Tuning
from fedskew.loop.personal import CLIENTS, means_of, tuning_plans, tuning_rate
from fedskew.loop.prepare import work_on
from fedskew.loop.transmit import fresh
from fedskew.loop.work import Engine
from fedskew.skew.partition import Ints, Partition

ROWS = (0, 5, 10, 20, 50, None)
"""Numbers of rows on which a client adapts the model; None: all. A client with fewer rows uses all of them."""


def adaptation_curve(
    fed: Federation, engine: Engine, server: Server, unseen: Partition, tuning: Tuning, clients: Ints
) -> list[dict[str, Tensor]]:
    """Return, for each number in `ROWS`, mean scores (clients,) on each unseen client's held-out rows; NaN without such rows.

    With 0 rows, the server's model is measured. Otherwise the client starts like one that takes part for the first time, with the
    method's personal model if there is one. It then takes the steps of ``tuning`` on its first rows.
    """
    curve = [evaluate_clients(fed.task, server.x, fed.x, fed.targets(server.round), unseen, clients)]
    for most in ROWS[1:]:
        own = unseen if most is None else unseen.first(most)
        made = replace(fed, partition=own, tuning=tuning, planner=tuning.planner)
        blocks = [clients[lo : lo + CLIENTS] for lo in range(0, len(clients), CLIENTS)]
        parts = [adapted(fed, made, engine, server, block) for block in blocks]
        curve.append({name: torch.cat([part[name] for part in parts]) for name in parts[0]})
    return curve


def adapted(fed: Federation, made: Federation, engine: Engine, server: Server, clients: Ints) -> dict[str, Tensor]:
    """Return mean scores (clients,) of unseen clients after adaptation.

    ``made`` is the federation of the unseen clients. They receive the model and extras that ``fed`` broadcasts.
    """
    extras = fed.algorithm.broadcast(fed.view(server))
    kept = stack([fresh(made, server.x)] * len(clients))
    plans, rate = tuning_plans(made, server.round, clients), tuning_rate(made, server.round)
    return means_of(made, engine, work_on(made, server.round, server.x, extras, kept, clients, plans, rate, True))

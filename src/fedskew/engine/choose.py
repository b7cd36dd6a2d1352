"""Which engine is faster here: a short measured trial on the experiment's own first round."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fedskew.core.records import Plan, Server
from fedskew.core.trees import pick
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked, block_width
from fedskew.engine.states import ClientStates
from fedskew.loop.round import Engine, Federation, Work, open_round

STEPS = 4
"""Local steps of a trial."""

PATIENCE = 1.0
"""Seconds that a first stacked step may take beyond what the same steps take one after the other."""


def choose(fed: Federation, server: Server) -> tuple[Engine, dict[str, Any]]:
    """The faster engine for this federation's rounds, and what was measured.

    Nothing is kept of the trial: engines are pure, and the client states it reads are its own.
    """
    work = open_round(fed, server, ClientStates(), measure_local=False)
    lengths = np.sort([len(plan.index) for plan in work.plans])[::-1]
    width = min(block_width(server.x), len(lengths))

    one = shortened(work, np.asarray([int(np.argmax([len(p.index) for p in work.plans]))]))
    sequential = Sequential()
    per_step = measured(fed, sequential, one) / len(one.plans[0].index)
    sequential_round = per_step * float(lengths.sum())

    stacked = Stacked()
    block = shortened(work, np.argsort([-len(p.index) for p in work.plans], kind="stable")[:width])
    steps = max(len(plan.index) for plan in block.plans)
    first = once(fed, stacked, shortened(block, np.arange(width), limit=1))
    if first > PATIENCE + 5 * per_step * width:
        stacked_round = first * float(lengths[::width].sum())
    else:
        stacked_round = measured(fed, stacked, block) / steps * float(lengths[::width].sum())

    chosen: Engine = stacked if stacked_round < sequential_round else sequential
    trial = {
        "name": "stacked" if chosen is stacked else "sequential",
        "estimated_seconds_a_round": {"sequential": round(sequential_round, 5), "stacked": round(stacked_round, 5)},
    }
    return chosen, trial


def measured(fed: Federation, engine: Engine, work: Work) -> float:
    """Seconds of the faster of two runs, after one that warms up."""
    once(fed, engine, work)
    return min(once(fed, engine, work) for _ in range(2))


def once(fed: Federation, engine: Engine, work: Work) -> float:
    began = time.perf_counter()
    engine.run(fed.program, work, fed.x, fed.y)
    return time.perf_counter() - began


def shortened(work: Work, members: np.ndarray[Any, Any], limit: int = STEPS) -> Work:
    """The work of some clients of the cohort, cut to a few steps."""
    at = np.sort(members)
    view = work.view
    return Work(
        clients=work.clients[at],
        view=view._replace(state=pick(view.state, at), info=pick(view.info, at)),
        plans=[Plan(work.plans[i].index[:limit], work.plans[i].mask[:limit]) for i in at],
        passes=[work.passes[i] for i in at],
        measured=[],
    )

"""Which engine is faster here: a short measured trial on the first of the experiment's own rounds in which somebody takes part."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fedskew.core.records import Plan, Server
from fedskew.core.task import stackable
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked, block_width
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.round import Engine, Work, members_of, prepare, train

STEPS = 4
"""Local steps of a trial."""

RUNS, ENOUGH = 9, 0.05
"""Runs of one trial at most, and seconds after which three are enough."""

PATIENCE = 1.0
"""Seconds that a first stacked step may take beyond five times what the same steps take one after the other."""


def choose(fed: Federation, server: Server, measure_local: bool = True) -> tuple[Engine, dict[str, Any]]:
    """The faster engine for this federation's rounds, and what was measured.

    ``measure_local`` counts the passes that measure local models in. Nothing is kept of the trial: engines are pure, and the
    client states it reads are its own. Without a choice, of a model that cannot be stacked or rounds without clients, nothing
    is tried.
    """
    work = next_work(fed, server, measure_local) if all(map(stackable, fed.tasks)) else None
    if work is None:
        return Sequential(), {"name": "sequential", "estimated_seconds_a_round": {"sequential": 0.0, "stacked": 0.0}}
    order = np.argsort([-len(plan.index) for plan in work.plans], kind="stable")
    width = min(block_width(server.x), len(order))
    steps = np.asarray([len(work.plans[i].index) for i in order])
    passes = np.asarray([len(work.measured[i].index) for i in order]) if work.measured else np.zeros(1)

    beside, step, score = cost(fed, Sequential(), shortened(work, order[:1]))
    sequential = beside * len(order) + step * steps.sum() + score * passes.sum()

    block = shortened(work, order[:width])
    first = once(fed, Stacked(), shortened(work, order[:width], limit=1))
    slow = first > PATIENCE + 5 * step * width
    beside_s, step_s, score_s = (0.0, first, 0.0) if slow else cost(fed, Stacked(), block)
    # a block takes as many steps as its longest client, a pass as many batches as its largest
    longest = steps[::width]
    largest = sum(passes[lo : lo + width].max() for lo in range(0, len(passes), width))
    stacked = beside_s * len(longest) + step_s * longest.sum() + score_s * largest

    chosen: Engine = Stacked() if stacked < sequential else Sequential()
    trial = {
        "name": "stacked" if stacked < sequential else "sequential",
        "estimated_seconds_a_round": {"sequential": round(float(sequential), 5), "stacked": round(float(stacked), 5)},
    }
    return chosen, trial


def next_work(fed: Federation, server: Server, measure_local: bool) -> Work | None:
    """The work of the first round from here on in which somebody takes part, were the server as it is."""
    for round_ in range(server.round, server.rounds):
        at = server._replace(round=round_)
        _, work, _ = prepare(fed, Sequential(), at, ClientStates(), measure_local)
        if len(work.clients):
            return work
    return None


def cost(fed: Federation, engine: Engine, work: Work) -> tuple[float, float, float]:
    """Seconds beside the steps, of a local step, and of a batch of the measuring pass, after a run that warms up."""
    once(fed, engine, work)
    training = work._replace(measured=[])
    whole = fastest(fed, engine, training)
    brief = fastest(fed, engine, shortened(training, np.arange(len(work.clients)), limit=1))
    steps = max(len(plan.index) for plan in work.plans)
    # what comes once must not count as often as there are steps
    step = max(whole - brief, 0.0) / (steps - 1) if steps > 1 else whole
    return max(brief - step, 0.0), step, max(fastest(fed, engine, work) - whole, 0.0) if work.measured else 0.0


def fastest(fed: Federation, engine: Engine, work: Work) -> float:
    """Of several runs, more where they are short: whatever else the machine does only adds to a time."""
    times = [once(fed, engine, work) for _ in range(3)]
    while len(times) < RUNS and sum(times) < ENOUGH:
        times.append(once(fed, engine, work))
    return min(times)


def once(fed: Federation, engine: Engine, work: Work) -> float:
    """Seconds of one run; of this thread's work where that is done here, so that other programs do not count."""
    clock = time.thread_time if work.view.x.device.type == "cpu" else time.perf_counter
    began = clock()
    train(fed, engine, work)
    return clock() - began


def shortened(work: Work, members: np.ndarray[Any, Any], limit: int = STEPS) -> Work:
    """The work of some clients of the cohort, cut to a few steps and one measured batch."""
    few = members_of(work, np.sort(members))
    return few._replace(
        plans=[cut(plan, limit) for plan in few.plans],
        passes=[cut(plan, 1) for plan in few.passes],
        measured=[cut(plan, 1) for plan in few.measured],
    )


def cut(plan: Plan, limit: int) -> Plan:
    return plan.first(limit)

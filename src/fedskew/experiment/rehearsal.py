"""What several processes would save: they are really started, and play rounds of a few local steps, all else whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor

from fedskew.core.records import Server
from fedskew.data.dataset import Dataset
from fedskew.engine.choose import Option, next_work, on_threads, shortened
from fedskew.engine.distributed import Distributed, balanced
from fedskew.engine.group import Group
from fedskew.engine.homes import HomeStates, homes
from fedskew.engine.stacked import Stacked, block_width
from fedskew.engine.states import ClientStates
from fedskew.experiment.build import assemble
from fedskew.experiment.config import from_toml
from fedskew.experiment.processes import joined, started
from fedskew.loop.federation import Federation
from fedskew.loop.round import Engine, States, Work, close_round, fresh, prepare, start, train, transmit
from fedskew.measure.drift import drift

REPEATS = 2
"""Timed rounds of each length, of which the faster counts."""

Recipe = Callable[[], tuple[Federation, Tensor]]
"""Makes the federation and its initial model, the same in every process."""


def of_experiment(toml: str, dataset: Dataset) -> tuple[Federation, Tensor]:
    """The recipe of an experiment."""
    assembly = assemble(from_toml(toml), dataset)
    return assembly.federation, assembly.x0


def rehearsed(recipe: Recipe, options: Sequence[Option], limit: int) -> tuple[list[float], float]:
    """Seconds of a round under each option, and those that starting its processes took.

    Rounds have ``limit`` local steps at most, and the rest is told from those of one step. Raises `Lost` if a process ends.
    """
    began = time.perf_counter()
    size = max(option.workers for option in options)
    with TemporaryDirectory() as folder, started(folder, size, partial(play, recipe, options, limit)):
        group = joined()
        fed, x0 = recipe()
        group.agree(True)
        starting = time.perf_counter() - began
        return [a_round(fed, x0, option, group, limit) for option in options], starting


def play(recipe: Recipe, options: Sequence[Option], limit: int, group: Group) -> None:
    """As another process: play along."""
    fed, x0 = recipe()
    group.agree(True)
    for option in options:
        a_round(fed, x0, option, group, limit)


def a_round(fed: Federation, x0: Tensor, option: Option, group: Group, limit: int) -> float:
    """Seconds of a whole round, on the clock of each process. One process's rounds are played while the others wait."""
    server = start(fed, x0)
    work = next_work(fed, server, measure_local=False)
    assert work is not None
    server = server._replace(round=work.round)
    shared = option.workers > 1
    engine: Engine = Distributed(option.engine, group) if shared else option.engine
    longest = max(len(plan.index) for plan in work.plans)
    limits = [min(limit, longest)] if limit >= longest else [1, limit]
    seconds = {}
    with on_threads(option.threads):
        for few, repeats in [(limits[0], 1), *((few, REPEATS) for few in limits)]:
            times = []
            for _ in range(repeats):
                group.agree(True)
                if shared or group.rank == 0:
                    kept = ClientStates()
                    states = HomeStates(group, kept, partial(fresh, fed, x0)) if shared else kept
                    times.append(timed(fed, engine, server, states, few))
            seconds[few] = min(times, default=0.0)
    done = {few: steps_of(option, work, few) for few in (*limits, longest)}
    if len(limits) == 1 or done[limit] == done[1]:
        return seconds[limits[0]]
    a_step = max(seconds[limit] - seconds[1], 0.0) / (done[limit] - done[1])
    return seconds[1] + a_step * (done[longest] - done[1])


def timed(fed: Federation, engine: Engine, server: Server, states: States, limit: int) -> float:
    """Seconds of a round whose clients stop after so many steps."""
    began = time.perf_counter()
    server, work, _ = prepare(fed, engine, server, states, False)
    brief = shortened(work, np.arange(len(work.clients)), limit)._replace(passes=work.passes)
    done = train(fed, engine, brief)
    drift(done.uploads.delta, brief.view.info.num_examples)
    uploads, kept, _ = transmit(fed, brief, done)
    close_round(fed, server, brief, done._replace(uploads=uploads))
    states.put(brief.clients, kept)
    return time.perf_counter() - began


def steps_of(option: Option, work: Work, limit: int) -> int:
    """Steps, of one client or of a block, that the busiest process takes one after the other."""
    costs = [plan.index.size for plan in work.plans]
    lengths = np.asarray([min(len(plan.index), limit) for plan in work.plans])
    lives = homes(work.clients, option.workers) if work.view.state else ()
    shares = balanced(costs, option.workers, lives) if option.workers <= len(costs) else [np.arange(len(costs))]
    width = 1
    if isinstance(option.engine, Stacked):
        width = option.engine.width or block_width(work.view.x)
    return max(int(np.sort(lengths[share])[::-1][::width].sum()) for share in shares)

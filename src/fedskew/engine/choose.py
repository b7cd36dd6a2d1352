"""Which engine and how many threads: a short trial on the first of the experiment's own rounds with clients."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedskew.core.records import Server
from fedskew.core.task import stackable
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked, block_width
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.round import Engine, Work, members_of, prepare, train

STEPS = 4
"""Local steps of a timed run."""

REPEATS, LONG = 3, 0.5
"""Timed runs of which the fastest counts, and the seconds from which a run is not repeated."""

WORTH, SHORT = 3, 0.2
"""All threads are tried where the run takes this many times as long as the trial so far, at least ``SHORT`` seconds."""

GAIN = 0.07
"""Share of a round's time that all threads must save."""


@dataclass(frozen=True)
class Option:
    """A way to carry out rounds: an engine on so many threads."""

    engine: Sequential | Stacked
    threads: int = 1

    @property
    def name(self) -> str:
        return "stacked" if isinstance(self.engine, Stacked) else "sequential"

    @property
    def label(self) -> str:
        """``stacked 5 wide 2 threads``, without the usual width and one thread."""
        width = getattr(self.engine, "width", 0)
        return self.name + f" {width} wide" * (width > 0) + f" {self.threads} threads" * (self.threads > 1)


def choose(fed: Federation, work: Work, threads: Sequence[int]) -> tuple[Option, dict[str, float]]:
    """The faster engine, and the seconds a round by label of every option tried.

    ``threads`` are one number, or two, ascending. The second is tried where the run is long enough to gain by it, for an engine
    that took less than twice the best time.
    """
    began = time.perf_counter()
    engines: list[Sequential | Stacked] = [Sequential(), *([Stacked()] if all(map(stackable, fed.tasks)) else [])]
    options = [Option(engine, threads[0]) for engine in engines]
    seconds: dict[Option, float] = {}
    for option in options:
        seconds[option] = measured(fed, work, option, min(seconds.values(), default=np.inf))
    best = min(options, key=seconds.__getitem__)
    spent = max(time.perf_counter() - began, SHORT)
    if len(threads) > 1 and fed.rounds * seconds[best] > WORTH * spent:
        threaded = [replace(o, threads=threads[-1]) for o in options if seconds[o] < 2 * seconds[best]]
        for option in threaded:
            seconds[option] = measured(fed, work, option, seconds[best])
        fastest = min(threaded, key=seconds.__getitem__)
        if seconds[fastest] < (1 - GAIN) * seconds[best]:
            best = fastest
    return best, {option.label: taken for option, taken in seconds.items()}


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """PyTorch on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def next_work(fed: Federation, server: Server, measure_local: bool) -> Work | None:
    """The work of the first round from here on in which somebody takes part, were the server as it is."""
    for round_ in range(server.round, fed.rounds):
        at = server._replace(round=round_)
        _, work, _ = prepare(fed, Sequential(), at, ClientStates(), measure_local)
        if len(work.clients):
            return work
    return None


def measured(fed: Federation, work: Work, option: Option, limit: float = np.inf) -> float:
    """Seconds of local training a round, from runs of a few steps; nothing of them is kept.

    An option whose first run shows that it takes more than ``limit`` is not timed further.
    """
    engine, clients = option.engine, len(work.clients)
    width = min(engine.width or block_width(work.view.x), clients) if isinstance(engine, Stacked) else 1
    order = np.argsort([-len(plan.index) for plan in work.plans], kind="stable")
    # a block takes as many steps as its longest client, a pass as many batches as its largest
    steps = sum(len(work.plans[i].index) for i in order[::width])
    blocks = len(range(0, clients, width))
    passes = [len(work.measured[i].index) for i in order] if work.measured else []
    batches = sum(max(passes[lo : lo + width]) for lo in range(0, len(passes), width))
    brief, one = (shortened(work, order[:width], few) for few in (STEPS, 1))
    with on_threads(option.threads):
        # a first step also prepares the engine; if all steps at a fifth of its time would still be too many, it has lost
        first = once(fed, engine, one)
        if first > 1 and first / 5 * steps > limit:
            return first * steps
        whole, least = (fastest(fed, engine, some._replace(measured=[])) for some in (brief, one))
        longest = max(len(plan.index) for plan in brief.plans)
        step = max(whole - least, 0.0) / (longest - 1) if longest > 1 else whole
        score = max(fastest(fed, engine, brief) - whole, 0.0) if work.measured else 0.0
    return float(max(least - step, 0.0) * blocks + step * steps + score * batches)


def fastest(fed: Federation, engine: Engine, work: Work) -> float:
    """Seconds of the fastest of a few runs, after one that prepares: whatever else the machine does only adds to a time."""
    once(fed, engine, work)
    times = [once(fed, engine, work)]
    while len(times) < REPEATS and times[0] < LONG:
        times.append(once(fed, engine, work))
    return min(times)


def once(fed: Federation, engine: Engine, work: Work) -> float:
    """Seconds of one run; on one thread those of this thread, so that other programs do not count."""
    cuda = work.view.x.is_cuda
    clock = time.perf_counter if cuda or torch.get_num_threads() > 1 else time.thread_time
    began = clock()
    train(fed, engine, work)
    if cuda:
        torch.cuda.synchronize(work.view.x.device)
    return clock() - began


def shortened(work: Work, members: np.ndarray[Any, Any], limit: int = STEPS) -> Work:
    """The work of some clients of the cohort, cut to a few steps and one measured batch."""
    few = members_of(work, np.sort(members))
    return few._replace(
        plans=[plan.first(limit) for plan in few.plans],
        passes=[plan.first(1) for plan in few.passes],
        measured=[plan.first(1) for plan in few.measured],
    )

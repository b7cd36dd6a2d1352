"""Choose the engine and the number of threads by a short trial on the first round that has clients."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedskew.core.machine import on_threads
from fedskew.core.records import Server
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked, block_width
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.round import prepare, train
from fedskew.loop.work import Engine, Work, members_of
from fedskew.skew.partition import Ints

STEPS = 4
"""Number of local steps in a timed run."""

FEW_ROWS = 4
"""Number of rows of a first short step, before a trial that may take too long."""

REPEATS, LONG = 3, 0.5
"""Maximum number of timed runs; the fastest counts. A run that takes at least ``LONG`` seconds is not repeated."""

CLEAR = 0.05
"""Seconds of a step. Beside a longer one, the start of a run does not matter."""

MIN_RATIO, MIN_SECONDS = 3, 0.2
"""Several threads are tried only if the whole run takes ``MIN_RATIO`` times as long as the trial so far (or `MIN_SECONDS`)."""

MIN_GAIN = 0.07
"""Minimum share of a round's time that several threads must save."""


@dataclass(frozen=True)
class EngineChoice:
    """An engine and its number of threads."""

    engine: Sequential | Stacked
    threads: int = 1

    @property
    def name(self) -> str:
        return "stacked" if isinstance(self.engine, Stacked) else "sequential"

    @property
    def label(self) -> str:
        """The option's name: ``stacked 5 wide 2 threads``. The default width and a single thread are left out."""
        width = getattr(self.engine, "width", 0)
        return self.name + f" {width} wide" * (width > 0) + f" {self.threads} threads" * (self.threads > 1)


def choose(fed: Federation, work: Work, threads: Sequence[int]) -> tuple[EngineChoice, dict[str, float]]:
    """Return the fastest option, and the estimated seconds a round of each option that was tried, by label.

    ``threads`` is one number, or two in ascending order. The larger number is tried for long runs only, with engines that take
    less than twice the best time.
    """
    began = time.perf_counter()
    engines: list[Sequential | Stacked] = [
        Sequential(),
        *([Stacked()] if all(task.stacks for task in fed.tasks) else []),
    ]
    options = [EngineChoice(engine, threads[0]) for engine in engines]
    seconds: dict[EngineChoice, float] = {}
    for option in options:
        seconds[option] = estimate_seconds(fed, work, option, min(seconds.values(), default=np.inf))
    best = min(options, key=seconds.__getitem__)
    spent = max(time.perf_counter() - began, MIN_SECONDS)
    if len(threads) > 1 and fed.rounds * seconds[best] > MIN_RATIO * spent:
        threaded = [replace(o, threads=threads[-1]) for o in options if seconds[o] < 2 * seconds[best]]
        for option in threaded:
            seconds[option] = estimate_seconds(fed, work, option, seconds[best])
        fastest = min(threaded, key=seconds.__getitem__)
        if seconds[fastest] < (1 - MIN_GAIN) * seconds[best]:
            best = fastest
    return best, {option.label: times for option, times in seconds.items()}


def next_work(fed: Federation, server: Server) -> Work | None:
    """Return the work of the next round that has clients; None if there is no such round. The server does not change."""
    for round_ in range(server.round, fed.rounds):
        _, work, _ = prepare(fed, Sequential(), server._replace(round=round_), ClientStates(), measure_local=False)
        if len(work.clients):
            return work
    return None


def estimate_seconds(fed: Federation, work: Work, option: EngineChoice, limit: float = np.inf) -> float:
    """Estimate the seconds of a round's local training, from a few steps of the clients with the most steps.

    If a long first step shows that the option takes more than ``limit`` seconds, it is not timed further. If a shorter one does,
    one more step is timed, and no other if it takes more than `CLEAR` seconds. With a limit, clients that train one after the
    other take a step on `FEW_ROWS` rows before.
    """
    engine, clients = option.engine, len(work.clients)
    width = engine.width or block_width(work.view.x) if isinstance(engine, Stacked) else option.threads
    width = min(width, clients)
    order = np.argsort([-len(plan.index) for plan in work.plans], kind="stable")
    # a block takes as many steps as its longest client
    blocks = [len(work.plans[i].index) for i in order[::width]]
    first_step, few = (shortened(work, order[:width], steps) for steps in (1, STEPS))
    batch = max(plan.index.shape[1] for plan in first_step.plans)
    with on_threads(option.threads):
        # The first step also prepares the engine. Later steps take at least a fifth of its time.
        for rows in (FEW_ROWS, batch) if limit < np.inf and isinstance(engine, Sequential) else (batch,):
            first = once(fed, engine, shortened(work, order[:width], 1, rows))
            if first > LONG and first / 5 * sum(blocks) > limit:
                return first * max(batch / rows, 1) * sum(blocks)
        if first / 5 * sum(blocks) > limit and (step := once(fed, engine, first_step)) > CLEAR:
            return step * sum(blocks)
        least, whole = fastest(fed, engine, first_step), fastest(fed, engine, few)
    longest = max(len(plan.index) for plan in few.plans)
    step = max(whole - least, 0.0) / (longest - 1) if longest > 1 else whole
    return float(max(least - step, 0.0) * len(blocks) + step * sum(blocks))


def fastest(fed: Federation, engine: Engine, work: Work) -> float:
    """Return the seconds of the fastest of a few runs, after a warm-up run. Other programs can only make a run slower."""
    once(fed, engine, work)
    times = [once(fed, engine, work)]
    while len(times) < REPEATS and times[0] < LONG:
        times.append(once(fed, engine, work))
    return min(times)


def once(fed: Federation, engine: Engine, work: Work) -> float:
    """Return the seconds of one run; with one thread, the processor time of this thread."""
    cuda = work.view.x.is_cuda
    clock = time.perf_counter if cuda or torch.get_num_threads() > 1 else time.thread_time
    began = clock()
    train(fed, engine, work)
    if cuda:
        torch.cuda.synchronize(work.view.x.device)
    return clock() - began


def shortened(work: Work, members: Ints, limit: int, rows: int | None = None) -> Work:
    """Return the work of some clients of the cohort, with at most ``limit`` steps of ``rows`` rows and without measuring."""
    few = members_of(work, np.sort(members))
    return few._replace(
        plans=[plan.first(limit, rows) for plan in few.plans],
        passes=[plan.first(1) for plan in few.passes],
        measured=[],
    )

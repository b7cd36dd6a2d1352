"""Which engine, on how many threads, how wide: a short measured trial on the first of the experiment's own rounds with clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedskew.core.records import Plan, Server
from fedskew.core.task import stackable
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked, block_width
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.round import Engine, Work, members_of, prepare, train

STEPS = 4
"""Local steps of a trial."""

RUNS, ENOUGH, LONG = 9, 0.05, 0.5
"""Runs of one trial at most, seconds after which three are enough, and seconds of a run that is not repeated."""

PATIENCE = 1.0
"""Seconds that a first stacked step may take, where all steps at a fifth of its time would still lose."""

FEW, MANY = 3, 20
"""So many times as long as the trials so far must a run be for one of all threads, and for one of what gains less."""

LEAST = 0.2
"""Seconds that the trials so far count for at least."""

MARGIN = 0.07
"""What a less plain option must gain."""


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
        """``stacked 5 wide 2 threads``; nothing of what is as usual or 1."""
        width = getattr(self.engine, "width", 0)
        counts = [(width, "wide"), (self.threads, "threads")]
        shown = [f"{count} {what}" for count, what in counts if count > (what != "wide")]
        return " ".join([self.name, *shown])


Measure = Callable[[Option, float], float]
"""Seconds a round under an option; those of the best so far end a trial that has lost."""


def choose(
    measure: Measure, rounds: int, threads: Sequence[int], seconds: dict[str, float], usual: int, most: int
) -> Option:
    """The fastest option, as far as looking for it pays in a run of so many rounds.

    ``threads`` are the numbers of threads to try, ascending. Stacked blocks are ``usual`` clients wide (0: they cannot be stacked)
    and ``most`` at most. ``seconds`` a round by label are what is known of options, and what is measured is added to them.
    """
    began = time.perf_counter()
    best = Option(Sequential(), threads[0])

    def ask(option: Option) -> float:
        if option.label not in seconds:
            seconds[option.label] = measure(option, seconds.get(best.label, np.inf))
        return seconds[option.label]

    def worth(option: Option, factor: int) -> bool:
        spent = max(time.perf_counter() - began, LEAST)
        return option.label in seconds or rounds * seconds[best.label] > factor * spent

    def gains(option: Option) -> bool:
        return ask(option) < (1 - MARGIN) * ask(best)

    first = [best, Option(Stacked(), threads[0])] if usual else [best]
    best = min(first, key=ask)
    close = [option for option in first if ask(option) < 2 * ask(best)]
    for count in reversed(threads[1:]):
        for option in [replace(option, threads=count) for option in close]:
            if worth(option, FEW if count == threads[-1] else MANY) and gains(option):
                best = option
    if best.name == "stacked":
        width = usual
        for factor in (0.5, 2.0):
            while 1 < (width := round(width * factor)) <= most:
                option = replace(best, engine=Stacked(width=0 if width == usual else width))
                if not (worth(option, MANY) and gains(option)):
                    break
                best = option
            width = getattr(best.engine, "width", 0) or usual
    return best


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
    for round_ in range(server.round, server.rounds):
        at = server._replace(round=round_)
        _, work, _ = prepare(fed, Sequential(), at, ClientStates(), measure_local)
        if len(work.clients):
            return work
    return None


def usual_width(fed: Federation, work: Work) -> int:
    """How many clients a stacked block has if nobody says otherwise; 0 where a model cannot be stacked."""
    return min(block_width(work.view.x), len(work.clients)) if all(map(stackable, fed.tasks)) else 0


def measured(fed: Federation, work: Work, option: Option, bar: float) -> float:
    """Seconds of local training a round, from runs of a few steps; nothing is kept of them.

    An option whose first step shows that it takes more than ``bar`` is not tried further.
    """
    order = np.argsort([-len(plan.index) for plan in work.plans], kind="stable")
    steps = np.asarray([len(work.plans[i].index) for i in order])
    passes = np.asarray([len(work.measured[i].index) for i in order]) if work.measured else np.zeros(1)
    engine = option.engine
    with on_threads(option.threads):
        if isinstance(engine, Sequential):
            beside, step, score = cost(fed, engine, shortened(work, order[:1]))
            return float(beside * len(order) + step * steps.sum() + score * passes.sum())
        width = min(engine.width or block_width(work.view.x), len(order))
        # a block takes as many steps as its longest client, a pass as many batches as its largest
        longest = steps[::width]
        largest = sum(passes[lo : lo + width].max() for lo in range(0, len(passes), width))
        first = once(fed, engine, shortened(work, order[:width], limit=1))
        if first > PATIENCE and first / 5 * longest.sum() > bar:
            return float(first * longest.sum())
        beside, step, score = cost(fed, engine, shortened(work, order[:width]))
        return float(beside * len(longest) + step * longest.sum() + score * largest)


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
    times = [once(fed, engine, work)]
    while len(times) < (RUNS if sum(times) < ENOUGH else 3) and times[0] < LONG:
        times.append(once(fed, engine, work))
    return min(times)


def once(fed: Federation, engine: Engine, work: Work) -> float:
    """Seconds of one run; of this thread's work where all is done here, so that other programs do not count."""
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
        plans=[cut(plan, limit) for plan in few.plans],
        passes=[cut(plan, 1) for plan in few.passes],
        measured=[cut(plan, 1) for plan in few.measured],
    )


def cut(plan: Plan, limit: int) -> Plan:
    return plan.first(limit)

"""``engine = "auto"``: engine, width, threads and processes by trials as long as they pay, remembered for this machine."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.trees import num_bytes
from fedskew.data.dataset import Dataset
from fedskew.engine.choose import STEPS, Option, choose, measured, next_work, usual_width
from fedskew.engine.sequential import Sequential
from fedskew.experiment.build import Assembly, assemble, with_engine
from fedskew.experiment.config import Auto, Experiment
from fedskew.experiment.processes import by_launcher
from fedskew.experiment.rehearsal import Recipe, of_experiment, rehearsed
from fedskew.experiment.remembered import busy, cores, key_of, recall, remember
from fedskew.loop.federation import Federation
from fedskew.loop.round import Work, start

STARTING = 2.0
"""Seconds that starting processes is taken to cost where it was never measured."""

SURE = 2
"""Processes are tried where they could save so many times what trying them costs."""

GAIN = 0.05
"""Share of a run's time that processes must save, their start counted."""

SHORT, SHARE = 0.3, 1 / 500
"""Seconds, and share of the run, up to which rounds are tried whole."""

ROWS = 1 << 30
"""Bytes of the rows, of which every process has its own, up to which processes are started unasked."""


START, NEVER = "start of", 1e9
"""How the seconds of a start are called, and what stands for a round that cannot be."""


@dataclass(frozen=True)
class Limits:
    """Up to how many threads and processes there may be; threads that are given are not chosen."""

    threads: int
    workers: int = 1
    given: bool = False

    @property
    def counts(self) -> list[int]:
        """1, 2, 4, ... and all threads."""
        if self.given:
            return [self.threads]
        return sorted({self.threads, *(1 << n for n in range(self.threads.bit_length()) if 1 << n < self.threads)})


def settled(
    experiment: Experiment, dataset: Dataset, jobs: int = 1, assembly: Assembly | None = None
) -> tuple[Experiment, dict[str, Any] | None]:
    """The experiment with what was left open filled in, for ``jobs`` runs side by side; what is known of a choice, or None."""
    training, workers = experiment.training, experiment.training.workers or 1
    processes = jobs * workers
    threads = training.threads or (torch.get_num_threads() if processes == 1 else max(1, cores() // processes))
    if not isinstance(experiment.engine, Auto):
        return with_engine(experiment, experiment.engine, threads, workers), None
    made = assembly or assemble(experiment, dataset)
    alone = training.workers == 0 and jobs == 1 and may_start(made.federation)
    limits = Limits(threads, cores() if alone else 1, given=training.threads > 0)
    recipe = partial(of_experiment, experiment.toml(), dataset)
    option, facts = chosen(made.federation, made.x0, experiment.evaluation.local_models, limits, recipe)
    return with_engine(experiment, option.engine, option.threads, max(option.workers, workers)), facts


def may_start(fed: Federation) -> bool:
    """Whether a run may start processes unasked: not in one that was itself started for a share of the work."""
    started = multiprocessing.current_process().daemon or by_launcher()[1] > 1
    return not started and fed.x.device.type == "cpu" and num_bytes((fed.x,)) <= ROWS


def chosen(
    fed: Federation, x0: Tensor, measure_local: bool, limits: Limits, recipe: Recipe
) -> tuple[Option, dict[str, Any]]:
    """The option under which the federation's rounds are over soonest, and what was measured; without clients nothing is."""
    server = start(fed, x0)
    work = next_work(fed, server, measure_local)
    if work is None:
        option = Option(Sequential(), limits.threads)
        return option, told(option, {option.label: 0.0}, known=False)
    key, quiet = key_of(fed, work), not busy()
    before = recall(key)
    seconds = dict(before)
    best = choose(
        partial(measured, fed, work), fed.rounds, limits.counts, seconds, usual_width(fed, work), len(work.clients)
    )
    notes: list[str] = []
    best = among_processes(best, work, fed.rounds, limits, recipe, seconds, notes)
    known = seconds == before
    if quiet and not known:
        remember(key, seconds)
    return best, told(best, seconds, known) | ({"note": notes[0]} if notes else {})


def told(option: Option, seconds: dict[str, float], known: bool) -> dict[str, Any]:
    """What a run notes of its choice."""
    rounds = {k: float(f"{v:.4g}") for k, v in seconds.items() if not k.startswith(START) and v < NEVER}
    return {"name": option.name, "choice": option.label, "estimated_seconds_a_round": rounds, "remembered": known}


def among_processes(
    best: Option,
    work: Work,
    rounds: int,
    limits: Limits,
    recipe: Recipe,
    seconds: dict[str, float],
    notes: list[str],
) -> Option:
    """``best``, or the same in several processes where these save more than their start costs."""
    one, workers = best, 2
    ends = rounds * seconds[one.label]
    while workers <= min(limits.workers, len(work.clients)):
        option = replace(one, workers=workers, threads=min(limits.threads, max(1, limits.workers // workers)))
        if option.label not in seconds:
            limit, price = extent(work, rounds, seconds[one.label])
            if rounds * seconds[one.label] * (1 - 1 / workers) < SURE * price:
                break
            tried(recipe, one, option, limit, seconds, notes)
        later = rounds * seconds[option.label] + seconds.get(starting(option), STARTING)
        if later > (1 - GAIN) * ends:
            break
        best, ends, workers = option, later, 2 * workers
    return best


def extent(work: Work, rounds: int, a_round: float) -> tuple[int, float]:
    """Local steps of a rehearsal before a run of so many rounds, and the seconds that it takes about."""
    longest = max(len(plan.index) for plan in work.plans)
    short = max(SHORT, SHARE * rounds * a_round)
    limit = longest if a_round <= short else min(longest, max(STEPS // 2, int(longest * short / a_round)))
    return limit, 2 * STARTING + 2 * (3 + 2 * limit) * a_round / max(longest, 1)


def tried(recipe: Recipe, one: Option, option: Option, limit: int, seconds: dict[str, float], notes: list[str]) -> None:
    """Note what a round takes under ``option``, from whole rounds of both, and its start; one that cannot be never ends."""
    try:
        (alone, together), start = rehearsed(recipe, [one, option], limit)
    except (FedskewError, OSError, RuntimeError) as error:
        seconds[option.label] = NEVER
        notes.append(f"{option.workers} processes could not be tried: {str(error).splitlines()[0]}")
        return
    # what is known of one process is its training; what several add or save is of whole rounds
    seconds[option.label] = max(seconds[one.label] + together - alone, seconds[one.label] / option.workers)
    seconds[starting(option)] = start


def starting(option: Option) -> str:
    return f"{START} {option.workers} processes"

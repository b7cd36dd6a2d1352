"""``engine = "auto"``: engine, width and threads by trials as long as they pay, remembered for this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedskew.data.dataset import Dataset
from fedskew.engine.choose import Option, choose, measured, next_work, usual_width
from fedskew.engine.sequential import Sequential
from fedskew.experiment.build import Assembly, assemble, with_engine
from fedskew.experiment.config import Auto, Experiment
from fedskew.experiment.remembered import busy, cores, key_of, recall, remember
from fedskew.loop.federation import Federation
from fedskew.loop.round import start


@dataclass(frozen=True)
class Limits:
    """Up to how many threads there may be; threads that are given are not chosen."""

    threads: int
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
    threads = experiment.training.threads or (torch.get_num_threads() if jobs == 1 else max(1, cores() // jobs))
    if not isinstance(experiment.engine, Auto):
        return with_engine(experiment, experiment.engine, threads), None
    made = assembly or assemble(experiment, dataset)
    limits = Limits(threads, given=experiment.training.threads > 0)
    option, facts = chosen(made.federation, made.x0, experiment.evaluation.local_models, limits)
    return with_engine(experiment, option.engine, option.threads), facts


def chosen(fed: Federation, x0: Tensor, measure_local: bool, limits: Limits) -> tuple[Option, dict[str, Any]]:
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
    known = seconds == before
    if quiet and not known:
        remember(key, seconds)
    return best, told(best, seconds, known)


def told(option: Option, seconds: dict[str, float], known: bool) -> dict[str, Any]:
    """What a run notes of its choice."""
    rounds = {k: float(f"{v:.4g}") for k, v in seconds.items()}
    return {"name": option.name, "choice": option.label, "estimated_seconds_a_round": rounds, "remembered": known}

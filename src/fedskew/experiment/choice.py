"""``engine = "auto"``: a short trial chooses engine and threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedskew.data.dataset import Dataset
from fedskew.engine.choose import Option, choose, next_work
from fedskew.engine.sequential import Sequential
from fedskew.experiment.build import Assembly, assemble, with_engine
from fedskew.experiment.config import Auto, Experiment
from fedskew.experiment.machine import cores
from fedskew.loop.federation import Federation
from fedskew.loop.round import start


def settled(
    experiment: Experiment, dataset: Dataset, jobs: int = 1, assembly: Assembly | None = None
) -> tuple[Experiment, dict[str, Any] | None]:
    """The experiment with engine and threads filled in, for ``jobs`` runs side by side, and what a trial found, or None."""
    given = experiment.training.threads
    most = given or (torch.get_num_threads() if jobs == 1 else max(1, cores() // jobs))
    if not isinstance(experiment.engine, Auto):
        return with_engine(experiment, experiment.engine, most), None
    made = assembly or assemble(experiment, dataset)
    threads = [given] if given else sorted({1, most})
    option, facts = chosen(made.federation, made.x0, experiment.evaluation.local_models, threads)
    return with_engine(experiment, option.engine, option.threads), facts


def chosen(fed: Federation, x0: Tensor, measure_local: bool, threads: Sequence[int]) -> tuple[Option, dict[str, Any]]:
    """The fastest option for the federation's rounds, and what the run stores of the trial; without clients none is made."""
    work = next_work(fed, start(fed, x0), measure_local)
    option = Option(Sequential(), threads[-1])
    seconds = {option.label: 0.0}
    if work is not None:
        option, seconds = choose(fed, work, threads)
    rounded = {label: float(f"{value:.4g}") for label, value in seconds.items()}
    return option, {"name": option.name, "choice": option.label, "estimated_seconds_a_round": rounded}

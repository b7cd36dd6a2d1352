"""Plan experiments before anything is stored: check them, deal their rows, choose engine and threads."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedskew.core.component import plain
from fedskew.core.errors import require
from fedskew.core.machine import cores, launcher, slow_bf16
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.own import OwnData
from fedskew.engine.choose import EngineChoice, choose, next_work
from fedskew.engine.sequential import Sequential
from fedskew.execution.build import Assembly, assemble, check_clients, check_needs, device_of
from fedskew.execution.deal import dealt_rows, finished
from fedskew.experiment.combinations import suited
from fedskew.experiment.config import SETTINGS, Experiment
from fedskew.experiment.settings import Auto, DataSource
from fedskew.loop.federation import Federation
from fedskew.loop.round import start
from fedskew.skew.partition import Partition
from fedskew.store.records import ChosenEngine as Trial

PER_CORE = 8
"""Maximum number of processes for each core. Each process holds PyTorch and the data in memory."""


@dataclass
class Latest:
    """Loads data sets, and keeps the last one: consecutive runs mostly use the same data set."""

    source: str = ""
    dataset: Dataset | None = None

    def __call__(self, source: DataSource) -> Dataset:
        if self.dataset is None or repr(source) != self.source:
            self.source, self.dataset = repr(source), source.load()
        return self.dataset


@dataclass(frozen=True, eq=False)
class Plan:
    """A run that is ready to begin. Worker processes get only ``dealt``; they read the experiment from the run store."""

    experiment: Experiment
    dealt: Partition | None = None  # training rows of each client; None: dealt when the run begins
    trial: Trial | None = None
    assembly: Assembly | None = None  # only if the command has a single run
    notes: str = ""  # the data set's notes

    def assembled(self, dataset: Dataset) -> tuple[Assembly, Trial | None]:
        """Return the assembly to execute, and the engine trial if it happened here."""
        if self.assembly:
            return dataclasses.replace(self.assembly, experiment=self.experiment), None
        if self.experiment.training.threads:
            torch.set_num_threads(self.experiment.training.threads)
        return settle(assemble(self.experiment, dataset, dealt=self.dealt))


def prepare(experiments: Sequence[Experiment], dataset: Dataset | None, jobs: int) -> tuple[list[Plan], Dataset | None]:
    """Plan the runs. Return one plan for each experiment, and their common data set; None if they load different ones.

    ``dataset`` replaces the experiments' data set. For each name, a trial on the first experiment chooses the engine of all,
    for ``jobs`` runs at a time. Raises `BadInput` before anything is stored.
    """
    if dataset is not None:
        fingerprint_only = OwnData(fingerprint=dataset.fingerprint())
        experiments = [e.replace(dataset=fingerprint_only) for e in experiments]
    elif len({repr(e.dataset) for e in experiments}) == 1:
        dataset = experiments[0].dataset.load()
    load, dealt = Latest(), {}
    planned: list[Experiment] = []
    rows: list[Partition] = []
    for requested in experiments:
        drawn = dataset or load(requested.dataset)
        experiment = suited(requested, drawn)
        planned.append(experiment)
        check_needs(experiment)
        # methods with the same seed mostly have the same partition
        shares = experiment.clients, experiment.server_data, experiment.shared_data
        key = repr(experiment.dataset), experiment.skew, *shares
        if key not in dealt:
            dealt[key] = dealt_rows(experiment, drawn)
        rows.append(dealt[key])
        check_clients(experiment, len(finished(experiment, drawn, rows[-1])))
    first: dict[str, Plan] = {}
    plans = []
    for experiment, own_rows in zip(planned, rows, strict=True):
        if experiment.name not in first:
            drawn = dataset or load(experiment.dataset)
            assembly, trial = settle(assemble(experiment, drawn, dealt=own_rows), jobs)
            # several assemblies together may not fit into memory
            only = assembly if len(planned) == 1 else None
            first[experiment.name] = Plan(assembly.experiment, own_rows, trial, only, drawn.notes)
        like = first[experiment.name]
        engine, threads = like.experiment.engine, like.experiment.training.threads
        filled = experiment.replace(engine=engine, training__threads=threads)
        plans.append(dataclasses.replace(like, experiment=filled, dealt=own_rows))
    return plans, dataset


def remarks_on(plans: Iterable[Plan | None]) -> list[str]:
    """Return lines on these plans: the first note on a partition, and a precision in which this machine is slow."""
    ready, remarks = [plan for plan in plans if plan], list[str]()
    partitions = {id(plan.dealt): plan.dealt for plan in ready if plan.dealt}
    notes = [partition.note for partition in partitions.values() if partition.note]
    if notes:
        which = f"partition 1 of {len(notes)}" if len(set(notes)) > 1 else "partition"
        remarks.append(f"{which}: {notes[0]}")
    experiments = [plan.experiment for plan in ready]
    return [*remarks, *idle(experiments), *slow_precision(experiments)]


REJECTS = ("faults.share", "faults.attackers", "faults.longest")

IDLE = (
    ("evaluation.adapt_lr", "without", ("evaluation.adapt_steps", "clients.unseen")),
    ("faults.attempts", "without", ("faults.share",)),
    ("faults.fewest", "without", REJECTS),
    ("faults.kinds", "without", ("faults.share",)),
    ("faults.longest_ratio", "without", REJECTS),
    ("faults.strength", "without", ("faults.attackers",)),
    ("local.batch_size", "in training beside", ("system.batch_sizes",)),
    ("local.epochs", "in training beside", ("local.steps", "system.epochs")),
    ("shared_data.alpha", "without", ("shared_data.beta",)),
    ("system.drop_stragglers", "without", ("system.stragglers",)),
)
"""Options that have no effect without any of others, or beside one of them."""


def idle(experiments: Sequence[Experiment]) -> list[str]:
    """Return a line on each option that is no default and has no effect in any of these experiments."""
    return sorted(set.intersection(*map(idle_in, experiments))) if experiments else []


def idle_in(experiment: Experiment) -> set[str]:
    """Return a line on each option that is no default and has no effect."""
    changed = {
        f"{section}.{option}"
        for section, cls in SETTINGS.items()
        for option, value in plain(getattr(experiment, section)).items()
        if value != plain(cls()).get(option)
    }
    return {
        f"{option} has no effect {word} {' or '.join(others)}"
        for option, word, others in IDLE
        if option in changed and (word == "without") == changed.isdisjoint(others)
    }


def slow_precision(experiments: Iterable[Experiment]) -> list[str]:
    """Return a line if these experiments have a precision in which this machine is slow."""
    settings = [experiment.training for experiment in experiments]
    on_cpu = any(of.precision == "bf16" and device_of(of.device).type == "cpu" for of in settings)
    return [slow] if on_cpu and (slow := slow_bf16()) else []


def processes(jobs: int | None) -> int:
    """Return how many runs are executed at the same time: ``jobs``, or by default one for each core, under ``torchrun`` one.

    Raises `BadInput` for less than one process, and for more than this machine's memory probably holds.
    """
    if launcher()[1] > 1:
        require(jobs in (None, 1), "jobs: under torchrun runs go one after the other; leave it out")
        return 1
    count = cores() if jobs is None else jobs
    require(count >= 1, f"jobs must be at least 1, got {count}")
    most = PER_CORE * cores()
    require(
        count <= most,
        f"{count} processes at a time are too many for this machine; use at most {most}, {PER_CORE} for each core",
    )
    return count


def threads_of(jobs: int) -> int:
    """Return the most threads of a run if ``jobs`` run at a time. A single one takes PyTorch's number: OMP_NUM_THREADS counts."""
    return torch.get_num_threads() if jobs == 1 else max(1, cores() // jobs)


def settle(assembly: Assembly, jobs: int = 1) -> tuple[Assembly, Trial | None]:
    """Fill in engine and threads, for ``jobs`` runs at a time. Return the assembly, and the trial if ``auto`` needed one."""
    experiment, trial = assembly.experiment, None
    fixed = experiment.training.threads
    most = fixed or threads_of(jobs)
    if isinstance(experiment.engine, Auto):
        threads = [fixed] if fixed else sorted({1, most})
        option, trial = try_engines(assembly.federation, assembly.cold, threads)
    else:
        option = EngineChoice(experiment.engine, most)
    # the experiment's TOML then repeats the run exactly
    filled = experiment.replace(engine=option.engine, training__threads=option.threads)
    return dataclasses.replace(assembly, experiment=filled), trial


def try_engines(fed: Federation, x0: Tensor, threads: Sequence[int]) -> tuple[EngineChoice, Trial]:
    """Time the engines on the federation's next round; return the fastest option. Without clients nothing is timed."""
    work = next_work(fed, start(fed, x0))
    option = EngineChoice(Sequential(), threads[-1])
    seconds = {option.label: 0.0}
    if work is not None:
        option, seconds = choose(fed, work, threads)
    rounded = {label: float(f"{value:.4g}") for label, value in seconds.items()}
    return option, Trial(name=option.name, choice=option.label, estimated_seconds_a_round=rounded)

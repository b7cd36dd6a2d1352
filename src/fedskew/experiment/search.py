"""The search for one method's best setting: its space, its runs, and their scores."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from fedskew.core.component import parse, shown
from fedskew.core.errors import Diverged, require
from fedskew.data.dataset import Dataset
from fedskew.experiment.combinations import has_own_models, with_method
from fedskew.experiment.config import Experiment, from_table_of_sections
from fedskew.experiment.plan import Plan, prepare
from fedskew.experiment.run import Ended, Listener, Stop
from fedskew.experiment.runner import DONE, EndListener, execute_all, stored_runs, to_execute, worst_error
from fedskew.measure.registry import Measure, primary
from fedskew.store.runs import RunStore

Setting = dict[str, object]
"""Values by option, which is SECTION.OPTION or METHOD.OPTION."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The settings of a search.

    ``space`` holds values by option: SECTION.OPTION for every method, METHOD.OPTION for one. If it is empty, three learning
    rates are tried. With 0 ``trials``, every point of the grid is tried. Otherwise Optuna tries this many settings: numbers
    between the smallest and the largest on a logarithmic scale. It ends bad trials early. ``held_out`` is the share (0..1) of
    each client's rows to score on, if the experiment holds none out. ``by`` is "clients" to score the global model on the
    clients' rows, or "personal" to score personal models.
    """

    space: Mapping[str, tuple[object, ...]]
    seeds: tuple[int, ...] = (1000, 1001)
    trials: int = 0
    held_out: float = 0.2
    by: Literal["clients", "personal"] = "clients"

    def __post_init__(self) -> None:
        require(bool(self.seeds) and len(set(self.seeds)) == len(self.seeds), "tune: seeds must be different numbers")
        require(self.trials >= 0, f"tune: trials must be at least 0, got {self.trials}")
        require(0 < self.held_out < 1, f"tune: held_out must be above 0 and below 1, got {self.held_out}")


@dataclass(frozen=True)
class Tried:
    """A tried setting and its score: the primary metric, averaged over clients and seeds.

    The metric has a minus sign if lower values are better. The score is -inf if a run diverged or was pruned.
    """

    setting: Setting
    score: float
    seconds: float
    runs: tuple[int, ...]
    ended: Literal["finished", "diverged", "pruned"]


def at(base: Experiment, method: str, setting: Setting) -> Experiment:
    """Return the experiment with this method and setting. Its name is the method."""
    name, options = parse(method, "algorithm")
    own = {key.partition(".")[2]: value for key, value in setting.items() if key.partition(".")[0] == name}
    options |= own
    spec = f"{name}:{','.join(f'{key}={shown(value)}' for key, value in options.items())}" if own else method
    table = with_method(base, spec).table()
    for key, value in setting.items():
        section, _, option = key.partition(".")
        if section != name:
            require(
                isinstance(table.get(section), dict),
                f"tune: {key} is ambiguous, because there are several skews",
            )
            table[section][option] = value
    return from_table_of_sections({**table, "name": method}, "tune", trusted=True)


def words(setting: Setting) -> str:
    """Format a setting: ``solver.lr=0.1, fedprox.mu=1``."""
    return ", ".join(f"{key}={shown(value)}" for key, value in setting.items())


@dataclass(frozen=True)
class Work:
    """The tuning of one method: registers, executes and scores its runs."""

    store: RunStore
    base: Experiment
    method: str
    search: Search
    dataset: Dataset | None
    jobs: int
    listener: Listener
    ended: EndListener
    stop: Stop
    plans: dict[int, Plan] = field(default_factory=dict)  # of runs that have not begun

    def experiment(self, setting: Setting, seed: int) -> Experiment:
        made = at(self.base, self.method, setting).replace(training__seed=seed, clients__partition_seed=seed)
        return made.replace(name=f"{self.method} @ {words(setting)}") if setting else made

    def registered(self, settings: Sequence[Setting], seeds: Sequence[int]) -> dict[tuple[int, int], int]:
        """Return run numbers by (index of the setting, seed). Runs that the store does not have are added to it."""
        wanted = {(k, s): self.experiment(settings[k], s) for s in seeds for k in range(len(settings))}
        require(
            self.search.by == "clients" or all(map(personal, wanted.values())),
            f"tune: {self.method} trains no personal models; leave out --by personal",
        )
        setting_of = {experiment.hash(): settings[place[0]] for place, experiment in wanted.items()}

        def facts(experiment: Experiment) -> dict[str, object]:
            return {"tuning": {"method": self.method, "setting": setting_of[experiment.hash()], "by": self.search.by}}

        experiments = list(wanted.values())
        planned = to_execute(self.store, experiments, f"tune {self.method}", self.planned, facts)
        self.plans.update({run: plan for run, plan in planned.items() if plan})
        stored = stored_runs(self.store, experiments)
        return {place: stored[experiment.hash()].id for place, experiment in wanted.items()}

    def planned(self, experiments: Sequence[Experiment]) -> list[Plan]:
        """Plan the runs of new settings. Engines are tried once, since all have the same name until then."""
        plans, _ = prepare([e.replace(name=self.method) for e in experiments], self.dataset, self.jobs)
        for plan in plans:
            require(
                plan.dealt is None or plan.dealt.held_out is not None,
                f"tune: held_out {plan.experiment.clients.held_out} is too small to hold out a row of any client; increase it",
            )
        return [
            dataclasses.replace(plan, experiment=plan.experiment.replace(name=e.name))
            for plan, e in zip(plans, experiments, strict=True)
        ]

    def judged(self, setting: Setting, runs: Sequence[int]) -> Tried:
        """Score a setting by its runs."""
        statuses = [self.store.run(run).status for run in runs]
        seconds = self.seconds(runs)
        if "diverged" in statuses:
            return Tried(setting, -math.inf, seconds, tuple(runs), "diverged")
        if len(runs) < len(self.search.seeds) or statuses != ["finished"] * len(runs):
            return Tried(setting, -math.inf, seconds, tuple(runs), "pruned")
        curves = [self.curve(run) for run in runs]
        score = sum(curve[max(curve)] for curve in curves) / len(curves)
        return Tried(setting, self.sign * score, seconds, tuple(runs), "finished")

    @property
    def measure(self) -> Measure:
        """The measure of the primary metric on the test set, which says whether higher values are better."""
        return primary(self.base.task.primary)

    @property
    def sign(self) -> int:
        """-1 if lower values are better, else 1. A better setting always has a higher score."""
        return -1 if self.measure.better == "lower" else 1

    def curve(self, run: int) -> dict[int, float]:
        """Return the primary metric that the search scores, by round."""
        query = "SELECT round, value FROM measurements WHERE run=? AND split=? AND name=? ORDER BY round"
        return dict(self.store.query(query, (run, self.search.by, f"{self.measure.name}_mean")))

    def seconds(self, runs: Sequence[int]) -> float:
        marks = ",".join("?" * len(runs))
        query = f"SELECT total(value) FROM measurements WHERE run IN ({marks}) AND split='round' AND name='seconds'"
        return float(self.store.query(query, list(runs))[0][0])

    def execute(self, runs: Sequence[int], stop: Stop) -> None:
        """Execute the unfinished runs. A run that diverges does not stop the others."""
        unfinished = [run for run in runs if self.store.run(run).status not in DONE]
        results: list[Ended] = []
        if unfinished:
            planned = {run: self.plans.pop(run, None) for run in unfinished}
            results = execute_all(self.store, planned, self.dataset, self.jobs, self.listener, self.ended, stop)
        error = worst_error(results)
        if error and not isinstance(error, Diverged):
            raise error


def personal(experiment: Experiment) -> bool:
    """True if the clients have personal models."""
    return has_own_models(experiment) or experiment.evaluation.adapt_steps > 0


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)

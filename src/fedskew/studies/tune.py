"""Tune methods: find the setting with the best primary metric on the clients' held-out rows. Test rows are not used.

All runs are in the store, so a second call continues after the last stored run. Optuna, the optional extra ``tune``,
proposes settings and ends bad ones early.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Literal, TypeGuard

from msgspec import Meta

from fedskew.core.component import compact, literal, parse, split
from fedskew.core.errors import BadInput, Diverged, FedskewError, Interrupted, require
from fedskew.core.limits import NonNegativeInt, OpenShare
from fedskew.core.text import count
from fedskew.core.user_code import MARK
from fedskew.data import DATASETS
from fedskew.data.datasets.own import OwnData
from fedskew.execution.plan import Plan, prepare
from fedskew.execution.run import Stop
from fedskew.experiment.combinations import has_own_models, suited, with_method
from fedskew.experiment.config import COMPONENTS, SETTINGS, Experiment, from_table_of_sections
from fedskew.measure.registry import Measure, Measures
from fedskew.store.runs import RunRecord, RunStore
from fedskew.studies.runner import DONE, Executor, records_of, to_execute, worst_error

if TYPE_CHECKING:
    import optuna


Setting = dict[str, object]
"""Values by option, which is SECTION.OPTION or METHOD.OPTION."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The settings of a search.

    ``space`` holds values by option: SECTION.OPTION for every method, METHOD.OPTION for one. If it is empty, three learning
    rates are tried. With 0 ``trials``, every point of the grid is tried. Otherwise Optuna tries this many settings: numbers
    between the smallest and the largest on a logarithmic scale. It ends bad trials early. ``held_out`` is the share (0..1) of
    each client's rows to score on, if the experiment holds none out. ``by`` is "clients" to score the global model on the
    clients' rows, or "personal" to score personal models, the default for methods that train some.
    """

    space: Mapping[str, tuple[object, ...]]
    seeds: Annotated[tuple[int, ...], Meta(min_length=1)] = (1000, 1001)
    trials: NonNegativeInt = 0
    held_out: OpenShare = 0.2
    by: Literal["clients", "personal"] | None = None

    def __post_init__(self) -> None:
        require(len(set(self.seeds)) == len(self.seeds), "seeds must be different numbers")


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
    parts = [(*key.rpartition(".")[::2], value) for key, value in setting.items()]
    changes = {option: value for section, option, value in parts if section in names_of(method)}
    text = ",".join(f"{key}={compact(value)}" for key, value in (options | changes).items())
    table = with_method(base, f"{name}:{text}" if changes else method).table()
    for section, option, value in parts:
        if section not in names_of(method):
            if not isinstance(table.get(section), dict):
                raise BadInput(
                    f"tune: {section}.{option} is ambiguous, because the experiment has not exactly one {section}"
                )
            table[section][option] = value
    return from_table_of_sections({**table, "name": method}, "tune", trusted=True)


def names_of(method: str) -> tuple[str, ...]:
    """Return the names of a method in keys of the grid: of a class in a file also without the file, as in ``Mine.mu``."""
    name = parse(method, "algorithm")[0]
    return name, name.rpartition(MARK)[2]


def words(setting: Setting) -> str:
    """Format a setting: ``solver.lr=0.1, fedprox.mu=1``."""
    return ", ".join(f"{key}={compact(value)}" for key, value in setting.items())


@dataclass(frozen=True)
class Tuner:
    """The tuning of one method: registers, executes and scores its runs."""

    executor: Executor
    base: Experiment
    method: str
    search: Search

    @property
    def by(self) -> str:
        """Whose scores count, as in `Search`."""
        return self.search.by or ("personal" if has_own_models(at(self.base, self.method, {})) else "clients")

    def experiment(self, setting: Setting, seed: int) -> Experiment:
        experiment = at(self.base, self.method, setting).replace(training__seed=seed, clients__partition_seed=seed)
        return experiment.replace(name=f"{self.method} @ {words(setting)}") if setting else experiment

    def registered(self, settings: Sequence[Setting], seeds: Sequence[int]) -> dict[int, Plan | None]:
        """Register the runs that the store lacks; return those to execute, seed by seed."""
        setting_of = {(e := self.experiment(s, seed)).hash(): (e, s) for seed in seeds for s in settings}
        experiments = [experiment for experiment, _ in setting_of.values()]
        if self.by == "personal" and not all(map(personal, experiments)):
            raise BadInput(f"tune: {self.method} trains no personal models; leave out --by personal")

        def facts(experiment: Experiment) -> dict[str, object]:
            setting = setting_of[experiment.hash()][1]
            return {"tuning": {"method": self.method, "setting": setting, "by": self.by}}

        return to_execute(self.executor.store, experiments, f"tune {self.method}", self.planned, facts)

    def planned(self, experiments: Sequence[Experiment]) -> list[Plan]:
        """Plan the runs of new settings. Engines are tried once, since all have the same name until then."""
        same_name = [e.replace(name=self.method) for e in experiments]
        plans, _ = prepare(same_name, self.executor.dataset, self.executor.jobs)
        for plan in plans:
            if plan.dealt is not None and plan.dealt.held_out is None:
                raise BadInput(
                    f"tune: held_out {plan.experiment.clients.held_out} is too small to hold out a row of any client; increase it"
                )
        return [
            replace(plan, experiment=plan.experiment.replace(name=e.name))
            for plan, e in zip(plans, experiments, strict=True)
        ]

    def execute(self, runs: Mapping[int, Plan | None], stop: Stop) -> None:
        """Execute the runs. One that diverges does not stop the others."""
        error = worst_error(replace(self.executor, stop=stop).execute(runs))
        if error and not isinstance(error, Diverged):
            raise error

    def records(self, settings: Sequence[Setting], seeds: Sequence[int]) -> list[list[RunRecord]]:
        """Return the stored runs of each setting on these seeds. Their rows are read once."""
        stored = records_of(self.executor.store, [self.experiment(s, seed) for s in settings for seed in seeds])
        return [stored[at : at + len(seeds)] for at in range(0, len(stored), len(seeds))]

    def judged(self, setting: Setting, records: Sequence[RunRecord]) -> Tried:
        """Score a setting by its runs."""
        return judged(self.executor.store, self.base.measure, self.by, setting, records)


def judged(store: RunStore, measure: Measure, by: str, setting: Setting, records: Sequence[RunRecord]) -> Tried:
    """Score a setting by its runs, one for each tuning seed. ``by`` is as in `Search`."""
    runs, statuses = tuple(record.id for record in records), [record.status for record in records]
    seconds = sum(m.value for m in store.curves(runs, ["round/seconds"]))
    if "diverged" in statuses:
        return Tried(setting, -math.inf, seconds, runs, "diverged")
    if {*statuses} != {"finished"}:
        return Tried(setting, -math.inf, seconds, runs, "pruned")
    scores = [m.value for m in store.last(runs, [f"{by}/{measure.name}_mean"])]
    without = f"tune: {measure.title} is not defined on the held-out rows of any client"
    if len(scores) < len(runs):
        raise BadInput(f"{without} in {len(runs) - len(scores)} of {count(len(runs), 'run')}; increase held_out")
    return Tried(setting, measure.sign * fmean(scores), seconds, runs, "finished")


def personal(experiment: Experiment) -> bool:
    """True if the clients have personal models."""
    return has_own_models(experiment) or experiment.evaluation.adapt_steps > 0


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def by_optuna(tuner: Tuner, space: Mapping[str, tuple[object, ...]]) -> list[Tried]:
    """Try ``search.trials`` settings.

    The sampler has a fixed seed and gets the stored values of finished runs. A second call therefore proposes the same settings
    and continues after the last stored run.
    """
    try:
        import optuna
    except ImportError:
        raise BadInput("tune: trials need Optuna; pip install '.[tune]' in the clone, or leave out --trials") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler, pruner = optuna.samplers.TPESampler(seed=0), optuna.pruners.MedianPruner()
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    pruned = optuna.trial.TrialState.PRUNED
    tried: dict[str, Tried] = {}  # a setting that is proposed again is one setting
    for _ in range(tuner.search.trials):
        trial = study.ask()
        setting = {key: proposed(trial, key, values) for key, values in space.items()}
        now = try_setting(tuner, trial, setting)
        tried[words(setting)] = max(now, tried.get(words(setting), now), key=lambda t: t.score)
        finished = now.ended == "finished"
        study.tell(trial, now.score if finished else None, state=None if finished else pruned)
    return list(tried.values())


def proposed(trial: optuna.Trial, key: str, values: Sequence[object]) -> object:
    """Return Optuna's proposal for one option.

    If all values are numbers, it lies between the smallest and the largest, on a logarithmic scale; else it is one of them.
    """
    numbers = [value for value in values if is_number(value)]
    if not len(values) == len(numbers) > 1:
        return values[trial.suggest_categorical(key, list(range(len(values))))]
    if not min(numbers) > 0:
        raise BadInput(f"tune: {key} is tried on a logarithmic scale and needs values above 0, got {min(numbers)}")
    whole = [value for value in numbers if isinstance(value, int)]
    if len(whole) == len(numbers):
        return trial.suggest_int(key, min(whole), max(whole), log=True)
    return float(f"{trial.suggest_float(key, min(numbers), max(numbers), log=True):.4g}")


def try_setting(tuner: Tuner, trial: optuna.Trial, setting: Setting) -> Tried:
    """Run a setting on one seed after the other, until all are done, one diverges or the setting is pruned."""
    store, records = tuner.executor.store, []
    for number, seed in enumerate(tuner.search.seeds):
        runs = tuner.registered([setting], [seed])
        [[record]] = tuner.records([setting], [seed])
        behind = Behind(tuner, trial, record.id, number * tuner.base.training.rounds)
        if not behind() and runs:
            try:
                tuner.execute(runs, behind.or_stopped)
            except Interrupted:
                if tuner.executor.stop():
                    raise
        record = store.run(record.id)
        records.append(record)
        if behind.pruned and record.status not in DONE:
            store.update(record.id, status="interrupted", message=f"pruned after round {behind.reported}")
        if behind.pruned or record.status == "diverged":
            break
    return tuner.judged(setting, records)


class Behind:
    """Calling it reports new stored rounds of a run to Optuna, and returns True if the trial is pruned."""

    def __init__(self, tuner: Tuner, trial: optuna.Trial, run: int, offset: int) -> None:
        self.tuner, self.trial, self.run, self.offset = tuner, trial, run, offset
        self.reported = 0
        self.pruned = False

    def __call__(self) -> bool:
        store, measure = self.tuner.executor.store, self.tuner.base.measure
        curve = store.curves([self.run], [f"{self.tuner.by}/{measure.name}_mean"], after={self.run: self.reported})
        for measured in curve:
            if not self.pruned:
                self.reported = measured.round
                self.trial.report(measure.sign * measured.value, self.offset + measured.round)
                self.pruned = self.trial.should_prune()
        return self.pruned

    def or_stopped(self) -> bool:
        return self.tuner.executor.stop() or self()


FACTORS = (0.3, 1.0, 3.0)
"""Default grid: the experiment's learning rate times these factors."""


@dataclass(frozen=True)
class Tuned:
    """All settings of a method that were tried, in order."""

    method: str
    tried: tuple[Tried, ...]
    measure: Measure = field(default_factory=Measures().primary)  # of the scores
    space: Mapping[str, Sequence[object]] = field(default_factory=dict)  # values by option; else those tried

    def reached(self, tried: Tried) -> float:
        """Return the primary metric of a setting on held-out rows."""
        return self.measure.sign * tried.score

    @property
    def best(self) -> Tried:
        """The first setting with the highest score. Raises `FedskewError` if none finished."""
        best = max(self.tried, key=lambda t: t.score)
        if best.ended != "finished":
            raise FedskewError(f"tune {self.method}: no setting finished; try smaller learning rates")
        return best

    @property
    def failed(self) -> bool:
        """True if no setting finished."""
        return all(tried.ended != "finished" for tried in self.tried)

    @property
    def equal(self) -> list[Tried]:
        """The settings with the highest score: the best one, and those after it that are as good."""
        return [tried for tried in self.tried if tried.score == self.best.score]

    @property
    def edges(self) -> list[str]:
        """Options whose best values are the smallest or the largest of the grid. A wider grid may have a better value."""
        edges = []
        for key in self.best.setting:
            values = self.space.get(key, [t.setting[key] for t in self.tried])
            numbers = [value for value in values if is_number(value)]
            ends = {min(numbers, default=0), max(numbers, default=0)}
            if len(numbers) == len(values) and len(ends) > 1 and {t.setting[key] for t in self.equal} <= ends:
                edges.append(key)
        return edges

    @property
    def seconds(self) -> float:
        """The seconds of training of all settings."""
        return round(sum(t.seconds for t in self.tried), 3)

    def facts(self) -> dict[str, object]:
        """Return how the best setting was found. Runs at this setting store it as the fact ``tuned``."""
        candidates = [
            {"setting": words(t.setting), "ended": t.ended, "best": t is self.best}
            | ({"value": self.reached(t)} if t.ended == "finished" else {})
            for t in self.tried
        ]
        return {
            "setting": self.best.setting,
            "tried": len(self.tried),
            "seconds": self.seconds,
            "runs": [run for t in self.tried for run in t.runs],
            "candidates": candidates,
        }


def space_from(texts: Sequence[str]) -> dict[str, tuple[object, ...]]:
    """Parse texts such as ``solver.lr=0.03,0.1,0.3``; return values by key. Raises `BadInput` for other texts."""
    space = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not (equals and values and (key.count(".") == 1 or MARK in key)):
            raise BadInput(
                f"--grid: cannot read {text!r}; write SECTION.OPTION=VALUE,VALUE or METHOD.OPTION=VALUE,VALUE"
            )
        space[key] = tuple(literal(value) for value in split(values))
    return space


def space_of(search: Search, base: Experiment, method: str) -> dict[str, tuple[object, ...]]:
    """Return the part of the search space for this method; three learning rates if the space is empty."""
    if not search.space:
        return {"solver.lr": tuple(float(f"{base.solver.lr * factor:.6g}") for factor in FACTORS)}
    sections = {*names_of(method), *COMPONENTS, *SETTINGS}
    return {key: values for key, values in search.space.items() if key.rpartition(".")[0] in sections}


def check_space(search: Search, methods: Sequence[str]) -> None:
    """Raise `BadInput` for keys that are no option of a section or of these methods."""
    sections = {*COMPONENTS, *SETTINGS, *(name for method in methods for name in names_of(method))}
    for key in search.space:
        if key in ("training.seed", "clients.partition_seed"):
            raise BadInput(f"tune: seeds are not tuned; leave out {key}, or choose seeds with --tuning-seeds")
        if key.rpartition(".")[0] not in sections:
            raise BadInput(
                f"tune: {key} is not an option of a section or of these methods; write solver.lr or {min(methods)}.OPTION"
            )


def grid(space: Mapping[str, tuple[object, ...]]) -> list[Setting]:
    """Return every point of the grid; the last key varies fastest."""
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*space.values())]


def tune(executor: Executor, base: Experiment, method: str, search: Search) -> Tuned:
    """Try settings of one method on the tuning seeds. Stored runs are not executed again.

    Raises `BadInput` for a wrong setting, and `Interrupted` once the executor's ``stop`` returns True.
    """
    if executor.dataset is not None:
        data = executor.dataset
        base = suited(base.replace(dataset=OwnData(fingerprint=data.fingerprint())), data)
    elif base.default_task and type(base.dataset) not in DATASETS.values():
        base = suited(base, base.dataset.load())
    if base.clients.held_out == 0:
        base = base.replace(clients__held_out=search.held_out)
    tuner, space = Tuner(executor, base, method, search), space_of(search, base, method)
    if search.trials:
        return Tuned(method, tuple(by_optuna(tuner, space)), base.measure, space)
    settings = grid(space)
    tuner.execute(tuner.registered(settings, search.seeds), executor.stop)
    tried = tuple(map(tuner.judged, settings, tuner.records(settings, search.seeds)))
    return Tuned(method, tried, base.measure)


def check_seeds(seeds: Sequence[int], tuning_seeds: Iterable[int]) -> None:
    """Raise `BadInput` if a comparison would measure clients on the held-out rows that chose a setting."""
    common = sorted({*seeds} & {*tuning_seeds})
    require(not common, f"tune: seed {common[:1]} is also a seed of the comparison; choose other --tuning-seeds")


def tuned_methods(
    executor: Executor, base: Experiment, methods: Sequence[str], search: Search, seeds: Sequence[int] = ()
) -> dict[str, Tuned]:
    """Tune each method. A later comparison uses ``seeds``.

    Raises `BadInput` if a tuning seed is among ``seeds``, and for unknown keys.
    """
    check_seeds(seeds, search.seeds)
    check_space(search, methods)
    return {method: tune(executor, base, method, search) for method in methods}


def tuning_partition_note(store: RunStore, tuned: Mapping[str, Tuned]) -> str:
    """Return the note on the partition of the first tuned run, as a line; empty if there is none."""
    run = next(iter(tuned.values())).tried[0].runs[0]
    note = store.run(run).facts.get("partition", {}).get("note", "")
    return f"partition: {note}" if note else ""


def at_best(base: Experiment, tuned: Mapping[str, Tuned], planned: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments of a comparison, each with the best setting of its method."""
    return [
        at(base, e.name, tuned[e.name].best.setting).replace(
            training__seed=e.training.seed, clients__partition_seed=e.clients.partition_seed
        )
        for e in planned
    ]

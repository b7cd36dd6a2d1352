"""The arms of a study, what fits into the minutes, and its runs. `Findings` in `fedskew.report.study` decides."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedskew.advice.advise import COMMON
from fedskew.core.component import parse
from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.text import count, title
from fedskew.data.dataset import Dataset
from fedskew.data.preprocessing import Number, Tabular, Text
from fedskew.data.splits import Redrawn
from fedskew.execution.build import assemble
from fedskew.experiment.combinations import COMBINATIONS
from fedskew.experiment.config import Experiment
from fedskew.report.study import HARMONISED
from fedskew.skew.partition import Pooled, Shuffled
from fedskew.slots import Everyone
from fedskew.store.runs import RunRecord, RunStore
from fedskew.store.test_rows import units_at_sites
from fedskew.studies.runner import Facts, no_facts, records_of
from fedskew.studies.tune import Search, Setting, Tuned, at, grid, judged, space_of, words

if TYPE_CHECKING:
    import pandas as pd

FIRST = "fedavg"
"""All arms are compared with FedAvg on the clients as they are."""

ALONE, POOLED, SHUFFLED = "local-only", "centralised", "FedAvg on shuffled rows"
COSTS = (FIRST, POOLED, SHUFFLED, ALONE)
"""The arms that show what federating and differences cost. All others are remedies."""

SHORT, FIXED = 3, 15.0
"""Rounds of the timed run, and seconds for what is no training: reading, the diagnosis, starting workers, the page."""

PASSES = 2_000
"""A timed round on pictures or signals trains on this many rows, each epoch counted; a whole one may take minutes."""

SLOWER = 1.4
"""An average arm takes this many times as long as FedAvg: some fine-tune, others send more."""

TUNING_SEEDS = (1000, 1001)
"""Seeds of tuning. Where each partition draws its own test rows, arms are tuned on each of them, with the first seed only."""

PLANS = ((1.0, 99), (0.7, 99), (0.7, 4), (0.4, 4), (0.4, 2), (0.2, 2))
"""From the longest plan to the shortest: share of the experiment's rounds, and number of remedies."""

FINE_TUNED = "fedavg-ft"
USUAL_REMEDIES = ("site-bias", "prior", FINE_TUNED, "site-scale", "combat")
REMEDIES = {
    "feature": ("site-scale", "site-bias", FINE_TUNED, "combat", "prior"),
    "concept": (FINE_TUNED, "site-bias", "prior", "site-scale", "combat"),
}
"""The remedies by the dominant face, the most promising first: columns change where they differ, else outputs. A model of its own
answers a rule of its own."""

PARTITIONS, MANY = (20, 10, 6), 5.0
"""Numbers of partitions. Only with more than this many minutes there are more than the fewest: six equal differences decide."""

USUAL, LONGEST = 2.0, 10.0
"""Minutes where none are given, and up to how many the shortest plan may then take."""

SMALL = 5_000
"""With fewer rows, each partition draws its own test rows, so that more rows are tested."""


@dataclass(frozen=True)
class Arm:
    """What a study compares with FedAvg: a method, or FedAvg with other settings. ``name`` is the name of its runs."""

    name: str
    method: str = FIRST
    changes: Mapping[str, Any] = field(default_factory=dict)

    def experiment(self, base: Experiment, setting: Setting | None = None, seed: int = 0, dealt: int = 0) -> Experiment:
        """Return one run. ``seed`` is the training seed, ``dealt`` the partition seed."""
        changed = at(base.replace(**self.changes), self.method, setting or {})
        return changed.replace(name=self.name, training__seed=seed, clients__partition_seed=dealt)


@dataclass(frozen=True)
class Timing:
    """Seconds of one run of FedAvg: of a round, and of everything around its rounds."""

    a_round: float
    a_run: float

    def of(self, runs: int, rounds: int, jobs: int) -> float:
        """Return the seconds of this number of runs, ``jobs`` at a time."""
        return runs * (self.a_run + rounds * self.a_round * SLOWER) / jobs


@dataclass(frozen=True)
class Schedule:
    """What fits into the minutes."""

    rounds: int
    partitions: int
    arms: tuple[Arm, ...]
    left_out: tuple[str, ...]  # remedies without time
    minutes: float
    seeds: int = 1  # training seeds on each partition
    diverged: tuple[str, ...] = ()  # arms without a setting that finished, in the tuning of some partition


def remedy(name: str) -> Arm:
    """Return fine-tuned FedAvg, or FedAvg with this harmonisation."""
    return Arm(name, name) if name == FINE_TUNED else Arm(f"{HARMONISED}{name}", f"fedavg-{name}")


def arms_of(base: Experiment, data: Dataset, diagnosis: Mapping[str, Any]) -> tuple[list[Arm], list[str]]:
    """Return the arms that can run on these data, the most promising remedies first, and why the others cannot."""
    near = [case["method"] for case in diagnosis["advice"]["nearest"]]
    excluded = {FIRST, *COMBINATIONS}
    methods = [name for name in dict.fromkeys([*near, *COMMON]) if parse(name, "algorithm")[0] not in excluded]
    arms = [
        Arm(FIRST),
        Arm(POOLED, changes={"skew": (*base.skew, Pooled()), "selection": Everyone()}),
        Arm(SHUFFLED, changes={"skew": (*base.skew, Shuffled())}),
        Arm(ALONE, "local-only"),
        *map(remedy, REMEDIES.get(diagnosis["dominant"], USUAL_REMEDIES)),
        *(Arm(method, method) for method in methods),
    ]
    able, reasons = list[Arm](), list[str]()
    for arm in arms:
        if arm.name in methods and len(able) > 1 and able[-2].name in methods:  # two are enough
            break
        try:
            experiment = arm.experiment(base)
            require(not able or experiment != arms[0].experiment(base).replace(name=arm.name), "FedAvg has it already")
            assemble(experiment, data)
            able.append(arm)
        except BadInput as error:
            require(arm.name != FIRST, str(error))
            reasons.append(f"{title(arm.name.partition(':')[0])} does not apply: {error}")
    return able, reasons


def schedule(
    arms: Sequence[Arm], each: Callable[[int], int], timing: Timing, rounds: int, minutes: float | None, jobs: int
) -> Schedule:
    """Choose rounds, partitions and remedies, so that all fits with one training seed on each partition.

    ``each`` is the number of an arm's tuning runs for a number of partitions. Without ``minutes`` there are `USUAL` ones, and more
    if the shortest plan needs them. Raises `BadInput` if it does not fit.
    """
    costs, remedies = ([arm for arm in arms if (arm.name in COSTS) is cost] for cost in (True, False))
    most = minutes or USUAL
    for share, number in PLANS:
        for partitions in PARTITIONS if most > MANY else PARTITIONS[-1:]:
            fitting, fewer = (*costs, *remedies[:number]), max(1, round(share * rounds))
            needed = FIXED + timing.of(len(fitting) * (each(partitions) + partitions), fewer, jobs)
            plan = Schedule(fewer, partitions, fitting, tuple(arm.name for arm in remedies[number:]), most)
            if needed <= 60 * most:
                return plan
    if minutes is None and needed <= 60 * LONGEST:
        return replace(plan, minutes=math.ceil(needed / 60))
    raise BadInput(
        f"study: the shortest plan takes about {needed / 60:.1f} minutes ({count(len(fitting), 'arm')}, {count(fewer, 'round')}, "
        f"{partitions} partitions); write --minutes {math.ceil(needed / 60)}, a smaller --model, fewer rows or fewer "
        f"--rounds than {rounds}"
    )


Complete = Callable[[Sequence[Experiment], Dataset | None, str, Facts], int]
"""Executes the experiments that the store lacks on these rows (None: each run loads its own), with a label and facts.

Returns how many there were.
"""


@dataclass(frozen=True)
class Study:
    """The runs of a study. A second call with the same settings finds them in the store, and continues."""

    store: RunStore
    base: Experiment
    rows: Dataset | None  # None: each run loads its own
    execute: Complete

    @property
    def settings(self) -> list[Setting]:
        """What is tried for every arm: three learning rates."""
        return grid(space_of(Search(space={}), self.base, FIRST))

    @property
    def nested(self) -> bool:
        """True if each partition draws its own test rows. Arms are then tuned on each partition's other rows."""
        source = self.base.dataset
        redrawn = isinstance(source, Redrawn) and source.redraw and not source.fold
        return redrawn and self.rows is not None and len(self.rows.y) + len(self.rows.y_test) < SMALL

    def split(self, base: Experiment, dealt: int) -> Experiment:
        """Return the base with the test rows of a partition."""
        return base.replace(dataset=replace(cast(Any, base.dataset), split_seed=dealt)) if self.nested else base

    def tunings(self, partitions: int) -> int:
        """Return the number of tuning runs of an arm."""
        return len(self.settings) * (partitions if self.nested else len(TUNING_SEEDS))

    def complete(self, experiments: Sequence[Experiment], label: str, facts: Facts = no_facts) -> list[RunRecord]:
        """Execute what the store lacks; return all runs. The first notes the seconds of a run."""
        began, rows = time.perf_counter(), None if self.nested else self.rows
        number = self.execute(experiments, rows, label, facts)
        seconds, records = time.perf_counter() - began, records_of(self.store, experiments, rows)
        if number:
            self.store.add_facts(records[0].id, {"pace": seconds / number})
            records[0] = self.store.run(records[0].id)
        return records

    def tuned(self, plan: Schedule) -> tuple[list[dict[str, Tuned]], Schedule]:
        """Try the settings of all arms. Return for each partition the tuned arms by name, and the plan of the comparison.

        If the rest of its minutes is enough at the pace of the tuning, there are two training seeds on each partition. A process
        that was killed before it noted the pace leaves one.
        """
        base, nested = self.base.replace(training__rounds=plan.rounds), self.nested
        splits, seeds = range(plan.partitions if nested else 1), TUNING_SEEDS[:1] if nested else TUNING_SEEDS
        trials, facts = list[Experiment](), dict[str, dict[str, object]]()
        for dealt, arm, setting, seed in product(splits, plan.arms, self.settings, seeds):
            trial = replace(arm, name=f"{arm.name} @ {words(setting)}")
            facts[trial.name] = {"tuning": {"method": arm.name, "setting": setting}}
            trials.append(trial.experiment(self.split(base, dealt), setting, seed, seed + dealt))
        records = self.complete(trials, "study: tuning", lambda e: facts[e.name])
        needed = FIXED + records[0].facts.get("pace", math.inf) * (len(records) + 2 * plan.partitions * len(plan.arms))
        twice = needed <= 60 * plan.minutes
        rest = iter(records)
        tuned = [{arm.name: self.best(arm, rest, len(seeds)) for arm in plan.arms} for _ in splits]
        failed = {arm.method for of_split in tuned for arm in of_split.values() if arm.failed} - {FIRST}
        arms = tuple(arm for arm in plan.arms if arm.name not in failed)
        plan = replace(plan, arms=arms, seeds=1 + twice, diverged=tuple(sorted(failed)))
        return tuned if nested else tuned * plan.partitions, plan

    def best(self, arm: Arm, records: Iterator[RunRecord], seeds: int) -> Tuned:
        """Score the settings of an arm by the next ``records``, by personal models if it has them."""
        tried = [(setting, list(islice(records, seeds))) for setting in self.settings]
        measure, runs = self.base.measure, [record.id for _, of_setting in tried for record in of_setting]
        by = "personal" if self.store.last(runs, [f"personal/{measure.name}_mean"]) else "clients"
        return Tuned(arm.name, tuple(judged(self.store, measure, by, *each) for each in tried), measure)

    def compared(self, plan: Schedule, tuned: Sequence[Mapping[str, Tuned]]) -> list[RunRecord]:
        """Execute all arms at the best settings of each partition, each training seed on each partition."""
        base = self.base.replace(training__rounds=plan.rounds)

        def facts(experiment: Experiment) -> dict[str, object]:
            of_split = tuned[experiment.clients.partition_seed][experiment.name]
            return {"tuned": {**of_split.facts(), "nested": self.nested}}

        experiments = [
            arm.experiment(self.split(base, dealt), of_split[arm.name].best.setting, seed, dealt)
            for dealt, of_split in enumerate(tuned)
            for seed in range(plan.seeds)
            for arm in plan.arms
        ]
        return self.complete(experiments, "study: comparing", facts)

    def final(self, plan: Schedule, arm: Arm, setting: Setting, expected: Mapping[str, object]) -> RunRecord:
        """Train an arm on all rows, for use. The run stores what the study ``expected`` of it.

        Where the test rows are drawn from the rows, it trains on them, too. Numbers on rows that it has trained on are removed.
        """
        source = self.base.dataset
        drawn = isinstance(source, Redrawn) and not getattr(source, "test", "")
        whole = replace(cast(Any, source), whole=True) if drawn else source
        base = self.base.replace(training__rounds=plan.rounds, dataset=whole, clients__held_out=0.0)
        run = replace(arm, name=f"{arm.name}, all rows").experiment(base, setting)
        rows = None if drawn else self.rows
        facts = {"final": {**expected, "rows": "all rows" if drawn else "all training rows"}}
        [record] = replace(self, rows=rows).complete([run], "study: training on all rows", lambda _: facts)
        if drawn:
            self.store.forget_models(record.id)
        return record


FEW = 6
"""A column of numbers with more values than this is cut into thirds."""


def group_names(values: "pd.Series[Any]", time: Callable[..., str] | None) -> "pd.Series[Any]":
    """Return the group of each row: its value, or the third of a column of numbers with more than `FEW` values.

    A third has the smallest and the largest number of its rows in its name. Equal numbers are in one third, so that one may be
    larger than the others. ``time`` formats the numbers of a column of times.
    """
    if values.dtype.kind != "f":
        return values.replace("", None)
    decimals = max(7 - math.ceil(math.log10(np.fmax(values.abs().max(), 1e-300))), 0)  # as float32 has
    values = values.round(decimals) + 0.0  # no -0
    few = values.nunique() <= FEW
    third = values if few else (values.rank(method="min") - 1) * 3 // values.count()
    ends = values.groupby(third).agg(["min", "max"])
    shown = time or (lambda *numbers: " to ".join(f"{number:.9g}" for number in numbers))
    return third.map({at: shown(*dict.fromkeys(each)) for at, *each in ends.itertuples()})


def groups_of(splits: Sequence[Dataset], columns: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Return the ids under which the store has the test rows of each group, by the group's name.

    Groups are the values, or thirds, of ``columns``. Empty if the sites of test rows are unknown. A column in which rows of one id
    differ has no groups. Raises `BadInput` for an unknown column.
    """
    import pandas as pd

    frames, times = list[pd.DataFrame](), dict[str, Callable[..., str]]()
    for data in splits:
        if isinstance(data.preprocessing, Tabular):
            decoded = [*data.preprocessing.parts(data.x_test)]
            times |= {part.name: part.shown for part, _ in decoded if isinstance(part, Number) and part.time}
            parts = {part.name: part.decode(x) for part, x in decoded if not isinstance(part, Text)}
        else:
            parts = {name: data.x_test[:, at] for at, name in enumerate(data.columns)}
        for name in columns:
            require(name in parts, f"study: by: there is no column {name!r}; {suggestion(name, parts)}")
        if data.groups is None or data.groups_test is None:
            return {}
        names = [str(data.group_names[g] if data.group_names else g) if g >= 0 else "" for g in data.groups_test]
        units = np.arange(len(names)) if data.test_units is None else data.test_units
        ids = units_at_sites(names, units, len(np.unique(data.groups)))
        frames.append(pd.DataFrame({name: parts[name] for name in columns}, index=ids)[data.groups_test >= 0])
    rows, groups = pd.concat(frames), dict[str, NDArray[np.int64]]()
    rows = rows[~rows.index.duplicated()]
    for name in columns:
        if any((frame.groupby(level=0)[name].nunique(dropna=False) > 1).any() for frame in frames):
            continue
        group = group_names(rows[name], times.get(name))
        by_group = rows.sort_values(name).groupby(group, sort=False)
        groups |= {f"{name} {text}": of.index.to_numpy() for text, of in by_group}
    return groups

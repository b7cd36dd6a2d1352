"""Tune methods: find the setting with the best primary metric on the clients' held-out rows. Test rows are not used.

All runs are in the store, so a second call continues after the last stored run.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from fedskew.core.component import literal, parse, split
from fedskew.core.errors import FedskewError, require
from fedskew.data import DATASETS
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.own import Own
from fedskew.experiment.config import COMPONENTS, SETTINGS, Experiment
from fedskew.experiment.given import suited
from fedskew.experiment.run import Listener, Stop
from fedskew.experiment.runner import EndListener
from fedskew.experiment.search import Search, Setting, Tried, Work, at, is_number, words
from fedskew.experiment.trials import by_optuna
from fedskew.measure.registry import PRIMARY, Measure, primary
from fedskew.store.runs import RunStore

FACTORS = (0.3, 1.0, 3.0)
"""Default grid: the experiment's learning rate times these factors."""


class Facts(TypedDict):
    """How the best setting was found. Runs at this setting store it as the fact ``tuned``."""

    setting: Setting
    tried: int
    seconds: float
    runs: list[int]
    candidates: list[
        dict[str, object]
    ]  # every setting, how it ended, its value on held-out rows, whether it was chosen


@dataclass(frozen=True)
class Tuned:
    """All settings of a method that were tried, in order."""

    method: str
    tried: tuple[Tried, ...]
    primary: str = PRIMARY  # the metric of the scores

    @property
    def measure(self) -> Measure:
        """The measure of the scores."""
        return primary(self.primary)

    def reached(self, tried: Tried) -> float:
        """Return the primary metric of a setting on held-out rows."""
        return -tried.score if self.measure.better == "lower" else tried.score

    @property
    def best(self) -> Tried:
        """The first setting with the highest score. Raises `FedskewError` if none finished."""
        best = max(self.tried, key=lambda t: t.score)
        if best.ended != "finished":
            raise FedskewError(f"tune {self.method}: no setting finished; try smaller learning rates")
        return best

    @property
    def edges(self) -> list[str]:
        """Options whose best value is the smallest or the largest one tried. A wider grid may have a better value."""
        edges = []
        for key, best in self.best.setting.items():
            tried = {value for t in self.tried if is_number(value := t.setting[key])}
            if self.numeric(key) and best in (min(tried), max(tried)):
                edges.append(key)
        return edges

    def numeric(self, key: str) -> bool:
        return all(is_number(t.setting[key]) for t in self.tried) and len({t.setting[key] for t in self.tried}) > 1

    def facts(self) -> Facts:
        """Return how the best setting was found."""
        runs = [run for t in self.tried for run in t.runs]
        seconds = round(sum(t.seconds for t in self.tried), 3)
        candidates = [
            {"setting": words(t.setting), "ended": t.ended, "best": t is self.best}
            | ({"value": self.reached(t)} if t.ended == "finished" else {})
            for t in self.tried
        ]
        return {
            "setting": self.best.setting,
            "tried": len(self.tried),
            "seconds": seconds,
            "runs": runs,
            "candidates": candidates,
        }


def space_from(texts: Sequence[str]) -> dict[str, tuple[object, ...]]:
    """Parse texts such as ``solver.lr=0.03,0.1,0.3``; return values by key. Raises `BadInput` for other texts."""
    space = {}
    for text in texts:
        key, equals, values = text.partition("=")
        require(
            bool(equals) and key.count(".") == 1 and bool(values),
            f"--grid: cannot read {text!r}; write SECTION.OPTION=VALUE,VALUE or METHOD.OPTION=VALUE,VALUE",
        )
        space[key] = tuple(literal(value) for value in split(values))
    return space


def space_of(search: Search, base: Experiment, method: str) -> dict[str, tuple[object, ...]]:
    """Return the part of the search space for this method; three learning rates if the space is empty."""
    if not search.space:
        return {"solver.lr": tuple(float(f"{base.solver.lr * factor:.6g}") for factor in FACTORS)}
    name = parse(method, "algorithm")[0]
    sections = {name, *COMPONENTS, *SETTINGS}
    return {key: values for key, values in search.space.items() if key.partition(".")[0] in sections}


def check_space(search: Search, methods: Sequence[str]) -> None:
    """Raise `BadInput` for keys that are no option of a section or of these methods."""
    known = {*COMPONENTS, *SETTINGS, *(parse(method, "algorithm")[0] for method in methods)}
    for key in search.space:
        require(
            key not in ("training.seed", "clients.partition_seed"),
            f"tune: seeds are not tuned; leave out {key}, or choose seeds with --tuning-seeds",
        )
        require(
            key.partition(".")[0] in known,
            f"tune: {key} is not an option of a section or of these methods; write solver.lr or {min(methods)}.OPTION",
        )


def grid(space: Mapping[str, tuple[object, ...]]) -> list[Setting]:
    """Return every point of the grid; the last key varies fastest."""
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*space.values())]


def tune(
    store: RunStore,
    base: Experiment,
    method: str,
    search: Search,
    *,
    dataset: Dataset | None = None,
    jobs: int = 1,
    listener: Listener = lambda _: None,
    ended: EndListener = lambda _: None,
    stop: Stop = lambda: False,
) -> Tuned:
    """Try settings of one method on the tuning seeds. Stored runs are not executed again.

    Raises `BadInput` for a wrong setting, and `Interrupted` once ``stop`` returns True.
    """
    if dataset is not None:
        base = suited(base.replace(dataset=Own(fingerprint=dataset.fingerprint())), dataset)
    elif base.default_task and type(base.dataset) not in DATASETS.values():
        base = suited(base, base.dataset.load())
    if base.clients.held_out == 0:
        base = base.replace(clients__held_out=search.held_out)
    work = Work(store, base, method, search, dataset, jobs, listener, ended, stop)
    space = space_of(search, base, method)
    if search.trials:
        return Tuned(method, tuple(by_optuna(work, space)), base.task.primary)
    settings = grid(space)
    runs = work.registered(settings, search.seeds)
    work.execute(list(runs.values()), stop)
    tried = tuple(work.judged(s, [runs[k, seed] for seed in search.seeds]) for k, s in enumerate(settings))
    return Tuned(method, tried, base.task.primary)


def tuned_methods(
    methods: Sequence[str], seeds: Sequence[int], search: Search, one: Callable[[str], Tuned]
) -> dict[str, Tuned]:
    """Tune each method with ``one(method)``. The later comparison uses ``seeds``.

    Raises `BadInput` if a tuning seed is among ``seeds``, and for unknown keys.
    """
    common = sorted({*seeds} & {*search.seeds})
    require(not common, f"tune: seed {common[:1]} is also a seed of the comparison; choose other --tuning-seeds")
    check_space(search, methods)
    return {method: one(method) for method in methods}


def partition_note(store: RunStore, found: Mapping[str, Tuned]) -> str:
    """Return the note on the partition of the first tuned run, as a line; empty if there is none."""
    run = next(iter(found.values())).tried[0].runs[0]
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

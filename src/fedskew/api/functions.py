"""The commands as Python functions. Both have the same keywords, which `fedskew.experiment.keywords` lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from fedskew.api.caller import Caller, ShowProgress, Started, caller_of
from fedskew.api.execute import execute, start
from fedskew.api.runs import Runs, plainly
from fedskew.core.component import brief, build, from_table, of_numpy, parse
from fedskew.core.errors import BadInput, Interrupted, require
from fedskew.core.user_code import name_of
from fedskew.data.dataset import Dataset
from fedskew.execution.deal import dealt_rows
from fedskew.execution.plan import idle, processes
from fedskew.execution.run import Ended, Listener, Progress
from fedskew.experiment import config
from fedskew.experiment.combinations import experiment_from, with_method
from fedskew.experiment.config import COMPONENTS, Experiment
from fedskew.experiment.keywords import (
    DEFAULT_METHODS,
    KEYWORDS,
    CompareKeywords,
    ComparisonOptions,
    Settings,
    TuneKeywords,
    TuningOptions,
    declared,
    take,
)
from fedskew.report.experiments import display_name
from fedskew.report.progress import Board, Part
from fedskew.report.sinks import sinks_from
from fedskew.skew.partition import Partition
from fedskew.store.runs import RunStore
from fedskew.studies.compare import cross, seeds_from, with_baselines
from fedskew.studies.progress import stop_on_signal, tuning_text
from fedskew.studies.runner import Executor, extend, to_resume, unfinished
from fedskew.studies.tune import Search, tuned_methods, tuning_partition_note

if TYPE_CHECKING:
    import pandas as pd

    from fedskew.api.answers import Checked, Dealt, Tuning


def load(dataset: object) -> Dataset:
    """Load a data set by name and options: ``"uci-har"``, ``"digits:test_fraction=0.3"``."""
    return build("dataset", COMPONENTS["dataset"], dataset).load()


def partition(dataset: Dataset, how: object, clients: int = 10, seed: int = 0, held_out: float = 0.0) -> Partition:
    """Deal the rows to clients. ``how`` is a skew such as ``"label-dirichlet:alpha=0.1"``, or a list of skews."""
    require(isinstance(dataset, Dataset), f"partition: give a fedskew.Dataset, not {brief(dataset)}")
    experiment = Experiment(skew=how, clients__number=clients, partition_seed=seed, held_out=held_out)
    return dealt_rows(experiment, dataset)


def from_toml(source: str | Path) -> Experiment:
    """Read an experiment from a TOML file (a path that ends in .toml) or from TOML text."""
    if isinstance(source, str) and not source.endswith(".toml"):
        return config.from_toml(source)
    return config.read(Path(source))


F = TypeVar("F", bound=Callable[..., object])


def listing(options: type) -> Callable[[F], F]:
    """Decorator: add the keywords that a `TypedDict` declares to the function's docstring."""

    def described(function: F) -> F:
        lines = [f"    {name}: {keyword.help}" for name, keyword in declared(options).items()]
        more = "    section__option: any other setting, as in evaluation__every=1"
        function.__doc__ = f"{function.__doc__}\n    Keywords:\n\n" + "\n".join([*lines, more]) + "\n"
        return function

    return described


@listing(Settings)
@plainly
def run(
    experiment: Experiment | None = None,
    *,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    progress: ShowProgress | Caller = True,
    listener: Listener = lambda _: None,
    to: str | Sequence[str] = (),
    **keywords: Unpack[Settings],
) -> Runs:
    """Run one experiment and store its measurements in the folder ``runs``.

    The experiment is an `Experiment`, keywords, or both: ``run(dataset="digits", algorithm="scaffold", rounds=20)``. For your own
    arrays, make a `Dataset` and give it as ``data`` or ``dataset``. ``to`` sends each round to a tracker, or to several, as
    ``fedskew watch --to`` does: ``to="wandb:project=p"``, ``to=["tensorboard", "mlflow"]``.
    Raises `fedskew.FedskewError` with a one-line message.
    """
    caller, sinks = caller_of(progress), sinks_from(to, "to")
    planned, data = asked("run", experiment, data, keywords, runs, caller.warn)
    return execute(start([planned], data, runs, comparison=False), caller, listener, sinks=sinks)


@listing(CompareKeywords)
@plainly
def compare(
    experiment: Experiment | Sequence[object] | None = None,
    algorithms: Sequence[object] = (),
    *,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    jobs: int | None = None,
    progress: ShowProgress | Caller = True,
    listener: Listener = lambda _: None,
    to: str | Sequence[str] = (),
    **keywords: Unpack[CompareKeywords],
) -> Runs:
    """Run several methods on the same partitions and seeds: ``compare(["fedavg", "scaffold"], dataset="heart", seeds=5)``.

    ``seeds`` is a number, 5 by default, or a list. ``folds=5`` is cross-validation: each seed tests another fold of the rows, and
    ``seeds`` is the number of repetitions, 1 by default. ``folds="4:clients"`` leaves out whole clients. ``partitions=10, seeds=2``
    trains two seeds on each of ten partitions, which separates their variances. With ``tuned=True`` every method is
    tuned first, as `tune` does, and the best settings are compared.

    The first argument may also be an `Experiment`, followed by the methods. Without methods it runs the default ones.
    ``jobs`` is the number of processes, by default one for each core. If a method gives each client its own model, fine-tuned
    FedAvg and ``local-only`` are added, unless ``baselines`` is False. `run` explains the other keywords.
    """
    caller, sinks = caller_of(progress), sinks_from(to, "to")
    base = experiment if isinstance(experiment, Experiment) else None
    if not isinstance(experiment, Experiment | None):
        require(not algorithms, "compare: the methods are named twice")
        algorithms = experiment
    settings = cast(dict[str, Any], keywords)
    options, tuning = take(settings, ComparisonOptions), take(settings, TuningOptions)
    base, data = asked("compare", base, data, settings, runs, caller.warn)
    methods = methods_of(base, algorithms, options.get("baselines", True), caller)
    tuned, folds = options.get("tuned"), str(options.get("folds", ""))
    if tuned and folds:
        raise BadInput("compare: tuning would use rows that the folds test on; leave out tuned or folds")
    if data is not None and folds:
        raise BadInput("compare: folds need rows in a file; save them as a table, dataset='table:path=...'")
    seeds = seeds_from(options.get("seeds"), base.training.seed, folds)
    partitions = options.get("partitions")
    partitions = [] if partitions is None else seeds_from(partitions, what="partitions")
    planned = cross(base, methods, seeds, folds, partitions)
    if not tuned:
        require(not tuning, f"compare: {next(iter(tuning), '')} has no effect without tuned; add it, or leave both out")
        return execute(start(planned, data, runs, jobs), caller, listener, sinks=sinks)
    names = list(dict.fromkeys(experiment.name for experiment in planned))
    best = best_settings(base, names, search_of(tuning), RunStore(runs), data, jobs, caller, [*seeds, *partitions])
    caller.tuned(best.methods)
    return execute(best.start(seeds, jobs, partitions), caller, listener, sinks=sinks)


def asked(
    verb: str,
    experiment: Experiment | None,
    data: Dataset | None,
    keywords: Mapping[str, object],
    runs: str | Path,
    warn: Callable[[str], None],
) -> tuple[Experiment, Dataset | None]:
    """Return the experiment of a call, and its data if the caller gave a `Dataset`. ``runs`` is the folder of the run store."""
    if not isinstance(experiment, Experiment | None):
        raise BadInput(f"{verb}: give an Experiment, or keywords such as dataset='digits', not {brief(experiment)}")
    settings = dict(keywords)
    if isinstance(settings.get("dataset"), Dataset) or hasattr(settings.get("dataset"), "to_parquet"):
        require(data is None, f"{verb}: the data are given twice; write data= or dataset=")
        data = cast(Dataset, settings.pop("dataset"))
    if not isinstance(data, Dataset | None):
        raise BadInput(
            f"{verb}: data must be a fedskew.Dataset, got {type(data).__name__}; for a file, or a folder with a file for each "
            "client, write dataset='table:path=FOLDER,label=COLUMN'; for a data frame fs.table(FRAME, label=COLUMN, client=COLUMN);"
            " for arrays fs.Dataset(x=..., y=..., x_test=..., y_test=...)"
        )
    experiment = experiment_from(experiment, settings, warn)
    if experiment.training.init:
        from fedskew.api.models import with_initial  # loads pandas

        experiment = with_initial(verb, experiment, runs, warn)
    return experiment, data


def methods_of(base: Experiment, algorithms: Sequence[object], baselines: bool, caller: Caller) -> Sequence[object]:
    """Return the methods of a comparison: the default ones if none are named, and baselines beside personal models."""
    if isinstance(algorithms, str) or not isinstance(algorithms, Sequence):
        raise BadInput(f"compare: write the methods as a list, [{brief(algorithms)}]")
    methods = algorithms or DEFAULT_METHODS
    for method in methods:
        with_method(base, method, caller.warn)  # for its lines: the plan of the comparison applies the methods
    if not baselines:
        return methods
    methods, line = with_baselines(base, methods)
    if line:
        caller.warn(f"{line} ({caller.without_baselines} leaves them out)")
    return methods


@plainly
def resume(
    which: str | int | Sequence[str | int] = "",
    *,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    jobs: int | None = None,
    progress: ShowProgress | Caller = True,
    trust: bool = False,
    rounds: int | None = None,
) -> Runs:
    """Continue interrupted runs: ``resume("c2")``, ``resume(7)``, by default the newest interrupted run or comparison.

    ``resume(7, rounds=50)`` continues a finished run up to 50 rounds. ``data`` is the `Dataset` with which the runs began, if you
    gave one.
    ``trust`` confirms code files that the runs name and that you have not run before.
    """
    caller, store = caller_of(progress), RunStore(runs)
    words = tuple(map(str, [which] if isinstance(which, str | int) else which)) if which else ()
    records = store.select(words) if words else unfinished(store)
    if rounds is not None:
        require(bool(words), "resume: name the runs that go on, as in `fedskew resume 7 --rounds 50`")
        Runs(store, tuple(record.id for record in records)).confirm(trust)
        extend(store, records, rounds, data)
        records = store.select(words)
    waiting = to_resume(store, records)
    every = Runs(store, tuple(record.id for record in records), data)
    if not waiting:
        return every
    Runs(store, tuple(waiting)).confirm(trust)
    newest = f"c{records[0].comparison}" if records[0].comparison else str(records[0].id)
    started = Started(every, dict.fromkeys(waiting), data, min(processes(jobs), len(waiting)), words or (newest,))
    return execute(started, caller)


@listing(TuneKeywords)
@plainly
def tune(
    algorithms: Sequence[str | type] = ("fedavg",),
    *,
    experiment: Experiment | None = None,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    jobs: int | None = None,
    progress: ShowProgress | Caller = True,
    **keywords: Unpack[TuneKeywords],
) -> Tuning:
    """Find each method's best setting on held-out rows of the clients: ``tune(["fedavg"], grid={"solver.lr": [0.03, 0.1]})``.

    A key of the ``grid`` is a keyword (``lr``) or SECTION.OPTION for all methods, or METHOD.OPTION for one method. Without a
    grid, three learning rates are tried.
    With ``trials``, Optuna proposes that many settings. The result's ``compare(seeds=5)`` compares the methods at their best.
    """
    caller, settings = caller_of(progress), cast(dict[str, Any], keywords)
    search = search_of(take(settings, TuningOptions))
    base, data = asked("tune", experiment, data, settings, runs, caller.warn)
    require(not isinstance(algorithms, str), f"tune: write the methods as a list, [{algorithms!r}]")
    methods = [name_of(method, "tune")[0] if isinstance(method, type) else method for method in algorithms]
    for line in idle([with_method(base, method, caller.warn) for method in methods]):
        caller.warn(line)
    store = RunStore(runs)
    tuning = best_settings(base, methods, search, store, data, jobs, caller)
    if line := tuning_partition_note(store, tuning.methods):
        caller.warn(line)
    return tuning


def search_of(options: Mapping[str, Any]) -> Search:
    """Return the search that the keywords of `tune` describe."""
    fields = {"seeds" if name == "tuning_seeds" else name: value for name, value in options.items() if name != "grid"}
    if "seeds" in fields:
        fields["seeds"] = tuple(map(of_numpy, fields["seeds"]))
    space = {setting_of(key): tuple(values) for key, values in options.get("grid", {}).items()}
    return from_table(Search, {"space": space, **fields}, "tune")


def best_settings(
    base: Experiment,
    methods: Sequence[str],
    search: Search,
    store: RunStore,
    data: Dataset | None,
    jobs: int | None,
    caller: Caller,
    seeds: Sequence[int] = (),
) -> Tuning:
    """Find the best setting of each method. None of the ``seeds`` of a later comparison may be a seed of the search."""
    from fedskew.api.answers import Tuning

    face = caller.face()

    def on_end(result: Ended) -> None:
        record = store.run(result.run)
        face.print(f"{display_name(record)}, seed {record.seed}: {record.status}", "dim")

    with stop_on_signal() as stopper, Board({"": Part("tuning", 0)}, face) as board:

        def on_progress(progress: Progress) -> None:
            board.advance("", 0, tuning_text(progress))

        executor = Executor(store, data, processes(jobs), on_progress, on_end, stopper)
        try:
            return Tuning(base, tuned_methods(executor, base, methods, search, seeds), data, store.folder)
        except Interrupted as error:
            raise Interrupted(f"{error}; everything finished is stored; {caller.same_call} continues") from None


@plainly
def check(component: object) -> Checked:
    """Check that a component keeps its promises: a method, data set, skew, model, or another one.

    ``component`` is a class, an object, ``"./mine.py::Mine"``, or a name with options.
    """
    from fedskew.api.answers import Checked
    from fedskew.experiment.components import check

    kind, promises = check(component)
    cls = component if isinstance(component, str | type) else type(component)
    name = str(getattr(cls, "__name__", cls))
    return Checked(name, kind, tuple(promises))


def setting_of(key: str) -> str:
    """Turn ``lr`` and ``solver__lr`` into ``solver.lr``."""
    sets = KEYWORDS[key].sets if key in KEYWORDS else ""
    return sets or (key if "." in key else key.replace("__", "."))


@plainly
def table(path: str | Path | pd.DataFrame, label: str, client: str = "", **options: object) -> Dataset:
    """Load a CSV, JSON lines, Parquet or Arrow file or folder, or a pandas data frame without its index.

    Without a column of clients, a skew deals the rows.
    """
    from fedskew.api.diagnose import as_file  # loads pandas

    with as_file(path, "table") as file:
        named = {"client": client} if client else {}
        return load({"name": "table", "path": str(file), "label": label, **named, **options})


@plainly
def clients(
    data: Dataset | str, skew: object = "natural", number: int = 10, seed: int = 0, held_out: float = 0.0
) -> Dealt:
    """Deal rows to clients; the result shows who holds what as a table and a figure. ``data`` is a `Dataset` or a name."""
    from fedskew.api.answers import Dealt

    rows = data if isinstance(data, Dataset) else load(data)
    require(not isinstance(skew, str) or bool(parse(skew, "skew")[0]), "clients: name a skew, such as 'iid'")
    return Dealt(rows, partition(rows, skew, number, seed, held_out))

"""The commands as Python functions. Both have the same keywords, which `fedskew.experiment.keywords` lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack, cast

from fedskew.api.execute import ShowProgress, carry_out, finish
from fedskew.api.runs import Opened, Runs, plainly
from fedskew.core.component import brief, build, parse
from fedskew.core.errors import BadInput, require
from fedskew.data.dataset import Dataset
from fedskew.execution.deal import dealt_by
from fedskew.execution.plan import prepare
from fedskew.execution.run import Listener, register
from fedskew.experiment import config
from fedskew.experiment.combinations import experiment_from
from fedskew.experiment.config import COMPONENTS, Experiment
from fedskew.experiment.keywords import DEFAULT_METHODS, KEYWORDS, Settings
from fedskew.report.console import say
from fedskew.report.progress import Board, Part, board_of_one, face_for
from fedskew.skew.compose import mixture, skews_of
from fedskew.skew.partition import Partition, deal
from fedskew.store.runs import RunStore
from fedskew.studies.compare import cross, seeds_from, with_baselines
from fedskew.studies.progress import tuning_text
from fedskew.studies.runner import to_resume, unfinished
from fedskew.studies.tune import Search, tuned_methods, tuning_partition_note
from fedskew.studies.tune import tune as tune_one

if TYPE_CHECKING:
    import pandas as pd

    from fedskew.api.answers import Checked, Dealt, Found, Tuning
    from fedskew.serving.export import Format
    from fedskew.serving.predict import TrainedModel
    from fedskew.studies.landscape import Kind, Landscape


def load(dataset: object) -> Dataset:
    """Load a data set by name and options: ``"uci-har"``, ``"digits:test_fraction=0.3"``."""
    loaded: Dataset = build("dataset", COMPONENTS["dataset"], dataset).load()
    return loaded


def partition(dataset: Dataset, how: object, clients: int = 10, seed: int = 0, held_out: float = 0.0) -> Partition:
    """Deal the rows to clients. ``how`` is a skew such as ``"label-dirichlet:alpha=0.1"``, or a list of skews."""
    require(isinstance(dataset, Dataset), f"partition: give a fedskew.Dataset, not {brief(dataset)}")
    skews = mixture(skews_of(how))
    settings = clients, seed, held_out, dataset.persons and dataset.persons[0]
    return deal(skews, dealt_by(skews, dataset), dataset.groups, *settings)


def from_toml(source: str | Path) -> Experiment:
    """Read an experiment from a TOML file (a path that ends in .toml) or from TOML text."""
    if isinstance(source, str) and not source.endswith(".toml"):
        return config.from_toml(source)
    return config.read(Path(source))


F = TypeVar("F", bound=Callable[..., object])


def listing(function: F) -> F:
    """Decorator: add the keywords of an experiment to the function's docstring."""
    lines = [f"    {one.name}: {one.help.replace('`fedskew list', '`fedskew list')}" for one in KEYWORDS.values()]
    more = "    section__option: any other setting, as in evaluation__every=1"
    function.__doc__ = f"{function.__doc__}\n    Keywords of the experiment:\n\n" + "\n".join([*lines, more]) + "\n"
    return function


@listing
@plainly
def run(
    experiment: Experiment | None = None,
    *,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    progress: ShowProgress = True,
    listener: Listener = lambda _: None,
    **keywords: Unpack[Settings],
) -> Runs:
    """Run one experiment and store its measurements in the folder ``runs``.

    The experiment is an `Experiment`, keywords, or both: ``run(dataset="digits", algorithm="scaffold", rounds=20)``. For your own
    arrays, make a `Dataset` and give it as ``data`` or ``dataset``. Raises `fedskew.FedskewError` with a one-line message.
    """
    made, data = asked("run", experiment, data, keywords)
    [plan], dataset = prepare([made], data, jobs=1)
    store = RunStore(runs)
    number = register(store, plan.experiment, plan.trial)
    return finish(Runs(store, (number,), data), {number: plan}, dataset, 1, progress, listener, str(number))


@listing
@plainly
def compare(
    experiment: Experiment | Sequence[object] | None = None,
    algorithms: Sequence[object] = (),
    *,
    seeds: int | Sequence[int] | None = None,
    folds: int | str = "",
    data: Dataset | None = None,
    runs: str | Path = "runs",
    jobs: int = 1,
    progress: ShowProgress = True,
    listener: Listener = lambda _: None,
    baselines: bool = True,
    **keywords: Unpack[Settings],
) -> Runs:
    """Run several methods on the same partitions and seeds: ``compare(["fedavg", "scaffold"], dataset="heart", seeds=5)``.

    ``seeds`` is a number, 5 by default, or a list. ``folds=5`` is cross-validation: each seed tests another fold of the rows, and
    ``seeds`` is the number of repetitions, 1 by default. ``folds="4:clients"`` leaves out whole clients.

    The first argument may also be an `Experiment`, followed by the methods. Without methods it runs the default ones.
    ``jobs`` is the number of processes. If a method gives each client its own model, fine-tuned FedAvg and ``local-only`` are
    added, unless ``baselines`` is False. `run` explains the other keywords.
    """
    base = experiment if isinstance(experiment, Experiment) else None
    if experiment is not None and base is None:
        require(not algorithms, "compare: the methods are named twice")
        algorithms = cast(Sequence[object], experiment)
    made, data = asked("compare", base, data, keywords)
    require(
        isinstance(algorithms, Sequence) and not isinstance(algorithms, str),
        f"compare: write the methods as a list, [{brief(algorithms)}]",
    )
    methods = algorithms or DEFAULT_METHODS
    if baselines:
        methods, line = with_baselines(made, methods)
        if line and progress:
            say(f"{line} (baselines=False leaves them out)", error=True)
    folds = str(folds)
    require(
        data is None or not folds, "compare: folds need rows in a file; save them as a table, dataset='table:path=...'"
    )
    planned = cross(made, methods, seeds_from(seeds, made.training.seed, folds), folds)
    return carry_out(planned, data, runs, jobs, progress, listener)


def asked(
    verb: str, experiment: Experiment | None, data: Dataset | None, keywords: Settings
) -> tuple[Experiment, Dataset | None]:
    """Return the experiment of a call, and its data if the caller gave a `Dataset`."""
    require(
        isinstance(experiment, Experiment | None),
        f"{verb}: give an Experiment, or keywords such as dataset='digits', not {brief(experiment)}",
    )
    named = keywords.get("dataset")
    if isinstance(named, Dataset) or hasattr(named, "to_parquet"):
        require(data is None, f"{verb}: the data are given twice; write data= or dataset=")
        data = cast(Dataset, keywords.pop("dataset"))
    require(
        isinstance(data, Dataset | None),
        f"{verb}: data must be a fedskew.Dataset, got {type(data).__name__}; for a file, or a folder with a file for each client, "
        "write dataset='table:path=FOLDER,label=COLUMN'; for a data frame fs.table(FRAME, label=COLUMN, client=COLUMN); for "
        "arrays fs.Dataset(x=..., y=..., x_test=..., y_test=...)",
    )
    return experiment_from(experiment, keywords), data


@plainly
def resume(
    which: str | int = "",
    *,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    jobs: int = 1,
    progress: ShowProgress = True,
    trust: bool = False,
) -> Runs:
    """Continue interrupted runs: ``resume("c2")``, ``resume(7)``, by default the newest interrupted run or comparison.

    ``data`` is the `Dataset` with which the runs began, if you gave one.

    ``trust`` confirms code files that the runs name and that you have not run before.
    """
    store = RunStore(runs)
    chosen = store.select([str(which)]) if which else unfinished(store)
    for record in chosen:
        config.from_toml(record.experiment, f"run {record.id}", trusted=trust)
    name = which or (f"c{chosen[0].comparison}" if chosen[0].comparison else chosen[0].id)
    made = Runs(store, tuple(r.id for r in chosen), data)
    waiting = dict.fromkeys(to_resume(store, chosen))
    return finish(made, waiting, data, jobs, progress, lambda _: None, str(name)) if waiting else made


@listing
@plainly
def tune(
    algorithms: Sequence[str] = ("fedavg",),
    *,
    grid: Mapping[str, Sequence[object]] | None = None,
    trials: int = 0,
    tuning_seeds: Sequence[int] = (1000, 1001),
    by: Literal["clients", "personal"] = "clients",
    experiment: Experiment | None = None,
    data: Dataset | None = None,
    runs: str | Path = "runs",
    jobs: int = 1,
    progress: ShowProgress = True,
    **keywords: Unpack[Settings],
) -> Tuning:
    """Find each method's best setting on held-out rows of the clients: ``tune(["fedavg"], grid={"solver.lr": [0.03, 0.1]})``.

    A key of the ``grid`` is a keyword (``lr``) or SECTION.OPTION for all methods, or METHOD.OPTION for one method. Without a
    grid, three learning rates are tried.
    With ``trials``, Optuna proposes that many settings. The result's ``compare(seeds=5)`` compares the methods at their best.
    """
    from fedskew.api.answers import Tuning

    made, data = asked("tune", experiment, data, keywords)
    require(not isinstance(algorithms, str), f"tune: write the methods as a list, [{algorithms!r}]")
    space = {setting_of(key): tuple(values) for key, values in (grid or {}).items()}
    search = Search(space=space, seeds=tuple(tuning_seeds), trials=trials, by=by)
    store = RunStore(runs)
    with Board({"": Part("tuning", 0)}, face_for(bool(progress), lines=False)) as board:
        found = tuned_methods(
            algorithms,
            (),
            search,
            lambda method: tune_one(
                store,
                made,
                method,
                search,
                dataset=data,
                jobs=jobs,
                listener=lambda p: board.advance("", 0, tuning_text(p)),
            ),
        )
    if progress and (line := tuning_partition_note(store, found)):
        say(line, error=True)
    return Tuning(made, found, data, store.folder)


@plainly
def diagnose(
    *paths: str | Path | pd.DataFrame,
    label: str = "",
    client: str = "",
    dataset: object = None,
    skew: object = None,
    clients: int | None = None,
    partition_seed: int | None = None,
    seed: int = 0,
    progress: bool = True,
    target: str = "",
    federated: bool = False,
    fewest: int = 5,
    person: str = "",
) -> Found:
    """Measure how clients' data differ: ``diagnose("visits.csv", label="outcome", client="hospital")``.

    A pandas data frame may stand in place of a file. ``target`` names a column of numbers, instead of ``label``.
    ``diagnose(dataset="uci-har")`` measures a data set by name, or a `Dataset`; ``skew`` deals it to ``clients``
    clients. With ``federated``, no rows are pooled: only counts and sums leave a client, and each count covers at least
    ``fewest`` rows. ``person`` names a column of persons who have several rows: then the first row of each person at a
    client counts.
    """
    from fedskew.api.answers import Found
    from fedskew.diagnosis.diagnose import diagnosis, subject_of
    from fedskew.diagnosis.rehearsal import without_pooling
    from fedskew.diagnosis.subject import Subject

    with board_of_one("reading", progress, lines=False) as board, ExitStack() as stack:
        files = [stack.enter_context(as_file(path, "diagnose")) for path in paths]

        def subject() -> Subject:
            return subject_of(
                files, label, client, dataset, skew, clients, partition_seed, seed, board.stage, target, person
            )

        if federated:
            found = without_pooling(files, label, target, client, subject, fewest, seed, board.stage, person)
            return Found(found)
        return Found(diagnosis(subject(), seed, board.stage))


@plainly
def check(component: object) -> Checked:
    """Check that a component keeps its promises: a method, data set, skew, model, or another one.

    ``component`` is a class, an object, ``"./mine.py::Mine"``, or a name with options.
    """
    from fedskew.api.answers import Checked
    from fedskew.experiment.components import check

    kind, promises = check(component)
    named = isinstance(component, str | type)
    name = str(getattr(component, "__name__", component)) if named else type(component).__name__
    return Checked(name, kind, tuple(promises))


def setting_of(key: str) -> str:
    """Turn ``lr`` and ``solver__lr`` into ``solver.lr``."""
    sets = KEYWORDS[key].sets if key in KEYWORDS else ""
    return sets if "." in sets else key.replace("__", ".")


def chosen(runs: Runs | int | str) -> Runs:
    """Return `Runs` unchanged; find a number or name in the folder ``runs``."""
    return runs if isinstance(runs, Runs) else open("runs")[runs]


@plainly
def landscape(
    runs: Runs | int | str = "latest",
    kind: Kind = "plane",
    clients: Sequence[int] = (0, 1),
    points: int = 25,
    reach: float = 1.0,
    progress: bool = True,
) -> Landscape:
    """Compute the loss around a run's model; the result has ``plot()``. ``kind`` is plane, path, surface or line.

    A number or name is looked up in the folder ``runs``.
    """
    from fedskew.studies.landscape import landscape

    wanted = chosen(runs)
    with board_of_one("losses", progress, lines=False) as board:
        return landscape(
            wanted.store,
            wanted.one("landscape"),
            kind,
            clients,
            points,
            reach,
            board.stage,
            dataset=wanted.data,
        )


@plainly
def cite(runs: Runs | int | str = "latest") -> str:
    """Return BibTeX entries for the runs. A comment above each entry names the parts that use it."""
    from fedskew.experiment.references import bibliography, bibtex

    return bibtex(*bibliography(chosen(runs).records))


@plainly
def open(folder: str | Path = "runs") -> Opened:
    """Open a run store to read its runs: ``open("runs").latest``, ``open("runs")["c2"]``, ``open("runs").runs()``."""
    return Opened(RunStore(folder, read_only=True))


@plainly
def table(path: str | Path | pd.DataFrame, label: str, client: str = "", **options: object) -> Dataset:
    """Load a CSV, JSON lines, Parquet or Arrow file or folder, or a pandas data frame without its index.

    Without a column of clients, a skew deals the rows.
    """
    with as_file(path, "table") as file:
        spec = {"name": "table", "path": str(file), "label": label, **({"client": client} if client else {}), **options}
        loaded: Dataset = build("dataset", COMPONENTS["dataset"], spec).load()
    return loaded


@contextmanager
def as_file(rows: object, verb: str) -> Iterator[Path]:
    """Give a path unchanged, and a data frame as a file, so that both are read in the same way."""
    if isinstance(rows, str | Path):
        yield Path(rows)
        return
    require(hasattr(rows, "to_parquet"), f"{verb}: give the path of a file, or a pandas data frame, not {brief(rows)}")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "frame.parquet"
        try:
            cast("pd.DataFrame", rows).rename(columns=str).to_parquet(file, index=False)
        except (ValueError, TypeError) as error:
            raise BadInput(f"{verb}: the data frame cannot be read: {str(error).splitlines()[0]}") from None
        yield file


@plainly
def clients(
    data: Dataset | str, skew: object = "natural", number: int = 10, seed: int = 0, held_out: float = 0.0
) -> Dealt:
    """Deal rows to clients; the result shows who holds what as a table and a figure. ``data`` is a `Dataset` or a name."""
    from fedskew.api.answers import Dealt

    rows = data if isinstance(data, Dataset) else load(data)
    require(not isinstance(skew, str) or bool(parse(skew, "skew")[0]), "clients: name a skew, such as 'iid'")
    return Dealt(rows, partition(rows, skew, number, seed, held_out))


@plainly
def load_model(
    run: Runs | int | str = "latest", client: int | str | None = None, runs: str | Path = "runs"
) -> TrainedModel:
    """Load a run's model: ``load_model(7).predict("new.csv")``, ``.evaluate("new.csv")``.

    ``run`` is a number, a tag or `Runs`. The model preprocesses rows as in training. With ``client`` (number or name), it is
    this client's personal model.
    """
    from fedskew.serving.predict import load

    wanted = run if isinstance(run, Runs) else open(runs)[run]
    return load(wanted.store, wanted.one("load_model"), client, dataset=wanted.data)


@plainly
def export(
    runs: Runs | int | str = "latest",
    path: str | Path | None = None,
    format: Literal["folder"] | Format = "folder",
    client: int | str | None = None,
) -> Path:
    """Write a run's model for other programs: a folder with ONNX, weights, a model card and a Python file; or one file.

    ``format`` is folder, safetensors, torchscript or onnx. With ``client`` (number or name), it is this client's personal
    model. A run's number or tag is looked up in the folder ``runs``.
    """
    from fedskew.serving.export import SUFFIX, write_folder
    from fedskew.serving.export import export as write
    from fedskew.serving.predict import number_of, warn_python

    wanted, place = chosen(runs), Path(path) if path else None
    require(format in ("folder", *SUFFIX), f"export: format must be folder, {', '.join(SUFFIX)}, got {format!r}")
    run = wanted.one("export")
    whose = number_of(wanted.store, run, client)
    if format == "folder":
        return write_folder(wanted.store, run, place, whose, warn_python, wanted.data)
    return write(wanted.store, run, format, place, dataset=wanted.data, client=whose)

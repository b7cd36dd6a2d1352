"""Python functions on the trained model of a run: `fedskew.load_model`, `export` and `landscape`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from fedskew.api.caller import Caller, caller_of
from fedskew.api.runs import Runs, model_of, plainly, runs_of
from fedskew.core.component import from_table
from fedskew.core.errors import require
from fedskew.core.files import read_small
from fedskew.data.splits import Redrawn
from fedskew.execution.initial import RUN, after_round, hash_of
from fedskew.experiment.config import Experiment, from_toml
from fedskew.experiment.keywords import Format, Kind
from fedskew.serving.export import SUFFIX, check_alone, export as write_file, has_personal, write_folder
from fedskew.serving.predict import TrainedModel, load as load_trained, number_of, warn_python
from fedskew.store.runs import RunStore
from fedskew.studies.landscape import Grid, Landscape, landscape as landscape_of


@plainly
def load_model(
    run: Runs | int | str = "latest",
    client: int | str | None = None,
    runs: str | Path = "runs",
    warn: Callable[[str], None] = warn_python,
    calibrated: bool = False,
) -> TrainedModel:
    """Load a run's model: ``load_model(7).predict("new.csv")``, ``.evaluate("new.csv")``.

    ``run`` is a number, a tag or `Runs`; by default the newest final model of a study, or else the latest run. The model
    preprocesses rows as in training. Where clients have personal models, a row whose client is named gets this client's; with
    ``client`` (number or name), all rows get the model of one client. ``warn`` is called with one line if the newest checkpoint
    is damaged and an older one is used.

    If ``calibrated``, the probabilities of classes are recalibrated on held-out rows: a temperature divides the outputs.
    ``calibration`` of the result has the ``temperature``, the ``errors`` (expected calibration error of the test rows before and
    after) and ``plot()``. ``importance(rows)`` of a model says which columns its answers need.
    """
    trained = model_of(run, runs)
    return load_trained(trained.store, trained.one("load_model"), client, warn, trained.data, calibrated)


@plainly
def export(
    runs: Runs | int | str = "latest",
    path: str | Path | None = None,
    format: Format | None = None,
    client: int | str | None = None,
    warn: Callable[[str], None] = warn_python,
) -> Path:
    """Write a run's model for other programs: a folder with ONNX, weights, a model card and a Python file; or one file.

    ``format`` is folder, safetensors, torchscript or onnx; by default the ending of ``path`` decides. A path without a known
    ending becomes a folder. With ``client`` (number or name), it is this client's personal model. A run's number or tag is looked
    up in the folder ``runs``. ``warn`` is called with one line if the newest checkpoint is damaged and an older one is used.
    """
    trained, place = model_of(runs), Path(path) if path else None
    by_suffix = {suffix: name for name, suffix in SUFFIX.items()}
    form = format or by_suffix.get(place.suffix if place else "") or "folder"
    require(form in get_args(Format), f"export: format must be {', '.join(get_args(Format))}, got {form!r}")
    run = trained.one("export")
    whose = number_of(trained.store, run, client, trained.data)
    if whose is None and has_personal(from_toml(trained.store.run(run).experiment, f"run {run}")):
        cure = "write --client NAME (client=NAME in Python) for one of these"
        warn(f"run {run}: the export is the model that all clients share, without their personal models; {cure}")
    if form == "folder":
        return write_folder(trained.store, run, place, whose, warn, trained.data)
    check_alone(trained.store, run, f"export: {form}", "write a folder, --format folder")
    return write_file(trained.store, run, form, place, warn, trained.data, whose)


def with_initial(verb: str, experiment: Experiment, runs: str | Path, warn: Callable[[str], None]) -> Experiment:
    """Return the experiment with the file that `training.init` means, and its hash. A run's number is looked up in ``runs``."""
    init = experiment.training.init
    if init is None or experiment.training.init_hash:
        return experiment
    path, source = Path(init), ""
    if number := RUN.fullmatch(init):
        store, run = RunStore(runs, read_only=True), int(number[1])
        require(number[2] is None or verb == "run", f"{verb}: RUN:ROUND goes on with one run; write --init {run}")
        name = store.run_folder(run) / f"model-{store.used(run):06d}.safetensors"
        path = after_round(store, run, int(number[2])) if number[2] else write_file(store, run, "safetensors", name)
        source = "" if number[2] else store.run(run).experiment
    elif (beside := path.with_name("experiment.toml")).is_file():  # the file is in a run's folder
        source = read_small(beside).decode(errors="replace")
    where = f"training: init {init}"
    require(path.is_file(), f"{where}: there is no such file; write RUN, RUN:ROUND, or a .safetensors file")
    if source:
        experiment = tested_apart(verb, experiment, from_toml(source, where), where, warn)
    return experiment.replace(training__init=str(path), training__init_hash=hash_of(path))


def tested_apart(
    verb: str, experiment: Experiment, source: Experiment, where: str, warn: Callable[[str], None]
) -> Experiment:
    """Return the experiment with test rows on which ``source``, whose model it starts from, has not trained.

    Seeds of a comparison then draw no test rows of their own. Raises `BadInput` if it has trained on its test rows.
    """
    old, new = source.dataset, experiment.dataset
    if isinstance(old, Redrawn) and isinstance(new, Redrawn) and without_split(old) == without_split(new):
        rows = f"split_seed={old.split_seed}{f',fold={old.fold}' * bool(old.fold)}"
        require(
            bool(new.whole) or (not old.whole and (old.split_seed, old.fold) == (new.split_seed, new.fold)),
            f"{where}: it has trained on rows that would test; "
            + ("start from a run with test rows" if old.whole else f"write {rows} in the data set's options"),
        )
    if isinstance(new, Redrawn) and new.redraw and verb != "run":
        experiment = experiment.replace(dataset=replace(new, redraw=False))
    if experiment.clients.held_out and (verb != "run" or source.training.seed != experiment.training.seed):
        warn(
            f"{where}: it has trained on rows that other seeds hold out, so measures of clients, and tuning, are too good"
        )
    return experiment


def without_split(dataset: Redrawn) -> Redrawn:
    """Return the data set without its choice of test rows."""
    return replace(dataset, split_seed=0, redraw=True, fold="", whole=None)


@plainly
def landscape(
    runs: Runs | int | str = "latest",
    kind: Kind = Grid.kind,
    clients: Sequence[int] = Grid.clients,
    points: int = Grid.points,
    reach: float = Grid.reach,
    progress: bool | Caller = True,
) -> Landscape:
    """Compute the loss around a run's model; the result has ``plot()``. ``kind`` is plane, path, surface or line.

    A number or name is looked up in the folder ``runs``.
    """
    run, caller = runs_of(runs), caller_of(progress)
    grid = {"kind": kind, "clients": tuple(map(int, clients)), "points": points, "reach": reach}
    with caller.board("losses") as board:
        number, options = run.one("landscape"), from_table(Grid, grid, "landscape")
        return landscape_of(run.store, number, options, board.stage, caller.warn, run.data)

"""Files in a run's folder: its experiment, and what a prediction needs besides the weights, such as the preprocessing."""

from typing import Any

import msgspec

from fedskew.core.component import plain
from fedskew.core.errors import BadInput
from fedskew.core.places import write_whole
from fedskew.data.preprocessing import Preprocessing
from fedskew.experiment.build import Assembly
from fedskew.experiment.config import Experiment
from fedskew.experiment.deal import ClientData
from fedskew.experiment.prepare import fitted
from fedskew.store.runs import RunStore

FILE = "preprocessing.json"
VERSION = 1


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Everything except weights that turns new rows into predictions.

    ``preprocessing`` is None if unknown; ``shape`` is the shape of one preprocessed row. ``categories`` is the number of classes,
    labels or symbols. ``task`` and ``model`` are options of these components, as fitted to the training rows.
    """

    preprocessing: Preprocessing | None
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    categories: int
    task: dict[str, Any]
    model: dict[str, Any]
    version: int = VERSION


def learned_of(experiment: Experiment, held: ClientData) -> Learned:
    """Collect it from an experiment and its rows."""
    model, x, _ = fitted(experiment.model, held.dataset, held.x, held.x_test)
    return Learned(
        preprocessing=held.preprocessing,
        shape=tuple(x.shape[1:]),
        classes=held.dataset.classes,
        categories=held.dataset.num_categories,
        task=plain(experiment.task.fitted(held.dataset.y)),
        model=plain(model),
    )


def keep(store: RunStore, run: int, assembly: Assembly) -> None:
    """Write the file `FILE` into the run's folder."""
    learned = msgspec.json.encode(learned_of(assembly.experiment, assembly.data))
    write_whole(store.run_folder(run) / FILE, learned, f"run {run}:")


def kept(store: RunStore, run: int) -> Learned | None:
    """Read the file `FILE`; None if it is missing. Raises `BadInput` if it is damaged or from another version."""
    path = store.run_folder(run) / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Learned)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"run {run}: cannot read {path}, it is damaged or of another version: {error}") from None


def write_toml(store: RunStore, run: int, experiment: Experiment) -> None:
    write_whole(store.run_folder(run) / "experiment.toml", experiment.toml(), f"run {run}:")

"""Files in a run's folder: its experiment, and what a prediction needs besides the weights, such as the preprocessing."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from math import isfinite, prod
from typing import Any

import msgspec
import numpy as np

from fedskew.core.component import plain
from fedskew.core.errors import BadInput, require
from fedskew.core.files import read_small, require_regular, toml_table, write_whole
from fedskew.data.preprocessing import Array, Preprocessing, Tabular
from fedskew.execution.build import Assembly
from fedskew.execution.deal import ClientData
from fedskew.execution.prepare import fitted
from fedskew.experiment.config import Experiment
from fedskew.store.records import Json
from fedskew.store.runs import RunStore

FILE = "preprocessing.json"
VERSION = 1
CHECKSUM = "prediction"
"""The key of `checksum` in the facts of a checkpoint. Older checkpoints have none."""
MOST_BYTES, MOST_VALUES = 1 << 30, 10**8
"""Largest size of the file `FILE`, and largest number of values of a row or of categories."""


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that turns new rows into predictions, except the weights.

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

    def check(self) -> None:
        """Raise `BadInput` if its parts do not fit each other, or if numbers are not finite or sizes are too large."""
        require(self.shape != () and all(size > 0 for size in self.shape), f"shape {self.shape}: sizes must be above 0")
        require(
            prod(self.shape) <= MOST_VALUES and 0 <= self.categories <= MOST_VALUES,
            f"shape {self.shape} with {self.categories} categories is larger than any row that fedskew trains on",
        )
        require(len(self.classes) in (0, self.categories), f"it names {len(self.classes)} classes of {self.categories}")
        preprocessing = self.preprocessing
        for name, value in numbers_in(msgspec.to_builtins(preprocessing)):
            require(isfinite(value) and (name not in ("scale", "divisor") or value > 0), f"{name} cannot be {value}")
        if isinstance(preprocessing, Array | Tabular):
            with np.errstate(all="ignore"):
                rows = (
                    preprocessing.on_zeros()
                    if not isinstance(preprocessing, Array) or preprocessing.shape == self.shape
                    else np.zeros((1, 0))
                )
            require(
                rows.shape[1:] == self.shape,
                f"its preprocessing gives rows of shape {rows.shape[1:]}, not {self.shape}",
            )


def numbers_in(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield all numbers in nested tables and lists, with the name of the entry that holds them."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from numbers_in(part, str(key))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from numbers_in(part, name)
    elif isinstance(value, int | float):
        yield name, value


def learned_of(experiment: Experiment, data: ClientData) -> Learned:
    """Return the `Learned` of an experiment and its rows."""
    model, x, _ = fitted(experiment.model, data.dataset, data.x, data.x_test)
    return Learned(
        preprocessing=data.preprocessing,
        shape=tuple(x.shape[1:]),
        classes=data.dataset.classes,
        categories=data.dataset.num_categories,
        task=plain(experiment.task.fitted(data.dataset.y)),
        model=plain(model),
    )


def keep(store: RunStore, run: int, assembly: Assembly) -> None:
    """Write the file `FILE` into the run's folder."""
    learned = msgspec.json.encode(learned_of(assembly.experiment, assembly.data))
    write_whole(store.run_folder(run) / FILE, learned, f"run {run}:")


def kept(store: RunStore, run: int, facts: Json | None = None) -> Learned | None:
    """Read the file `FILE`; None if it is missing. ``facts`` are from the checkpoint that it belongs to.

    Raises `BadInput` if it is damaged, from another version, or not as it was when the checkpoint was written.
    """
    path = store.run_folder(run) / FILE
    try:
        require_regular(path)
        learned = msgspec.json.decode(data := read_small(path, MOST_BYTES), type=Learned)
        require(learned.version == VERSION, f"it has version {learned.version}, and this fedskew reads {VERSION}")
        same = (facts or {}).get(CHECKSUM, "") in ("", checksum(store, run, data))
        require(same, "its checksum, over the file and the run's settings, differs from the checkpoint's")
        learned.check()
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, RecursionError, BadInput) as error:
        raise BadInput(f"run {run}: cannot read {path}, it is damaged or of another version: {error}") from None
    return learned


def checksum(store: RunStore, run: int, learned: bytes | None = None) -> str:
    """Return the SHA-256 of what a prediction needs besides the weights: the file `FILE` and the settings of the model."""
    table, path = toml_table(store.run(run).experiment, f"run {run}"), store.run_folder(run) / FILE
    settings = json.dumps([table.get(section) for section in ("task", "model", "sharing")], sort_keys=True, default=str)
    training = table.get("training")
    types = [training.get(key) for key in ("dtype", "precision")] if isinstance(training, dict) else []
    contents = (path.read_bytes() if path.is_file() else b"") if learned is None else learned
    return hashlib.sha256(f"{settings} {types} ".encode() + contents).hexdigest()


def write_toml(store: RunStore, run: int, experiment: Experiment) -> None:
    write_whole(store.run_folder(run) / "experiment.toml", experiment.toml(), f"run {run}:")

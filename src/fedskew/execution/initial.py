"""What a run starts from (`training.init`): a trained model, or all that a run had after a round."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from fedskew.core.errors import BadInput, require
from fedskew.core.files import read_small
from fedskew.core.task import Task
from fedskew.core.trees import Tree, leaves
from fedskew.data.dataset import Dataset
from fedskew.data.find import digest
from fedskew.data.preprocessing import Preprocessing, Tabular, Texts
from fedskew.experiment.config import Experiment, from_toml
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore

SAME = ("dataset", "skew", "clients", "server_data", "shared_data", "harmonisation", "task", "model", "sharing")
"""Sections that must not differ for a run to go on with the client states of another run."""


class Initial(NamedTuple):
    """The model before the first round, and what else a run goes on with."""

    x: Tensor  # (P,)
    tree: Tree | None = None  # from `fedskew.execution.rounds.checkpoint_of`
    round: int = 0  # number of rounds that are done already


def hash_of(path: Path) -> str:
    return digest(path)[:16]


def after_round(store: RunStore, run: int, round_: int) -> Path:
    """Write all that a run had after a round to a file that stays; return its path. The round must have a checkpoint."""
    folder, record = store.run_folder(run), store.run(run)
    rounds = sorted(map(checkpoints.rounds_in, checkpoints.checkpoints_in(folder)))
    require(
        round_ in rounds and round_ <= store.covered(run),
        f"init: run {run} has no checkpoint of round {round_}; it has {', '.join(map(str, rounds)) or 'none'} "
        "(checkpoint.every sets how often a run writes one)",
    )
    tree, facts = checkpoints.load(folder / checkpoints.file_name(round_))
    require("slots" not in tree["clients"], f"init: run {run} has client states on disk; start from its model, {run}")
    table = from_toml(record.experiment, f"run {run}").table()
    path = folder / f"after-{round_:06d}.safetensors"
    same = {section: table.get(section) for section in SAME} | {"rows": record.facts["data"]["fingerprint"]}
    checkpoints.write(path, tree, {**facts, "same": same})
    return path


def initial(experiment: Experiment, task: Task, x0: Tensor, dataset: Dataset) -> Initial:
    """Return what the experiment starts from: ``x0`` (P,), unless `training.init` names a file.

    Raises `BadInput` if the file is missing or has changed, or if it does not fit the model, the clients or their rows.
    """
    training = experiment.training
    if training.init is None:
        return Initial(x0)
    path, what = Path(training.init), f"training: init {training.init}"
    require(
        path.is_file(), f"{what}: there is no such file; write the number of a run, RUN:ROUND, or a .safetensors file"
    )
    hash_, expected = hash_of(path), training.init_hash
    require(hash_ == expected, f"{what}: its hash is {hash_}, but init_hash is {expected}; name it again with --init")
    try:
        with safe_open(path, framework="pt") as file:
            whole = "facts" in (file.metadata() or {})
        if not whole:
            check_names(path, dataset, what)
            return Initial(flat(load_file(path), task, what).to(x0))
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{what}: cannot be read: {error}") from None
    tree, facts = checkpoints.load(path)
    now: dict[str, Any] = json.loads(json.dumps(experiment.table()))
    others = [section for section in SAME if now.get(section) != facts["same"].get(section)]
    require(
        not others,
        f"{what}: it goes on with that run's clients, but {' and '.join(others)} differ; start from its model, without :ROUND",
    )
    require(
        facts["same"].get("rows") in (None, dataset.fingerprint()),
        f"{what}: {dataset.name} has changed since that run; start from its model, without :ROUND",
    )
    require(
        facts["round"] < training.rounds,
        f"{what}: {facts['round']} of {training.rounds} rounds are done already; raise --rounds",
    )
    return Initial(tree["x"].to(x0), checkpoints.to_device(tree, x0.device), facts["round"])


class Names(msgspec.Struct):
    """What a file ``preprocessing.json`` beside a model says of its inputs and outputs."""

    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] = ()


def check_names(path: Path, dataset: Dataset, what: str) -> None:
    """Raise `BadInput` if an input or a class of the data has another place in the model, where a file beside it says so."""
    try:
        model = msgspec.json.decode(read_small(path.with_name("preprocessing.json")), type=Names)
    except (OSError, BadInput, msgspec.MsgspecError):
        return
    pairs = [(inputs_of(part), part.classes) for part in (model, dataset)]
    for kind, old, new in zip(("input", "class"), *pairs, strict=True):
        places = {name: at for at, name in enumerate(old)}
        moved = [name for at, name in enumerate(new) if places.get(name, at) != at]
        require(
            not moved,
            f"{what}: {kind} {''.join(moved[:1])!r} has another place there; give the same columns in the same order, and the same "
            "classes",
        )


def inputs_of(part: Names | Dataset) -> tuple[str, ...]:
    """Return the names of the inputs of a table, or the words of texts."""
    made_by = part.preprocessing
    return made_by.inputs if isinstance(made_by, Tabular) else made_by.vocabulary if isinstance(made_by, Texts) else ()


def flat(weights: dict[str, Tensor], task: Task, what: str) -> Tensor:
    """Return the model's parameters (P,) from tensors by name, as an export has them: without the prefix of a user's module."""
    names = [name if name in weights else name.removeprefix("inner.") for name in task.space.names]
    for name, shape in zip(names, task.space.shapes, strict=True):
        require(name in weights, f"{what}: it lacks {name}, which the model has; use the model that was trained")
        found = tuple(weights[name].shape)
        require(
            found == shape, f"{what}: {name} has shape {found}, but the model's {shape}; use the model that was trained"
        )
    return torch.cat([weights[name].reshape(-1) for name in names])


def shapes(tree: object, axes: int = 0) -> dict[str, tuple[int, ...]]:
    """Return the shape of each leaf without its first ``axes`` axes."""
    return {path: tuple(leaf.shape[axes:]) for path, leaf in leaves(tree)}


RUN = re.compile(r"(\d{1,18})(?::(\d{1,6}))?")
"""A run's number, or RUN:ROUND."""

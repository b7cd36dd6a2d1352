"""Small experiments on drawn blobs, and what they store: for tests of whole runs."""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import torch

from fedskew.api.functions import run
from fedskew.core.errors import Interrupted
from fedskew.data.dataset import Dataset
from fedskew.execution.run import execute, register
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment, from_toml
from fedskew.store.runs import RunStore
from tests import stored

torch.set_num_threads(1)


def blobs(rows: int = 120, features: int = 5, classes: int = 3) -> Dataset:
    rng = np.random.default_rng(1)
    means = 2 * rng.standard_normal((classes, features))
    y = rng.integers(0, classes, rows)
    x = (means[y] + rng.standard_normal((rows, features))).astype(np.float32)
    names = tuple("abcdefgh"[:classes])
    return Dataset(x=x, y=y, x_test=x[: rows // 2], y_test=y[: rows // 2], classes=names, groups=y % 2, name="blobs")


DATA = blobs()


EVERY_ROW = {"held_out": 0.0}


def small(method: str = "fedavg", rounds: int = 4, **changes) -> Experiment:
    """A small experiment whose clients train on all their rows, unless ``clients`` holds some out."""
    base = Experiment(
        model="mlp:hidden=[6]",
        skew="label-dirichlet:alpha=0.3",
        clients=EVERY_ROW | {"number": 6},
        selection={"name": "uniform", "clients": 4},
        local={"epochs": 2, "batch_size": 8},
        training={"rounds": rounds, "threads": 1},
        checkpoint={"every": 2},
        engine="stacked",
    )
    if isinstance(changes.get("clients"), dict):
        changes["clients"] = EVERY_ROW | changes["clients"]
    return with_method(base, method).replace(**changes)


def numbers(runs) -> list[tuple]:
    return [row for run in runs.ids for row in stored.numbers(runs.store, run)]


def assert_resumes_exactly(experiment: Experiment, folder: Path) -> None:
    """Check that a run that stops and resumes after every round stores the same numbers as an uninterrupted run."""
    whole = run(experiment, data=DATA, runs=folder / "whole")
    store = RunStore(folder / "parts")
    number = register(store, from_toml(whole.records[0].experiment))
    ends = 0
    while store.run(number).status != "finished":
        with contextlib.suppress(Interrupted):
            execute(store, number, DATA, stop=lambda: True)
        ends += 1
        assert store.run(number).rounds_done == ends
    assert ends == experiment.training.rounds
    assert numbers(dataclasses.replace(whole, store=store, ids=(number,))) == numbers(whole)

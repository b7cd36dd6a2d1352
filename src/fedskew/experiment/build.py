"""Checked assembly: from an experiment and its data to a federation that can run. Everything that can be wrong is found here."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms import ALGORITHMS
from fedskew.core.algorithm import FEATURES, LINEAR_SOLVER
from fedskew.core.component import to_table
from fedskew.core.errors import BadInput, require
from fedskew.core.seeding import torch_stream
from fedskew.core.task import Classification
from fedskew.core.vectors import ParameterSpace
from fedskew.data.dataset import Dataset
from fedskew.experiment.config import Experiment
from fedskew.loop.plan import SeededPlanner
from fedskew.loop.round import Federation
from fedskew.measure.heterogeneity import label_distance, label_distance_by_chance
from fedskew.measure.privacy import check_installed
from fedskew.skew.partition import Partition, deal
from fedskew.slots import Poisson, Uncompressed

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class Assembly:
    """A federation, where it starts, and what it is measured on."""

    experiment: Experiment
    dataset: Dataset
    federation: Federation
    x0: Tensor  # (P,)
    x_test: Tensor
    y_test: Tensor

    @property
    def partition(self) -> Partition:
        return self.federation.partition

    def label_counts(self) -> np.ndarray[Any, Any]:
        """(clients, classes) training rows."""
        return self.partition.label_counts(self.dataset.y, self.dataset.num_classes)

    def partition_facts(self) -> dict[str, Any]:
        """The partition in numbers: clients, rows, how far labels differ and how far they would by chance."""
        sizes, counts = self.partition.sizes, self.label_counts()
        return {
            "clients": len(self.partition),
            "empty": self.partition.empty,
            "unassigned": self.partition.unassigned,
            "rows": int(sizes.sum()),
            "held_out": 0 if self.partition.held_out is None else len(self.partition.held_out[0]),
            "smallest": int(sizes.min()),
            "median": float(np.median(sizes)),
            "largest": int(sizes.max()),
            "label_distance": label_distance(counts),
            "label_distance_by_chance": label_distance_by_chance(counts),
        }


def assemble(experiment: Experiment, dataset: Dataset) -> Assembly:
    """Deal the rows, build the model, check that everything fits. Raises `BadInput` with the part, the reason and the fix."""
    check_needs(experiment)
    partition = partition_of(experiment, dataset)
    check_clients(experiment, len(partition))
    device, dtype = device_of(experiment.training.device), DTYPES[experiment.training.dtype]
    task, x0 = model_of(experiment, dataset)
    federation = Federation(
        algorithm=experiment.algorithm,
        task=task,
        solver=experiment.solver,
        server_optimiser=experiment.server,
        selection=experiment.selection,
        planner=SeededPlanner(experiment.local, experiment.training.seed),
        x=torch.as_tensor(dataset.x, dtype=dtype, device=device),
        y=torch.as_tensor(dataset.y, device=device),
        partition=partition,
        seed=experiment.training.seed,
        rounds=experiment.training.rounds,
        codec=experiment.codec,
    )
    return Assembly(
        experiment=experiment,
        dataset=dataset,
        federation=federation,
        x0=x0.to(dtype).to(device),
        x_test=torch.as_tensor(dataset.x_test, dtype=dtype, device=device),
        y_test=torch.as_tensor(dataset.y_test, device=device),
    )


def partition_of(experiment: Experiment, dataset: Dataset) -> Partition:
    """Deal the data set's rows to the experiment's clients."""
    who = experiment.clients
    partition = deal(experiment.skew, dataset.y, dataset.groups, who.number, who.partition_seed, who.held_out)
    require(
        partition.held_out is None or len(partition.held_out[0]) > 0,
        f"clients: held_out {who.held_out} of clients of at most {partition.sizes.max()} rows keeps no row; raise it",
    )
    return partition


def model_of(experiment: Experiment, dataset: Dataset) -> tuple[Classification, Tensor]:
    """The task, shared by all runs of one model on one kind of data, and this seed's initial parameters (P,)."""
    net = experiment.model.build(dataset.shape, dataset.num_classes, torch_stream(experiment.training.seed, "init"))
    task = task_of(experiment.model, dataset.shape, dataset.num_classes)
    return task, task.space.flatten(net)


@lru_cache(maxsize=16)
def task_of(model: Any, shape: tuple[int, ...], num_classes: int) -> Classification:
    skeleton = model.build(shape, num_classes, torch.Generator())
    return Classification(skeleton, ParameterSpace(skeleton), num_classes)


def check_needs(experiment: Experiment) -> None:
    """Refuse combinations that cannot work, with the reason and the fix."""
    algorithm, needs = experiment.algorithm, experiment.algorithm.needs()
    name = to_table(algorithm, ALGORITHMS)["name"]
    require(
        LINEAR_SOLVER not in needs or experiment.solver.linear,
        f"{name} needs a local solver whose steps are linear in the gradients, and adamw's are not; use --solver sgd",
    )
    require(
        FEATURES not in needs or experiment.model.has_features,
        f"{name} compares hidden features, and this model has none; use --model mlp or a convolutional one",
    )
    if privacy := algorithm.privacy():
        require(
            isinstance(experiment.selection, Poisson) and experiment.selection.rate == privacy.q,
            f"{name} and its accountant count on each client taking part with probability q = {privacy.q:g} on its own; "
            f"use --selection poisson:rate={privacy.q:g}",
        )
        require(
            type(experiment.codec) is Uncompressed,
            f"{name} adds noise for updates of a known greatest length, and a codec changes them; use --codec none",
        )
        if privacy.noise:
            check_installed()


def check_clients(experiment: Experiment, num_clients: int) -> None:
    """Refuse what so many clients with data cannot have."""
    experiment.selection.check(num_clients)
    privacy = experiment.algorithm.privacy()
    require(
        privacy is None or privacy.noise == 0 or privacy.delta * num_clients < 1,
        f"algorithm: delta must be below 1 / clients, else the guarantee may give a whole client away; "
        f"with {num_clients} clients try delta={num_clients**-1.1:.1g}",
    )


def device_of(name: str) -> torch.device:
    """The device; raises `BadInput` if it is not there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            device = torch.device(name)
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise BadInput(f"training: device {name!r} is not available here; use 'cpu'") from None
    return device


def with_engine(experiment: Experiment, engine: Any, threads: int) -> Experiment:
    """The experiment with the choices that were left open filled in, so that its TOML repeats it exactly."""
    return dataclasses.replace(
        experiment, engine=engine, training=dataclasses.replace(experiment.training, threads=threads)
    )

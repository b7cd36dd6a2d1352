"""Checked assembly: from an experiment and its data to a federation that can run. Everything that can be wrong is found here."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedskew.core.algorithm import FEATURES, LINEAR_SOLVER, PLAIN_SERVER, SENSITIVE, SERVER_DATA
from fedskew.core.component import to_table
from fedskew.core.errors import BadInput, require
from fedskew.core.records import Batch
from fedskew.core.seeding import stream, torch_stream
from fedskew.core.task import Classification
from fedskew.core.trees import leaves, num_bytes
from fedskew.core.vectors import ParameterSpace
from fedskew.data.dataset import Dataset
from fedskew.experiment.config import COMPONENTS, Experiment
from fedskew.loop.plan import SeededPlanner
from fedskew.loop.round import Federation, Tuning, start
from fedskew.loop.sharing import Kept
from fedskew.measure.heterogeneity import label_distance, label_distance_by_chance
from fedskew.measure.privacy import check_installed
from fedskew.skew.partition import Ints, Partition
from fedskew.skew.reserve import class_balanced, deal_others, share_out
from fedskew.slots import REFINES, Poisson, ServerSgd, Uncompressed

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
    labels_told: bool = True  # whether the clients' labels are known here

    @property
    def partition(self) -> Partition:
        return self.federation.partition

    def label_counts(self) -> np.ndarray[Any, Any]:
        """(clients, classes) training rows."""
        return self.partition.label_counts(self.federation.y.cpu().numpy(), self.dataset.num_classes)

    def partition_facts(self) -> dict[str, Any]:
        """The partition in numbers: clients, rows, how far labels differ and how far they would by chance."""
        sizes, counts = self.partition.sizes, self.label_counts()
        server_data, shared = self.federation.server_data, len(shared_rows(self.experiment, self.dataset))
        each = int(self.experiment.shared_data.alpha * shared + 1e-9)
        distances = {
            "label_distance": label_distance(counts),
            "label_distance_by_chance": label_distance_by_chance(counts),
        }
        return {
            "clients": len(self.partition),
            "empty": self.partition.empty,
            "unassigned": self.partition.unassigned,
            "rows": int(sizes.sum()),
            "held_out": 0 if self.partition.held_out is None else len(self.partition.held_out[0]),
            "server_rows": 0 if server_data is None else len(server_data.y),
            "shared_rows": shared,
            "shared_rows_each": each,
            "shared_bytes": len(self.partition) * each * num_bytes((self.x_test[0], self.y_test[0])),
            "smallest": int(sizes.min()),
            "median": float(np.median(sizes)),
            "largest": int(sizes.max()),
            **(distances if self.labels_told else {}),
        }


class Held(NamedTuple):
    """The clients' rows."""

    x: Tensor  # (n, ...)
    y: Tensor  # (n,)
    partition: Partition


def assemble(experiment: Experiment, dataset: Dataset, held: Held | None = None) -> Assembly:
    """Deal the rows, build the model, check that everything fits. Raises `BadInput` with the part, the reason and the fix.

    ``held`` is what this process knows of the clients' rows where they are not the data set's, dealt here.
    """
    check_needs(experiment)
    require(
        SENSITIVE not in experiment.algorithm.needs() or bool(dataset.sensitive),
        f"{name_of(experiment.algorithm)} compares two groups of people, and {dataset.name} names no sensitive attribute; "
        "use --dataset adult, or own data with `sensitive`",
    )
    partition = held.partition if held else partition_of(experiment, dataset)
    check_clients(experiment, len(partition))
    device, dtype = device_of(experiment.training.device), DTYPES[experiment.training.dtype]
    task, x0 = model_of(experiment, dataset)
    x = torch.as_tensor(dataset.x, dtype=dtype, device=device)
    y = torch.as_tensor(dataset.y, device=device)
    server_data = batch_of(x, y, server_rows(experiment, dataset))
    federation = federation_of(experiment, task, held or Held(x, y, partition), server_data)
    x0 = x0.to(dtype).to(device)
    check_sharing(experiment, federation, x0)
    return Assembly(
        experiment=experiment,
        dataset=dataset,
        federation=federation,
        x0=x0,
        x_test=torch.as_tensor(dataset.x_test, dtype=dtype, device=device),
        y_test=torch.as_tensor(dataset.y_test, device=device),
    )


def federation_of(
    experiment: Experiment, task: Classification, held: Held, server_data: Batch | None = None
) -> Federation:
    """The experiment's federation over these rows."""
    return Federation(
        algorithm=experiment.algorithm,
        task=task,
        solver=experiment.solver,
        server_optimiser=experiment.server,
        selection=experiment.selection,
        planner=SeededPlanner(
            experiment.local,
            experiment.training.seed,
            experiment.system.own_work(experiment.local, len(held.partition), experiment.training.seed),
        ),
        x=held.x,
        y=held.y,
        partition=held.partition,
        seed=experiment.training.seed,
        rounds=experiment.training.rounds,
        refinement=experiment.refine,
        server_data=server_data,
        availability=experiment.availability,
        system=experiment.system,
        codec=experiment.codec,
        tuning=tuning_of(experiment),
        kept=kept_of(experiment.sharing, task, held.x.device),
    )


def tuning_of(experiment: Experiment) -> Tuning | None:
    """The steps of personal models before they are measured, in batches like those of the training."""
    if not experiment.evaluation.adapt_steps:
        return None
    local = dataclasses.replace(experiment.local, steps=experiment.evaluation.adapt_steps)
    return Tuning(SeededPlanner(local, experiment.training.seed, purpose="tuning"), experiment.evaluation.adapt_lr)


def partition_of(experiment: Experiment, dataset: Dataset) -> Partition:
    """Deal the data set's rows to the experiment's clients."""
    who = experiment.clients
    shared = shared_rows(experiment, dataset)
    reserved = np.concatenate([server_rows(experiment, dataset), shared])
    partition = deal_others(
        experiment.skew, dataset.y, dataset.groups, reserved, who.number, who.partition_seed, who.held_out
    )
    require(
        partition.held_out is None or len(partition.held_out[0]) > 0,
        f"clients: held_out {who.held_out} of clients of at most {partition.sizes.max()} rows keeps no row; raise it",
    )
    return share_out(partition, shared, experiment.shared_data.alpha, who.partition_seed) if len(shared) else partition


def server_rows(experiment: Experiment, dataset: Dataset) -> Ints:
    """The training rows that the server keeps, in ascending order."""
    rows, share = np.arange(len(dataset.y)), experiment.server_data.share
    if share == 0:
        return rows[:0]
    rng = stream(experiment.clients.partition_seed, "server data")
    return class_balanced(dataset.y, rows, int(share * len(rows) + 1e-9), rng, "server_data")


def shared_rows(experiment: Experiment, dataset: Dataset) -> Ints:
    """The training rows of the public share, in ascending order; none of them is the server's or dealt to a client."""
    rows = np.setdiff1d(np.arange(len(dataset.y)), server_rows(experiment, dataset))
    beta = experiment.shared_data.beta
    if beta == 0:
        return rows[:0]
    rng = stream(experiment.clients.partition_seed, "shared data")
    return class_balanced(dataset.y, rows, int(beta / (1 + beta) * len(rows) + 1e-9), rng, "shared_data")


def batch_of(x: Tensor, y: Tensor, rows: Ints) -> Batch | None:
    """These rows in one batch; None if there are none."""
    at = torch.as_tensor(rows, device=x.device)
    return Batch(x[at], y[at], x.new_ones(len(rows))) if len(rows) else None


def model_of(experiment: Experiment, dataset: Dataset) -> tuple[Classification, Tensor]:
    """The task, shared by all runs of one model on one kind of data, and this seed's initial parameters (P,)."""
    net = experiment.model.build(dataset.shape, dataset.num_classes, torch_stream(experiment.training.seed, "init"))
    task = task_of(experiment.model, dataset.shape, dataset.num_classes)
    return task, task.space.flatten(net)


@lru_cache(maxsize=16)
def task_of(model: Any, shape: tuple[int, ...], num_classes: int) -> Classification:
    skeleton = model.build(shape, num_classes, torch.Generator())
    return Classification(skeleton, ParameterSpace(skeleton), num_classes)


@lru_cache(maxsize=16)
def kept_of(sharing: Any, task: Classification, device: torch.device) -> Kept | None:
    """The part of the model that clients keep, one object for all runs, so that they share what engines make of it."""
    at = sharing.kept(task.model, task.space)
    return None if at is None else Kept.of(at.to(device), task.space.size)


def check_sharing(experiment: Experiment, federation: Federation, x0: Tensor) -> None:
    """Refuse what needs the clients' whole models, or keeps vectors over them: it would mix, or send, what clients keep."""
    if federation.kept is None:
        return
    needy = judge(experiment)
    require(
        not needy,
        f"{needy} tries the clients' models on the server's rows, and the clients keep a part of theirs to themselves; use "
        "--sharing all, or a method without rows on the server, e.g. fedavg",
    )
    algorithm, server = federation.algorithm, start(federation, x0)
    states = (server.state, algorithm.broadcast(server), algorithm.client_init(x0))
    name = name_of(algorithm)
    require(
        all(leaf.numel() < x0.numel() for _, leaf in leaves(states)),
        f"{name} keeps vectors over the whole model, which cannot be split into a shared and a personal part; use "
        "--sharing all, or a method without them, e.g. fedavg, fedprox or fednova",
    )


def check_needs(experiment: Experiment) -> None:
    """Refuse combinations that cannot work, with the reason and the fix."""
    experiment.system.check(experiment.local)
    algorithm, needs = experiment.algorithm, experiment.algorithm.needs()
    name = name_of(algorithm)
    require(
        LINEAR_SOLVER not in needs or experiment.solver.linear,
        f"{name} needs a local solver whose steps are linear in the gradients, and adamw's are not; use --solver sgd",
    )
    require(
        FEATURES not in needs or experiment.model.has_features,
        f"{name} compares hidden features, and this model has none; use --model mlp or a convolutional one",
    )
    require(
        PLAIN_SERVER not in needs or experiment.server == ServerSgd(),
        f"{name} averages more than one model, and a server optimiser would move only one of them; use --server sgd",
    )
    require(
        PLAIN_SERVER not in needs or not experiment.refine.needs_data,
        f"{name} averages more than one model, and a refinement would move only one of them; use --refine none",
    )
    require(
        PLAIN_SERVER not in needs or not experiment.evaluation.inexactness,
        f"{name} trains from more than one model, and inexactness is told of training from the global one; leave out "
        "evaluation.inexactness",
    )
    needy = judge(experiment)
    require(
        not needy or experiment.server_data.share > 0,
        f"{needy} needs rows of the server's own, and it has none; give it some of the training rows with "
        "--server-data 0.02",
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


def name_of(algorithm: Any) -> str:
    """What the catalogue calls a method, or the place of a user's own."""
    return str(to_table(algorithm, COMPONENTS["algorithm"])["name"])


def judge(experiment: Experiment) -> str:
    """What tries the clients' models on the server's rows: the method, the refinement, or nothing."""
    if SERVER_DATA in experiment.algorithm.needs():
        return name_of(experiment.algorithm)
    return f"refine {to_table(experiment.refine, REFINES)['name']}" if experiment.refine.needs_data else ""


def check_clients(experiment: Experiment, num_clients: int) -> None:
    """Refuse what so many clients with data cannot have: the selection, the method's aggregation, its guarantee."""
    selection, name = experiment.selection, name_of(experiment.algorithm)
    selection.check(num_clients)
    size = len(selection.select(np.arange(num_clients), stream(experiment.training.seed, "select", 0)))
    needed = experiment.algorithm.fewest(size)
    require(
        size >= needed,
        f"{name} needs at least {needed} clients in a round, and the selection gives {size}; select more clients, or let "
        f"{name} assume fewer broken ones",
    )
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

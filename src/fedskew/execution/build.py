"""Assemble an experiment and its data into a federation, and check that all parts fit together."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.core.component import from_table, parse, plain, to_table
from fedskew.core.contract import ChecksSetup, Setup, Sharing, server_rows
from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.records import Batch, channels_last, rows_of, targets_of
from fedskew.core.seeding import stream
from fedskew.core.sites import Harmonisation, OutputHarmonisation
from fedskew.core.task import Task
from fedskew.core.trees import leaves, num_bytes
from fedskew.data.dataset import Dataset
from fedskew.data.targets import refusal
from fedskew.engine import Sequential, Stacked
from fedskew.execution.deal import ClientData, client_data, partition_facts, server_rows as rows_of_server
from fedskew.execution.initial import Initial, initial
from fedskew.execution.prepare import DTYPES as DTYPES, Frozen, device_of as device_of, prepared
from fedskew.experiment.combinations import suited
from fedskew.experiment.config import COMPONENTS, SEVERAL, Experiment, check_private, decisions_of
from fedskew.experiment.settings import Auto
from fedskew.loop.federation import Federation, PersonalTuning, warmed_up
from fedskew.loop.personal import measures_personal
from fedskew.loop.plan import Local, NamedWork, SeededPlanner
from fedskew.loop.round import start
from fedskew.loop.sharing import Intercepts, OwnPart
from fedskew.models import Mixed
from fedskew.models.intercept import positions
from fedskew.skew.concept import Labels
from fedskew.skew.partition import Ints, Partition
from fedskew.slots import All


@dataclass(frozen=True, eq=False)
class Assembly:
    """A federation, its initial model, and the test rows."""

    experiment: Experiment
    dataset: Dataset
    federation: Federation
    cold: Tensor  # (P,) the initial model, before the server's warm-up
    initial: Initial  # what the run starts from
    x_test: Tensor
    y_test: Tensor  # the test targets before round 1
    data: ClientData
    labels_known: bool = True  # False if the clients' label counts are unknown, because their nodes do not report them
    frozen: Frozen | None = None  # the frozen parameters of the model
    repeated: int = 0  # rounds that were played twice with different noise, so that both models were sent to clients

    @cached_property
    def x0(self) -> Tensor:
        """The initial model (P,), after the server's warm-up."""
        return warmed_up(self.federation, self.cold, self.experiment.server_data.warm_up)

    def test_targets(self, round_: int) -> Tensor:
        """Return the targets of the test rows in a round. Each row follows the concept of its assigned client."""
        moving = self.federation.moving
        return torch.as_tensor(self.data.test_labels.at(round_)).to(self.y_test) if moving else self.y_test

    @property
    def engine(self) -> Sequential | Stacked:
        """The engine that `settle` or the user chose."""
        assert not isinstance(self.experiment.engine, Auto)
        return self.experiment.engine

    @property
    def partition(self) -> Partition:
        return self.federation.partition

    @property
    def strata(self) -> tuple[str, ...]:
        """The names of the columns of `ClientData.label_counts`: classes, or strata of other targets."""
        return self.dataset.strata[1] if self.dataset.num_classes or self.labels_known else ("targets not reported",)

    def partition_facts(self) -> dict[str, Any]:
        """See `fedskew.execution.deal.partition_facts`."""
        row_bytes = num_bytes((self.x_test[0], self.y_test[0]))
        facts = partition_facts(self.experiment, self.dataset, self.data, row_bytes)
        return facts if self.labels_known else {k: v for k, v in facts.items() if not k.startswith("label_")}


def assemble(
    experiment: Experiment,
    dataset: Dataset,
    data: ClientData | None = None,
    dealt: Partition | None = None,
    timing: bool = False,
) -> Assembly:
    """Deal the rows, build the model, and check that all parts fit together.

    ``data`` replaces the dealt rows if the clients are on other machines. ``dealt`` is the result of `dealt_rows`, if it is known
    already. ``timing`` makes the assembly for `measured` only: results of frozen layers are ones. Raises `BadInput`, which names
    the part, the reason and the remedy.
    """
    experiment = suited(experiment, dataset)
    setup, groups = setup_of(experiment), bool(dataset.sensitive)
    setup = dataclasses.replace(setup, shape=dataset.shape, groups=groups, target=dataset.target)
    check_needs(experiment, setup)
    data = data or client_data(experiment, dataset, dealt)
    partition = data.partition
    setup = with_clients(experiment, setup, len(partition))
    check_needs(experiment, setup)
    device, dtype = device_of(experiment.training.device), DTYPES[experiment.training.dtype]
    (task, *others), x0, x, x_test, frozen = prepared(experiment, data.dataset, data.x, data.x_test, timing)
    check_needs(experiment, dataclasses.replace(setup, stacks=task.stacks))
    begun = initial(experiment, task, x0, dataset)
    y = targets_of(data.labels.at(0), dtype, device)
    # If the clients are on other machines, x has no rows. The server's own rows then come from the data set.
    own_x, own_y = x, y
    if not len(x):
        own_x, own_y = rows_of(dataset.x, dtype, device, task.ids), targets_of(dataset.y, dtype, device)
    server_data = batch_of(own_x, own_y, rows_of_server(experiment, dataset), dtype)
    moving = data.labels if data.labels.change else None
    counts = data.label_counts()
    intercepts = intercepts_of(experiment.harmonisation, task, counts, counts.sum(0), x0)
    federation = federation_of(experiment, (task, *others), x, y, partition, server_data, moving, intercepts)
    cohort = len(experiment.selection.select(federation.clients, stream(federation.seed, "select", 0)))
    for part in (federation, federation.tuning):
        if part and isinstance(part.planner, SeededPlanner):
            part.planner.check_memory(partition.sizes, cohort)
    check_sharing(experiment, federation, begun.x)
    check_patience(experiment, federation, simulated=len(x) > 0)
    return Assembly(
        experiment=experiment,
        dataset=dataset,
        federation=federation,
        cold=begun.x,
        initial=begun,
        x_test=x_test,
        y_test=targets_of(data.test_labels.at(0), dtype, device),
        data=data,
        frozen=frozen,
    )


def federation_of(
    experiment: Experiment,
    tasks: tuple[Task, ...],
    x: Tensor,
    y: Tensor,
    partition: Partition,
    server_data: Batch | None = None,
    moving: Labels | None = None,
    intercepts: Intercepts | None = None,
) -> Federation:
    """Make the experiment's federation on rows ``x`` and targets ``y``, dealt by ``partition``."""
    works = work_of_clients(experiment, partition.names)
    weights = torch.tensor([getattr(work, "weight", 1.0) for work in works])
    rates = [getattr(work, "lr", None) for work in works]
    return Federation(
        algorithm=experiment.algorithm,
        task=tasks[0],
        others=tasks[1:],
        solver=experiment.solver,
        server_optimiser=experiment.server,
        selection=experiment.selection,
        planner=SeededPlanner(experiment.local, experiment.training.seed, works, augmentation=experiment.augment),
        x=x,
        y=y,
        partition=partition,
        seed=experiment.training.seed,
        rounds=experiment.training.rounds,
        refinement=experiment.refine,
        server_data=server_data,
        availability=experiment.availability,
        system=experiment.system,
        codec=experiment.codec,
        tuning=adaptation_of(experiment) if experiment.evaluation.adapt_steps else None,
        own_part=own_part_of(experiment.sharing, tasks[0], x.device, rate_of(experiment.harmonisation) > 0),
        intercepts=intercepts,
        moving=moving,
        weights=weights.to(device=x.device, dtype=DTYPES[experiment.training.dtype]) if works else None,
        rates=np.array([rate or experiment.solver.lr for rate in rates]) if any(rates) else None,
        dtype=DTYPES[experiment.training.dtype],
    )


def work_of_clients(experiment: Experiment, names: Sequence[str]) -> tuple[Local, ...]:
    """Return the local work of each client; () if all do the same. Raises `BadInput` for the own work of an unknown client."""
    local, seed = experiment.local, experiment.training.seed
    works = experiment.system.own_work(local, len(names), seed)
    for text in experiment.clients.own or ():
        name, options = parse(text, "clients: own")
        require(name in names, f"clients: own: there is no client {name!r}; {suggestion(name, names)}")
        at, works = names.index(name), works or (local,) * len(names)
        of_others = plain(works[at]) | ({"steps": None} if "epochs" in options else {})
        work = from_table(NamedWork, {**of_others, **options}, f"clients: own: {name}")
        require(
            "batch_size" not in options or experiment.system.variance is None,
            f"clients: own: {name}: system.variance sets the size of every batch; leave out batch_size, or variance",
        )
        require(
            "weight" not in options or experiment.algorithm.weighting == "own",
            f"clients: own: {name}: a weight needs weighting=own, as in --algorithm fedavg:weighting=own",
        )
        works = (*works[:at], work, *works[at + 1 :])
    return works


def adaptation_of(experiment: Experiment) -> PersonalTuning:
    """Return how unseen clients adapt the model: by ``adapt_steps`` steps, or for 0 by one round of local work."""
    local, evaluation = experiment.local, experiment.evaluation
    local = dataclasses.replace(local, steps=evaluation.adapt_steps or local.steps)
    return PersonalTuning(SeededPlanner(local, experiment.training.seed, purpose="tuning"), evaluation.adapt_lr)


def batch_of(x: Tensor, y: Tensor, rows: Ints, dtype: torch.dtype) -> Batch | None:
    """Return the rows as one batch; None if there are no rows."""
    at, mask = torch.as_tensor(rows, device=x.device), torch.ones(len(rows), dtype=dtype, device=x.device)
    return Batch(channels_last(x[at]), y[at], mask) if len(rows) else None


@lru_cache(maxsize=16)
def own_part_of(sharing: Sharing, task: Task, device: torch.device, intercept: bool = False) -> OwnPart | None:
    """Return the part of the model that clients keep, with a trained ``intercept`` if there is one; None if they share all of it.

    The result is cached, because engines share traced programs between runs only for the same object.
    """
    at = sharing.kept(task.model, task.space)
    if intercept:
        at = torch.cat([positions(task.space), *([] if at is None else [at])]).unique()
    return None if at is None else OwnPart.of(at.to(device), task.space.size)


def rate_of(harmonisation: Harmonisation) -> float:
    """Return the rate at which each client trains an intercept of its own; 0 if it trains none."""
    return harmonisation.rate if isinstance(harmonisation, OutputHarmonisation) else 0.0


def intercepts_of(harmonisation: Harmonisation, task: Task, counts: Ints, total: Ints, x0: Tensor) -> Intercepts | None:
    """Return the intercepts of the personal models, from the clients' rows of each class (K, C) and their ``total`` (C,).

    They have the type of the model ``x0``. None: there are none, or only trained ones.
    """
    if not isinstance(harmonisation, OutputHarmonisation):
        return None
    values = harmonisation.intercept(counts.astype(np.float64), total.astype(np.float64))
    if values is None:
        return None
    return Intercepts(positions(task.space).to(x0.device), torch.as_tensor(values).to(x0))


def check_sharing(experiment: Experiment, federation: Federation, x0: Tensor) -> None:
    """Raise `BadInput` if the method would average or send parameters that clients keep to themselves."""
    algorithm, part, name = federation.algorithm, federation.own_part, called("algorithm", experiment.algorithm)
    require(
        (part is not None and not len(part.others)) or not federation.others,
        f"{name} averages models, but clients with different architectures have no common parameters; "
        "use --algorithms fedmd or local-only",
    )
    if part is None or not federation.contract.shares_model:
        return
    server = start(federation, x0)
    states = (server.state, algorithm.broadcast(federation.view(server)), algorithm.client_init(x0))
    cure = "harmonisation none" if isinstance(experiment.sharing, All) else "sharing all"
    require(
        all(leaf.numel() < x0.numel() for _, leaf in leaves(states)),
        f"{name} stores vectors of the size of the whole model; they cannot be split into a shared and a personal part; use "
        f"--{cure}, or a method without them, e.g. fedavg, fedprox or fednova",
    )


def check_patience(experiment: Experiment, federation: Federation, simulated: bool) -> None:
    """Raise `BadInput` if a run with patience has no held-out rows, changing labels, or nodes that keep personal models."""
    if experiment.training.patience is None:
        return
    require(
        federation.partition.held_out is not None,
        "training: patience needs rows that clients hold out, and none does; set --held-out 0.2, or leave patience out",
    )
    require(
        simulated or not measures_personal(federation),
        "training: patience needs the personal models of the best round, and nodes keep only the newest; leave patience out",
    )
    require(
        federation.moving is None,
        "training: patience compares rounds, but labels change between them: a round before the change would be the best; leave it "
        "out",
    )


def setup_of(experiment: Experiment) -> Setup:
    """Collect what the parts of an experiment need to know about each other, before the data are loaded."""
    contract = experiment.algorithm.contract()
    defaults = {f.name: f.default_factory() for f in dataclasses.fields(Experiment) if callable(f.default_factory)}
    return Setup(
        solver=experiment.solver,
        local=experiment.local,
        changed=frozenset(name for name, value in defaults.items() if getattr(experiment, name) != value),
        has_features=experiment.model.has_features,
        one_architecture=not isinstance(experiment.model, Mixed),
        shares_model=contract.shares_model,
        tries_models=server_rows in contract.needs or experiment.refine.needs_data,
        server_rows=experiment.server_data.share > 0,
        inexactness=experiment.evaluation.inexactness,
        target=experiment.task.target,
        joint=bool(getattr(experiment.task, "joint", False)),
        one_rate=not any("lr" in parse(text, "clients: own")[1] for text in experiment.clients.own or ()),
    )


def check_needs(experiment: Experiment, setup: Setup | None = None) -> None:
    """Raise `BadInput` if a part of the experiment cannot work with the others. It names part, reason and remedy."""
    setup = setup or setup_of(experiment)
    if reason := refusal(experiment.task.target, setup.target):
        raise BadInput(f"{called('task', experiment.task)} {reason}")
    for field in dataclasses.fields(experiment):
        component = getattr(experiment, field.name)
        for part in component if field.name in SEVERAL else [component]:
            if isinstance(part, ChecksSetup) and (reason := part.accepts(setup)):
                raise BadInput(f"{called(field.name, part)} {reason}")
    name = called("algorithm", experiment.algorithm)
    check_private(experiment, name)
    decisions_of(type(experiment.algorithm).decides, name)


def called(section: str, part: object) -> str:
    """Return a part's name for messages: ``fedavg`` for a method, ``codec int8`` for another component, ``local:`` for settings."""
    if section not in COMPONENTS:
        return f"{section}:"
    name = str(to_table(part, COMPONENTS[section])["name"])
    return name if section == "algorithm" else f"{section} {name}"


def check_clients(experiment: Experiment, num_clients: int) -> None:
    """Check like `check_needs`, for this number of clients with data."""
    check_needs(experiment, with_clients(experiment, setup_of(experiment), num_clients))


def with_clients(experiment: Experiment, setup: Setup, num_clients: int) -> Setup:
    """Return the setup for this number of clients with data, with the size of the largest cohort."""
    return dataclasses.replace(setup, clients=num_clients, cohort=experiment.selection.largest(num_clients))

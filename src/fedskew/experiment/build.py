"""Assemble an experiment and its data to a federation that can run, and check that all parts fit together."""

import dataclasses
import warnings
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm
from fedskew.core.component import to_table
from fedskew.core.contract import Checked, Setup, Sharing, server_rows
from fedskew.core.errors import BadInput, require
from fedskew.core.records import Batch, channels_last, rows_of, targets_of
from fedskew.core.seeding import stream
from fedskew.core.task import ModelTask
from fedskew.core.trees import leaves, num_bytes
from fedskew.data.dataset import Dataset
from fedskew.data.targets import refusal
from fedskew.engine import Sequential, Stacked
from fedskew.experiment.config import COMPONENTS, SEVERAL, Experiment
from fedskew.experiment.deal import ClientData, client_data, partition_facts
from fedskew.experiment.deal import server_rows as rows_of_server
from fedskew.experiment.given import suited
from fedskew.experiment.prepare import Frozen, prepared
from fedskew.experiment.private import check_private
from fedskew.experiment.settings import Auto
from fedskew.loop.federation import Federation, Tuning, warmed_up
from fedskew.loop.plan import SeededPlanner
from fedskew.loop.round import start
from fedskew.loop.sharing import Kept
from fedskew.models import Mixed
from fedskew.models.prefix import OnProgress
from fedskew.skew.concept import Labels
from fedskew.skew.partition import Ints, Partition

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class Assembly:
    """A federation, its initial model, and the test rows."""

    experiment: Experiment
    dataset: Dataset
    federation: Federation
    cold: Tensor  # (P,) the initial model before the server's warm-up
    x_test: Tensor
    y_test: Tensor  # at the start
    data: ClientData
    labels_known: bool = True  # whether nodes report their label counts
    frozen: Frozen | None = None  # the frozen parameters of the model
    repeated: int = 0  # rounds whose models went out, and that are played again with other noise

    @cached_property
    def x0(self) -> Tensor:
        """The initial model (P,), after the server's warm-up."""
        return warmed_up(self.federation, self.cold, self.experiment.server_data.warm_up)

    def test_targets(self, round_: int) -> Tensor:
        """The test rows' labels in a round, by the concept of the client that each row is assigned to."""
        return (
            torch.as_tensor(self.data.test_labels.at(round_)).to(self.y_test) if self.federation.moving else self.y_test
        )

    @property
    def engine(self) -> Sequential | Stacked:
        """The engine that `settle` or the user chose."""
        assert not isinstance(self.experiment.engine, Auto)
        return self.experiment.engine

    @property
    def partition(self) -> Partition:
        return self.federation.partition

    def label_counts(self) -> Ints:
        """See `ClientData.label_counts`."""
        return self.data.label_counts()

    @property
    def strata(self) -> tuple[str, ...]:
        """The names of what `label_counts` counts."""
        return self.dataset.strata[1] if self.dataset.num_classes or self.labels_known else ("targets not reported",)

    def partition_facts(self) -> dict[str, Any]:
        """See `fedskew.experiment.deal.partition_facts`."""
        row_bytes = num_bytes((self.x_test[0], self.y_test[0]))
        facts = partition_facts(self.experiment, self.dataset, self.data, row_bytes)
        return facts if self.labels_known else {k: v for k, v in facts.items() if not k.startswith("label_")}


def assemble(
    experiment: Experiment,
    dataset: Dataset,
    data: ClientData | None = None,
    on_progress: OnProgress | None = None,
    dealt: Partition | None = None,
) -> Assembly:
    """Deal the rows, build the model, check that everything fits. Raises `BadInput` with the part, the reason and the fix.

    ``data`` replaces the dealt rows if the clients are on other machines. ``on_progress(done, total)`` is called as rows pass
    through the frozen layers of a model. ``dealt`` has the training rows of each client, if they are dealt already.
    """
    experiment = suited(experiment, dataset)
    setup = dataclasses.replace(
        setup_of(experiment), shape=dataset.shape, groups=bool(dataset.sensitive), target=dataset.target
    )
    check_needs(experiment, setup)
    data = data or client_data(experiment, dataset, dealt)
    partition = data.partition
    setup = with_clients(experiment, setup, len(partition))
    check_needs(experiment, setup)
    device, dtype = device_of(experiment.training.device), DTYPES[experiment.training.dtype]
    (task, *others), x0, x, x_test, frozen = prepared(
        experiment, data.dataset, data.x, data.x_test, dtype, device, on_progress
    )
    check_needs(experiment, dataclasses.replace(setup, stacks=task.stacks))
    y = targets_of(data.labels.at(0), dtype, device)
    # the rows as the model reads them; where clients are elsewhere only the data set has the server's
    own_x, own_y = x, y
    if not len(x):
        own_x, own_y = rows_of(dataset.x, dtype, device, task.ids), targets_of(dataset.y, dtype, device)
    server_data = batch_of(own_x, own_y, rows_of_server(experiment, dataset), dtype)
    moving = data.labels if data.labels.change else None
    federation = federation_of(experiment, (task, *others), x, y, partition, server_data, moving)
    cohort = len(drawn(experiment, len(partition)))
    for part in (federation, federation.tuning):
        if part and isinstance(part.planner, SeededPlanner):
            part.planner.check_memory(partition.sizes, cohort)
    check_sharing(experiment, federation, x0)
    return Assembly(
        experiment=experiment,
        dataset=dataset,
        federation=federation,
        cold=x0,
        x_test=x_test,
        y_test=targets_of(data.test_labels.at(0), dtype, device),
        data=data,
        frozen=frozen,
    )


def federation_of(
    experiment: Experiment,
    tasks: tuple[ModelTask, ...],
    x: Tensor,
    y: Tensor,
    partition: Partition,
    server_data: Batch | None = None,
    moving: Labels | None = None,
) -> Federation:
    """The experiment's federation over these rows."""
    return Federation(
        algorithm=experiment.algorithm,
        task=tasks[0],
        others=tasks[1:],
        solver=experiment.solver,
        server_optimiser=experiment.server,
        selection=experiment.selection,
        planner=SeededPlanner(
            experiment.local,
            experiment.training.seed,
            experiment.system.own_work(experiment.local, len(partition), experiment.training.seed),
            augmentation=experiment.augment,
        ),
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
        tuning=tuning_of(experiment),
        kept=kept_of(experiment.sharing, tasks[0], x.device),
        moving=moving,
        dtype=DTYPES[experiment.training.dtype],
    )


def tuning_of(experiment: Experiment) -> Tuning | None:
    """The steps of personal models before they are measured, in batches as in training."""
    if not experiment.evaluation.adapt_steps:
        return None
    local = dataclasses.replace(experiment.local, steps=experiment.evaluation.adapt_steps)
    return Tuning(SeededPlanner(local, experiment.training.seed, purpose="tuning"), experiment.evaluation.adapt_lr)


def adaptation_of(experiment: Experiment) -> Tuning:
    """The steps of unseen clients on their own rows: as many as personal models take, or else a round of local work."""
    return tuning_of(experiment) or Tuning(
        SeededPlanner(experiment.local, experiment.training.seed, purpose="tuning"), experiment.evaluation.adapt_lr
    )


def batch_of(x: Tensor, y: Tensor, rows: Ints, dtype: torch.dtype) -> Batch | None:
    """These rows in one batch; None if there are none."""
    at = torch.as_tensor(rows, device=x.device)
    return (
        Batch(channels_last(x[at]), y[at], torch.ones(len(rows), dtype=dtype, device=x.device)) if len(rows) else None
    )


@lru_cache(maxsize=16)
def kept_of(sharing: Sharing, task: ModelTask, device: torch.device) -> Kept | None:
    """The part of the model that clients keep; cached, so that runs share the traced programs of engines."""
    at = sharing.kept(task.model, task.space)
    return None if at is None else Kept.of(at.to(device), task.space.size)


def check_sharing(experiment: Experiment, federation: Federation, x0: Tensor) -> None:
    """Refuse methods that would mix, or send, what clients keep of their models."""
    algorithm, kept, name = federation.algorithm, federation.kept, name_of(experiment.algorithm)
    require(
        (kept is not None and not len(kept.others)) or not federation.others,
        f"{name} averages models, and clients of different architectures have no parameters in common; "
        "use --algorithms fedmd or local-only",
    )
    if kept is None or not federation.contract.shares_model:
        return
    server = start(federation, x0)
    states = (server.state, algorithm.broadcast(federation.view(server)), algorithm.client_init(x0))
    require(
        all(leaf.numel() < x0.numel() for _, leaf in leaves(states)),
        f"{name} keeps vectors over the whole model, which cannot be split into a shared and a personal part; use "
        "--sharing all, or a method without them, e.g. fedavg, fedprox or fednova",
    )


def setup_of(experiment: Experiment) -> Setup:
    """What the parts of an experiment may ask about each other before the data are loaded."""
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
    )


def check_needs(experiment: Experiment, setup: Setup | None = None) -> None:
    """Raise `BadInput` with the part, the reason and the fix if a part of the experiment cannot work with the others."""
    setup = setup or setup_of(experiment)
    if reason := refusal(experiment.task.target, setup.target):
        raise BadInput(f"{called('task', experiment.task)} {reason}")
    for field in dataclasses.fields(experiment):
        held = getattr(experiment, field.name)
        for part in held if field.name in SEVERAL else [held]:
            if isinstance(part, Checked) and (reason := part.accepts(setup)):
                raise BadInput(f"{called(field.name, part)} {reason}")
    check_private(experiment, name_of(experiment.algorithm))


def called(section: str, part: object) -> str:
    """What a message calls a part: a method by its name, others by section and name, settings by their section."""
    if section not in COMPONENTS:
        return f"{section}:"
    name = str(to_table(part, COMPONENTS[section])["name"])
    return name if section == "algorithm" else f"{section} {name}"


def name_of(algorithm: Algorithm) -> str:
    """What the catalogue calls a method, or the place of a user's own."""
    return called("algorithm", algorithm)


def check_clients(experiment: Experiment, num_clients: int) -> None:
    """As `check_needs`, for this number of clients with data."""
    check_needs(experiment, with_clients(experiment, setup_of(experiment), num_clients))


def with_clients(experiment: Experiment, setup: Setup, num_clients: int) -> Setup:
    """The setup with this number of clients with data."""
    return dataclasses.replace(setup, clients=num_clients, cohort=experiment.selection.largest(num_clients))


def drawn(experiment: Experiment, num_clients: int) -> Ints:
    """The cohort that the selection draws first of all clients."""
    return experiment.selection.select(np.arange(num_clients), stream(experiment.training.seed, "select", 0))


def device_of(name: str) -> torch.device:
    """The device; ``auto`` is a GPU where there is one. Raises `BadInput` if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            device = torch.device(name)
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise BadInput(f"training: device {name!r} is not available here; use 'auto' or 'cpu'") from None
    return device


def with_engine(experiment: Experiment, engine: Auto | Sequential | Stacked, threads: int) -> Experiment:
    """The experiment with engine and threads filled in, so that its TOML repeats the run exactly."""
    return experiment.replace(engine=engine, training__threads=threads)

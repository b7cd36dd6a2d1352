"""The settings of an experiment that are no components, and which client has which rows. Importing it loads no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, cast

from msgspec import Meta

from fedskew.core import limits
from fedskew.core.component import Catalogue
from fedskew.core.errors import require
from fedskew.core.privacy import after_noise, alone
from fedskew.core.sites import Harmonisation
from fedskew.data import DATASETS
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.images import Digits
from fedskew.data.find import Files
from fedskew.skew import LabelDirichlet, Natural
from fedskew.skew.compose import Skew

if TYPE_CHECKING:
    from fedskew.core.contract import Setup
    from fedskew.core.records import Privacy

MOST_THREADS = 1024
"""Maximum number of threads. If the system refuses a thread, PyTorch ends the process without a message."""


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Choose engine and threads by a short timed trial. The trial is printed and stored."""

    private = alone


@dataclass(frozen=True, kw_only=True)
class Clients:
    """The clients. ``held_out`` is the share of each client's rows (0..1) that is not trained on and measures the client.

    The share is rounded down: at 0.2 a client with fewer than five rows trains on all of them and is not measured. If no client
    holds out a row, as with 0, clients are measured on their training rows.

    ``unseen`` is the share of the clients (0..1) that take no part in training. After the last round they measure the model: before
    they adapt it, and after a round of local work on some of their rows.

    ``own`` has local work of named clients, as ``["north:epochs=2,batch_size=8"]``: any option of the section ``local``, ``lr`` in
    place of the solver's, and ``weight``, the client's weight in averages with the method's option ``weighting=own``.
    """

    number: limits.PositiveInt = 10
    partition_seed: limits.NonNegativeInt = 0
    held_out: limits.BelowOne = 0.2
    unseen: limits.BelowOne = 0.0
    own: tuple[str, ...] | None = None
    private = alone

    def accepts(self, setup: Setup) -> str:
        """Return why this run cannot leave clients out of training, or know them by name; empty if it can."""
        if self.own and not setup.simulated:
            return "own: the server knows no node by name; leave it out"
        return "" if setup.simulated or not self.unseen else "unseen: on nodes every client trains; leave it out"

    def __post_init__(self) -> None:
        require(
            self.held_out > 0 or not self.unseen,
            "unseen clients are measured on held-out rows; set held_out above 0",
        )


@dataclass(frozen=True, kw_only=True)
class ServerData:
    """The server's own labelled rows: a class-balanced ``share`` (0..0.5) of the training rows. No client gets these rows.

    Before round 0 the initial model takes ``warm_up`` steps of the local solver on all of them.
    """

    share: Annotated[float, Meta(ge=0, le=0.5)] = 0.0
    warm_up: limits.NonNegativeInt = 0
    private = alone

    def __post_init__(self) -> None:
        require(self.share > 0 or not self.warm_up, f"warm_up {self.warm_up} needs rows: set share above 0")


@dataclass(frozen=True, kw_only=True)
class SharedData:
    """A public, class-balanced share of the training rows. Every client gets a random part of it beside its own rows.

    ``beta`` (0..1) is the size of the share relative to the rows that are dealt, ``alpha`` (0..1) the part of it that each client
    gets. These rows count among the client's rows. No model is warmed up on the share.
    """

    beta: limits.Share = 0.0
    alpha: limits.PositiveShare = 1.0
    private = alone


@dataclass(frozen=True, kw_only=True)
class Training:
    """Rounds, random seed, number format and device.

    With ``threads=0``, ``engine="auto"`` chooses the number of threads, or else PyTorch; parallel runs share the cores.
    ``states`` says where client states are between rounds; "auto" is the disk if they take more than 1 GiB in total.
    ``device="auto"`` is a GPU if there is one. ``precision="bf16"`` uses PyTorch's autocast; parameters stay in ``dtype``.

    With ``patience`` the model of the best round is kept and used, and training ends after this many measured rounds without a
    better one. The best round has the highest primary metric on the clients' held-out rows, as a mean over the clients; a
    better one exceeds it by more than ``least_gain`` (0), in points or the metric's unit.

    ``init`` is a .safetensors file to start from, with the hash ``init_hash``: a model, or all that a run had after a round. On the
    command line and in Python, ``init`` also takes the number of a run, or RUN:ROUND.
    """

    rounds: limits.PositiveInt = 30
    seed: limits.NonNegativeInt = 0
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["full", "bf16"] = "full"
    device: str = "cpu"
    threads: Annotated[int, Meta(ge=0, le=MOST_THREADS)] = 0
    states: Literal["auto", "memory", "disk"] = "auto"
    patience: limits.PositiveInt | None = None
    least_gain: limits.NonNegativeFloat | None = None
    init: str | None = None
    init_hash: str | None = None

    def private(self, privacy: Privacy) -> str:
        if self.init:
            return "init is a model whose own training it does not count; leave it out"
        return "patience chooses a round by the clients' rows, without noise; leave it out" if self.patience else ""

    def __post_init__(self) -> None:
        require(self.patience is not None or self.least_gain is None, "least_gain has no effect without patience")
        require(self.precision == "full" or self.dtype == "float32", "precision bf16 needs dtype float32")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Measure models after every ``every`` rounds and after the last one, on at most ``max_clients`` clients, always the same.

    ``every="auto"`` (the default of the command line) keeps the work of measuring below a tenth, counted in rows that pass
    through models. It measures at least 20 rounds, or all rounds of a shorter run.
    Personal models take ``adapt_steps`` steps of the local solver at learning rate ``adapt_lr`` (default: the solver's) before
    they are measured; these fine-tuned models are not stored. ``inexactness`` measures how exactly each client solved its local
    problem, which takes two more passes over its rows. ``layers`` measures how well the updates agree in each layer.
    ``classes`` measures the global model's accuracy, F1 and AUC on each class, and how far the accuracy fell below its highest
    so far; for labels only F1 and AUC. ``margin`` is the largest difference of the primary metric that does not matter, in
    points or in the metric's unit. A method is equivalent if its difference is significantly smaller.
    """

    every: limits.PositiveInt | Literal["auto"] = 1
    max_clients: limits.PositiveInt = 1000
    local_models: bool = True
    adapt_steps: limits.NonNegativeInt = 0
    adapt_lr: limits.PositiveFloat | None = None
    inexactness: bool = False
    layers: bool = False
    classes: bool = False
    margin: limits.PositiveFloat | None = None
    private = after_noise

    def accepts(self, setup: Setup) -> str:
        """Return why something cannot be measured on these targets or on Flower's nodes; empty if all can."""
        if self.classes and setup.target not in ("classes", "labels"):
            return "classes: the targets are neither classes nor labels; leave it out"
        if setup.simulated or not self.inexactness:
            return ""
        return "inexactness needs the clients' rows at the server, and they stay on the nodes; leave it out"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Save a checkpoint after every ``every`` rounds, at the end, and when the run is interrupted."""

    every: limits.PositiveInt = 10
    private = after_noise


GIVEN = {"private": "given"}
"""Marks fields of an experiment that have no effect after training begins. A privacy loss covers the rounds only."""


class DataSource(Protocol):
    """A data set by name and options."""

    @property
    def model(self) -> str:
        """The model that suits these data, in compact form."""

    def load(self) -> Dataset: ...


KNOWN_DATA = Catalogue("datasets", DATASETS, DataSource)


@dataclass(frozen=True, kw_only=True)
class Dealing:
    """A data set, what deals and changes its rows, and the shares of the clients, the server and the public."""

    dataset: DataSource = field(default_factory=Digits, metadata=GIVEN)
    skew: tuple[Skew, ...] = field(default=cast("tuple[Skew, ...]", None), metadata=GIVEN)
    clients: Clients = field(default_factory=Clients)
    server_data: ServerData = field(default_factory=ServerData)
    shared_data: SharedData = field(default_factory=SharedData)
    harmonisation: Harmonisation | None = None


def default_skew(dataset: DataSource) -> Skew:
    """Return ``natural`` if the data set has clients of its own: by a column, by files, or by its nature.

    Otherwise return label skew.
    """
    files = getattr(dataset, "files", None)
    of_rows = any(getattr(dataset, name, None) for name in ("client", "client_from", "file_a_client"))
    return Natural() if of_rows or (isinstance(files, Files) and files.natural) else LabelDirichlet(alpha=0.1)

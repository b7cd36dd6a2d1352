"""The contract between the parts of an experiment: a protocol for each slot, and checks of what a part needs from the others.

A part of an experiment may have a method ``accepts(setup)``. It returns why the part cannot work in this setup and what to use
instead, or an empty text if the part can. The part's name is the subject of this text. `Need` is such a check for methods.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.core.records import Cohort, Info, Privacy, ServerView
from fedskew.core.trees import Tree
from fedskew.core.vectors import ParameterSpace


class Solver(Protocol):
    """The local optimiser. Only a linear one has ``unit_response`` and ``respond``."""

    def __hash__(self) -> int: ...

    @property
    def linear(self) -> bool:
        """Whether its steps are linear in the gradients; weight decay then belongs to the local loss."""

    @property
    def plain(self) -> bool:
        """Whether each step is its rate times the gradient."""

    @property
    def lr(self) -> float: ...

    @property
    def lr_decay(self) -> float:
        """Factor of the rate per round."""

    @property
    def weight_decay(self) -> float: ...

    def init(self, w: Tensor) -> Tree:
        """Its state before the first step from ``w`` (P,)."""

    def update(self, g: Tensor, opt: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        """The model (P,) after a step along minus ``g`` (P,), and the new state."""

    def unit_response(self, steps: Tensor) -> Tensor:
        """Displacement over -lr after ``steps`` steps along the constant gradient 1 (FedNova's ||a||_1)."""

    def respond(self, g: Tensor, momentum: Tensor, position: Tensor, lr: Tensor) -> tuple[Tensor, Tensor]:
        """One step on scalars: the new position and momentum."""


class ServerOptimiser(Protocol):
    """Moves the global model."""

    def __hash__(self) -> int: ...

    @property
    def lr(self) -> float: ...

    def init(self, x: Tensor) -> Tree:
        """Its state before the first round."""

    def update(self, g: Tensor, opt: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        """The global model (P,) after a step along minus ``g`` (P,), and the new state."""


class Selection(Protocol):
    """Chooses who takes part in a round."""

    def largest(self, num_clients: int) -> int:
        """Size of the largest cohort that it can draw from ``num_clients`` clients."""

    def select(self, clients: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """The cohort, ascending, of the available clients (n,)."""


class Availability(Protocol):
    """Decides which clients are online."""

    def available(self, clients: Info, round_: int, seed: int) -> NDArray[np.bool_]:
        """Whether each client (K,) is online in the round."""


class Augmentation(Protocol):
    """Changes training rows at random."""

    def draw(self, size: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64] | None:
        """Draw a change for each row of a plan (T, B): (T, B, 3), see `fedskew.loop.warp`; None for no change."""


class Sharing(Protocol):
    """Divides the model into a part that clients share and a part that each client keeps."""

    def __hash__(self) -> int: ...

    def kept(self, model: nn.Module, space: ParameterSpace) -> Tensor | None:
        """Positions (n,), ascending, of the parameters that clients keep; None if they share all."""


class SharedModel(Protocol):
    """The model that an update changes: a task, or the part of its model that clients share."""

    @property
    def space(self) -> ParameterSpace: ...


class Codec(Protocol):
    """Compresses updates on their way to the server."""

    @property
    def random(self) -> bool:
        """Whether it takes random numbers."""

    def init(self, x: Tensor) -> Tree:
        """A client's memory before its first update."""

    def compress(self, rows: Tensor, draws: Tensor | None, model: SharedModel) -> Tree:
        """Compress updates (C, P) into the contents of their messages; leading axis C."""

    def decode(self, coded: Tree, model: SharedModel) -> Tensor:
        """Decode the result of `compress` to updates (C, P)."""

    def bits(self, rows: Tensor, model: SharedModel) -> int:
        """Bits of the message of one update like ``rows`` (C, P)."""

    def pack(self, coded: Tree, model: SharedModel) -> Tree:
        """The message of one client, from its part of the result of `compress` without the leading axis."""

    def unpack(self, message: Tree, model: SharedModel) -> Tree:
        """Inverse of `pack`. Raises `ValueError` if the message is not one of this codec."""


class Refinement(Protocol):
    """Trains the new global model on the server's rows."""

    @property
    def needs_data(self) -> bool:
        """Whether it needs labelled rows on the server."""

    def refine(self, server: ServerView, x: Tensor, cohort: Cohort) -> Tensor:
        """The refined model (P,). ``x`` is the new model, ``server`` the state before the round."""


class Metric(Protocol):
    """A number of a user's own; `fedskew.measure.registry.Measure` explains the optional members."""

    @property
    def split(self) -> str:
        """What it is measured on: ``test``, ``clients``, ``personal`` or ``round``."""

    @property
    def score(self) -> str:
        """For ``clients`` and ``personal``: the metric of each client, by default the task's own."""

    @property
    def title(self) -> str: ...

    @property
    def unit(self) -> str: ...

    @property
    def better(self) -> str: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...

    @property
    def reduce(self) -> str: ...

    def compute(self, values: Tensor, others: Tensor) -> Tensor | float:
        """The number: of outputs (n, K) and targets (n,); of clients' scores, worst first, and rows; of updates (C, P) and rows."""


class LocalWork(Protocol):
    """The local work of a round."""

    @property
    def epochs(self) -> int: ...

    @property
    def steps(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Facts about an experiment that its parts may check. None means that a fact is not known yet."""

    solver: Solver
    local: LocalWork
    changed: frozenset[str]  # sections that differ from their defaults
    has_features: bool  # whether the model has a hidden layer whose features can be compared
    one_architecture: bool  # whether all clients have the same model
    shares_model: bool  # whether the method exchanges models
    tries_models: bool  # whether the method or the refinement evaluates clients' models on the server's rows
    server_rows: bool  # whether the server has rows of its own
    inexactness: bool  # whether inexactness is measured
    simulated: bool = True  # False: the clients are on separate machines
    labels_known: bool = True  # whether the server knows how many rows of each class a client has
    shape: tuple[int, ...] | None = None  # of a row
    groups: bool | None = None  # whether the rows have a sensitive attribute
    target: str = "classes"  # the kind of the targets, a name of `fedskew.data.targets.TARGETS`
    joint: bool = False  # whether a row's loss depends on the other rows of its batch
    clients: int | None = None  # that hold rows
    cohort: int | None = None  # largest number of clients in a round
    stacks: bool | None = None  # whether clients' models can be computed as one batch


@runtime_checkable
class Checked(Protocol):
    """A part with needs."""

    def accepts(self, setup: Setup) -> str: ...


Need = Callable[[Setup], str]
"""Why a method cannot work in a setup, and what to use instead; empty if it can."""

Hazard = Callable[[float], str]
"""Why a method may diverge at a client learning rate, and what to try; empty if the method adds no danger."""


def linear_solver(setup: Setup) -> str:
    if setup.solver.linear:
        return ""
    return "needs a local solver whose steps are linear in the gradients, and adamw's are not; use --solver sgd"


def plain_solver(setup: Setup) -> str:
    if setup.solver.plain:
        return ""
    return (
        "takes a local step over its rate for a gradient, which momentum and adamw make untrue; use --solver sgd without "
        "momentum, or --algorithms afl"
    )


def features(setup: Setup) -> str:
    return "" if setup.has_features else "compares hidden features, and this model has none; use --model mlp or cnn"


def classes(setup: Setup) -> str:
    return "" if setup.target == "classes" else "works on classes, and these targets are not; use fedprox or moon"


def server_rows(setup: Setup) -> str:
    if setup.server_rows:
        return ""
    return "needs rows of the server's own, and it has none; give it some of the training rows with --server-data 0.02"


def sensitive_attribute(setup: Setup) -> str:
    if setup.groups is not False:
        return ""
    return (
        "compares two groups of people, and the data set names no sensitive attribute; use --dataset adult, or own data with "
        "`sensitive`"
    )


def one_global_model(setup: Setup) -> str:
    """For a method that averages several models: refuse parts that work on a single one."""
    parts = {
        "a server optimiser would move only one of them; use --server sgd": "server" in setup.changed,
        "a refinement would move only one of them; use --refine none": "refine" in setup.changed,
        "inexactness is measured from a single one; leave out evaluation.inexactness": setup.inexactness,
    }
    return next((f"averages more than one model, and {reason}" for reason, found in parts.items() if found), "")


def no_models_sent(setup: Setup) -> str:
    """For a method that exchanges no models: refuse parts that work on models, and clients on separate machines."""
    if not setup.simulated:
        return "gives all clients the same public rows, which is only simulated so far; use another method"
    if not setup.changed & {"server", "refine", "codec", "sharing"} and not setup.inexactness:
        return ""
    return (
        "exchanges no models: a server optimiser, a refinement, a codec, a sharing or inexactness would have nothing to work on; "
        "use --server sgd --refine none --codec none --sharing all, and leave out evaluation.inexactness"
    )


def no_hazard(lr: float) -> str:
    return ""


def proximal_hazard(option: str, strength: float) -> Hazard:
    """The hazard of SGD on a loss with a term ``strength / 2 * ||w - x||^2``."""

    def hazard(lr: float) -> str:
        if lr * strength < 1:
            return ""
        return (
            f"lr x {option} = {lr * strength:g}: an explicit proximal step overshoots from 1 and diverges from 2; "
            f"lower {option} below {1 / lr:.2g}"
        )

    return hazard


class Contract(NamedTuple):
    """Needs and properties of a method, for the assembly and the round loop."""

    needs: tuple[Need, ...] = ()
    hazard: Hazard = no_hazard
    fewest: int | None = None  # finite updates that a round needs; None: one from each client of the cohort
    privacy: Privacy | None = None  # the mechanism that hides each client; no other part may break it
    steps_alone: bool = False  # whether `aggregate` is also called in a round without updates
    shares_model: bool = True  # False: each client keeps its whole model, and sends only the method's extra values
    # A codec loses a part of the update. If the server sums the same values as a client's state entry (P,), the entry grows by
    # this factor times the lost part. Then both follow the decoded update.
    codec_loss: Mapping[str, float] = MappingProxyType({})

    def refusal(self, setup: Setup) -> str:
        """Why the method cannot work in this setup; empty if it can."""
        needs = self.needs if self.shares_model else (*self.needs, no_models_sent)
        for need in needs:
            if reason := need(setup):
                return reason
        if setup.cohort is not None and setup.cohort < (self.fewest or 0):
            return (
                f"needs at least {self.fewest} clients in a round, and the selection gives {setup.cohort}; select more clients, "
                "or let it assume fewer broken ones"
            )
        if self.privacy and self.privacy.noise and setup.clients and self.privacy.delta * setup.clients >= 1:
            return (
                "needs delta below 1 / clients, else the guarantee may give a whole client away; with "
                f"{setup.clients} clients try delta={setup.clients**-1.1:.1g}"
            )
        return ""

    def updates_needed(self, cohort: int) -> int:
        """Number of finite updates that a round with this cohort needs."""
        return cohort if self.fewest is None else self.fewest

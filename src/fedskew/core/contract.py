"""The contract between the parts of an experiment: a protocol for each slot, and checks of what a part needs from the others.

A part of an experiment may have a method ``accepts(setup)``. If the part cannot work in this setup, it returns why, and what to use
instead; otherwise an empty text. The message puts the part's name before this text. `Need` is such a check for methods.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.core.records import Cohort, Info, Privacy, ServerView
from fedskew.core.sites import (
    Harmonisation as Harmonisation,
    OutputHarmonisation as OutputHarmonisation,
    RowHarmonisation as RowHarmonisation,
)
from fedskew.core.trees import ParameterSpace, Tree


class Solver(Protocol):
    """The local optimiser. Only a linear solver has ``unit_response`` and ``respond``."""

    def __hash__(self) -> int: ...

    @property
    def linear(self) -> bool:
        """True if its steps are linear in the gradients. Weight decay is then a part of the local loss."""

    @property
    def plain(self) -> bool:
        """True if each step is the learning rate times the gradient."""

    @property
    def lr(self) -> float: ...

    @property
    def lr_decay(self) -> float | str:
        """Factor of the learning rate from round to round, or a schedule such as ``cosine``."""

    @property
    def weight_decay(self) -> float: ...

    def init(self, w: Tensor) -> Tree:
        """Return its state before the first step from ``w`` (P,)."""

    def update(self, g: Tensor, opt: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        """Take a step against the gradient ``g`` (P,); return the model (P,) and the new state."""

    def unit_response(self, steps: Tensor) -> Tensor:
        """Return the displacement divided by -lr after ``steps`` steps with constant gradient 1 (FedNova's ||a||_1)."""

    def respond(self, g: Tensor, momentum: Tensor, position: Tensor, lr: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step on scalars; return the new position and momentum."""


class ServerOptimiser(Protocol):
    """Moves the global model."""

    def __hash__(self) -> int: ...

    @property
    def lr(self) -> float: ...

    def init(self, x: Tensor) -> Tree:
        """Return its state before the first round."""

    def update(self, g: Tensor, opt: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        """Take a step against the gradient ``g`` (P,); return the global model (P,) and the new state."""


class Selection(Protocol):
    """Chooses who takes part in a round."""

    def largest(self, num_clients: int) -> int:
        """Return the size of the largest cohort that it can draw from ``num_clients`` clients."""

    def select(self, clients: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw the cohort, ascending, from the available clients (n,)."""


class Availability(Protocol):
    """Decides which clients are online."""

    def available(self, clients: Info, round_: int, seed: int) -> NDArray[np.bool_]:
        """Return for each client (K,) if it is online in the round."""


class Augmentation(Protocol):
    """Changes training rows at random."""

    def draw(self, size: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64] | None:
        """Draw a change for each row of a plan (T, B): (T, B, 3), see `fedskew.loop.work`; None for no change."""


class Sharing(Protocol):
    """Divides the model into a part that clients share and a part that each client keeps."""

    def __hash__(self) -> int: ...

    def kept(self, model: nn.Module, space: ParameterSpace) -> Tensor | None:
        """Return the positions (n,), ascending, of the parameters that clients keep; None if they share all."""


class SharedModel(Protocol):
    """The model that an update changes: a task, or the part of its model that clients share."""

    @property
    def space(self) -> ParameterSpace: ...


class Codec(Protocol):
    """Compresses the updates that clients send to the server."""

    @property
    def random(self) -> bool:
        """True if it needs random numbers."""

    def init(self, x: Tensor) -> Tree:
        """Return a client's memory before its first update."""

    def compress(self, rows: Tensor, draws: Tensor | None, model: SharedModel) -> Tree:
        """Compress updates (C, P) into the contents of their messages; leading axis C."""

    def decode(self, coded: Tree, model: SharedModel) -> Tensor:
        """Decode the result of `compress` to updates (C, P)."""

    def bits(self, rows: Tensor, model: SharedModel) -> int:
        """Return the number of bits of one client's message, for updates with the shape of ``rows`` (C, P)."""

    def pack(self, coded: Tree, model: SharedModel) -> Tree:
        """Return one client's message. ``coded`` is its part of the result of `compress`, without the leading axis."""

    def unpack(self, message: Tree, model: SharedModel) -> Tree:
        """Inverse of `pack`. Raises `ValueError` if the message is not valid for this codec."""


class Refinement(Protocol):
    """Trains the new global model on the server's rows."""

    @property
    def needs_data(self) -> bool:
        """True if it needs labelled rows on the server."""

    def refine(self, server: ServerView, x: Tensor, cohort: Cohort) -> Tensor:
        """Return the refined model (P,). ``x`` is the new global model; ``server`` is the state before the round."""


class Metric(Protocol):
    """A user's own metric. `fedskew.measure.registry.Measure` explains the optional members."""

    @property
    def split(self) -> str:
        """The split on which it is measured: ``test``, ``clients``, ``personal`` or ``round``."""

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
        """Compute the metric. The arguments depend on ``split``.

        ``test``: outputs (n, K) and targets (n,). ``clients`` and ``personal``: the clients' scores, worst first, and their numbers
        of rows. ``round``: updates (C, P) and the clients' numbers of rows.
        """


class LocalWork(Protocol):
    """The local work of a round."""

    @property
    def epochs(self) -> float: ...

    @property
    def steps(self) -> int | None: ...

    @property
    def batch_size(self) -> int | Literal["all"]: ...


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Facts about an experiment that its parts may check. None means that the fact is not known yet."""

    solver: Solver
    local: LocalWork
    changed: frozenset[str]  # sections that differ from their defaults
    has_features: bool  # True if the model returns the features of a hidden layer
    one_architecture: bool  # True if all clients have the same architecture
    shares_model: bool  # True if the method exchanges models
    tries_models: bool  # True if the method or the refinement evaluates clients' models on the server's rows
    server_rows: bool  # True if the server has its own rows
    inexactness: bool  # True if inexactness is measured
    simulated: bool = True  # False if the clients are on separate machines
    labels_known: bool = True  # True if the server knows each client's number of rows of each class
    shape: tuple[int, ...] | None = None  # shape of a row
    groups: bool | None = None  # True if the rows have a sensitive attribute
    target: str = "classes"  # kind of target, a name in `fedskew.data.targets.TARGETS`
    joint: bool = False  # True if a row's loss depends on the other rows of its batch
    one_rate: bool = True  # True if all clients have the solver's learning rate
    clients: int | None = None  # number of clients that have rows
    cohort: int | None = None  # largest number of clients in a round
    stacks: bool | None = None  # True if clients' models can be computed as one batch


@runtime_checkable
class ChecksSetup(Protocol):
    """A part of an experiment that needs something from the others."""

    def accepts(self, setup: Setup) -> str: ...


Need = Callable[[Setup], str]
"""Returns why a method cannot work in a setup, and what to use instead; empty if it can."""

Hazard = Callable[[float], str]
"""Returns why a method itself may cause divergence at a client learning rate, and what to try; empty if it does not."""


def linear_solver(setup: Setup) -> str:
    if setup.solver.linear:
        return ""
    return "needs a local solver whose steps are linear in the gradients, but adamw's are not; use --solver sgd"


def plain_solver(setup: Setup) -> str:
    if setup.solver.plain:
        return ""
    return (
        "assumes that a local step divided by its rate is a gradient, which is wrong for momentum and adamw; use --solver sgd "
        "without momentum, or --algorithms afl"
    )


def one_rate(setup: Setup) -> str:
    if setup.one_rate:
        return ""
    return "computes with one learning rate for all clients; leave lr out of clients.own, or use --algorithm fedavg"


def features(setup: Setup) -> str:
    return "" if setup.has_features else "compares hidden features, but this model has none; use --model mlp or cnn"


def classes(setup: Setup) -> str:
    return (
        "" if setup.target == "classes" else "works on classes, but these targets are no classes; use fedprox or moon"
    )


def server_rows(setup: Setup) -> str:
    if setup.server_rows:
        return ""
    return "needs rows on the server, but it has none; give it some of the training rows with --server-data 0.02"


def sensitive_attribute(setup: Setup) -> str:
    if setup.groups is not False:
        return ""
    return (
        "compares two groups of people, but the data set names no sensitive attribute; use --dataset adult, or your own data with "
        "`sensitive`"
    )


def one_global_model(setup: Setup) -> str:
    """For a method that averages several models: return which part works only with a single one; empty if none does."""
    parts = {
        "a server optimiser would move only one of them; use --server sgd": "server" in setup.changed,
        "a refinement would move only one of them; use --refine none": "refine" in setup.changed,
        "inexactness is measured from a single one; leave out evaluation.inexactness": setup.inexactness,
    }
    return next((f"averages more than one model, but {reason}" for reason, present in parts.items() if present), "")


def sends_local_models(setup: Setup) -> str:
    """For a method whose updates are not the local models minus the received one."""
    if not setup.inexactness:
        return ""
    return (
        "sends another vector than its local model, at which inexactness is measured; leave out evaluation.inexactness"
    )


def no_models_sent(setup: Setup) -> str:
    """For a method that exchanges no models: return which part needs models; empty if none does.

    Such a method cannot work with clients on separate machines yet.
    """
    if not setup.simulated:
        return "gives all clients the same public rows, which works only in simulations so far; use another method"
    if not setup.changed & {"server", "refine", "codec", "sharing"} and not setup.inexactness:
        return ""
    return (
        "exchanges no models, but a server optimiser, a refinement, a codec, a sharing or inexactness needs them; "
        "use --server sgd --refine none --codec none --sharing all, and leave out evaluation.inexactness"
    )


def no_hazard(lr: float) -> str:
    return ""


def proximal_hazard(option: str, strength: float) -> Hazard:
    """Return the hazard of SGD on a loss with a term ``strength / 2 * ||w - x||^2``."""

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
    fewest: int | None = None  # number of finite updates that a round needs; None: one from each client of the cohort
    privacy: Privacy | None = None  # the mechanism that hides each client; no other part may break it
    steps_alone: bool = False  # True if `aggregate` is also called in a round without updates
    planned: bool = False  # True if a round depends on the number of planned rounds
    unused: tuple[str, ...] = ()  # hooks of the class that these options do without; they cost nothing
    shares_model: bool = True  # False: each client keeps its whole model, and sends only the method's extra values
    # By entry (P,) of the client state: a codec loses a part of the update, and the entry grows by this factor times the lost part.
    # It is for entries whose sum the server keeps, too: then client and server both follow the decoded update.
    codec_loss: Mapping[str, float] = MappingProxyType({})

    def refusal(self, setup: Setup) -> str:
        """Return why the method cannot work in this setup; empty if it can."""
        for need in self.needs if self.shares_model else (*self.needs, no_models_sent):
            if reason := need(setup):
                return reason
        if setup.cohort is not None and setup.cohort < (self.fewest or 0):
            return (
                f"needs at least {self.fewest} clients in a round, but the selection gives {setup.cohort}; select more clients, "
                "or let it assume fewer broken ones"
            )
        if self.privacy and self.privacy.noise and setup.clients and self.privacy.delta * setup.clients >= 1:
            return (
                "needs delta below 1 / clients, or else it may reveal all about one client; with "
                f"{setup.clients} clients try delta={setup.clients**-1.1:.1g}"
            )
        return ""

    def updates_needed(self, cohort: int) -> int:
        """Return the number of finite updates that a round with this cohort size needs."""
        return cohort if self.fewest is None else self.fewest

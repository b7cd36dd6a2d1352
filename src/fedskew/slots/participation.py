"""Who takes part in a round: the clients that are online, and the clients that the server selects.

With the same seed, the availability of clients is the same for every method.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.core.contract import Setup
from fedskew.core.errors import require
from fedskew.core.limits import PositiveFloat, PositiveInt, PositiveShare
from fedskew.core.privacy import alone
from fedskew.core.records import Info, Privacy
from fedskew.core.seeding import stream

Bools = NDArray[np.bool_]
Phase = Literal["random", "label"]


def labels_needed(phase: Phase, setup: Setup) -> str:
    """Return why the clients' times cannot follow their labels in this setup; empty if they can."""
    if phase == "random" or (setup.labels_known and setup.target == "classes"):
        return ""
    if setup.target != "classes":
        return "depends on the classes that clients hold, but these targets are no classes; use phase=random"
    return (
        "depends on the classes that clients hold, but the nodes do not report them; set deployment.labels = true, or use "
        "phase=random"
    )


def phases(kind: Phase, clients: Info, seed: int) -> NDArray[np.float64]:
    """Return each client's phase in a cycle, (K,) in [0, 1): random, or by its most frequent class."""
    if kind == "label":
        counts = clients.label_counts.cpu().numpy()
        return counts.argmax(1) / counts.shape[1]
    return stream(seed, "phase").random(len(clients.index))


@dataclass(frozen=True, kw_only=True)
class Always:
    """Every client is available in every round."""

    idea: ClassVar[str] = "every client is online in every round"
    private = alone

    def available(self, clients: Info, round_: int, seed: int) -> Bools:
        """Return for each of the K clients if it is available in the round, (K,)."""
        return np.ones(len(clients.index), dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class Random:
    """Each client is available in each round with probability ``p``, independently."""

    p: PositiveShare = 0.5

    idea: ClassVar[str] = "each client is online with one probability, independently in each round"
    private = alone

    def available(self, clients: Info, round_: int, seed: int) -> Bools:
        return stream(seed, "availability", round_).random(len(clients.index)) < self.p


@dataclass(frozen=True, kw_only=True)
class DayNight:
    """Client k is available in round t with probability ``peak * (1 + cos(2 pi (t / period - phase_k))) / 2``.

    On average this is half the peak.

    ``phase="random"`` draws each client's phase uniformly. ``"label"`` gives clients with the same most frequent class the same
    phase, so that availability depends on the labels.
    """

    period: PositiveInt = 24
    peak: PositiveShare = 1.0
    phase: Phase = "random"

    idea: ClassVar[str] = (
        "more likely by day than by night, each client in its own time zone, or all clients of a main class in one"
    )
    private = alone

    def accepts(self, setup: Setup) -> str:
        return labels_needed(self.phase, setup)

    def available(self, clients: Info, round_: int, seed: int) -> Bools:
        angle = 2 * np.pi * (round_ / self.period - phases(self.phase, clients, seed))
        luck = stream(seed, "availability", round_).random(len(clients.index))
        return luck < self.peak * (1 + np.cos(angle)) / 2


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Clients form ``blocks`` groups of nearly equal size. Each group in turn is available for ``rounds`` rounds.

    ``phase="random"`` assigns clients to groups at random, ``"label"`` in order of their most frequent class.
    """

    blocks: PositiveInt = 2
    rounds: PositiveInt = 10
    phase: Phase = "random"

    idea: ClassVar[str] = "groups of clients take turns, dealt by chance or by their main class"

    def private(self, privacy: Privacy) -> str:
        """Return why this is not private: groups of equal size depend on all clients, by label on their rows, too."""
        return "availability blocks deals groups of equal size, so one client changes the groups of others; use random:p=0.5"

    def accepts(self, setup: Setup) -> str:
        return labels_needed(self.phase, setup)

    def available(self, clients: Info, round_: int, seed: int) -> Bools:
        rank = phases(self.phase, clients, seed).argsort(kind="stable").argsort(kind="stable")
        return rank * self.blocks // len(rank) == round_ // self.rounds % self.blocks


@dataclass(frozen=True, kw_only=True)
class Unequal:
    """Client k is available in each round with its own probability p_k ~ Beta(a, b). The mean is a / (a + b)."""

    a: PositiveFloat = 2.0
    b: PositiveFloat = 2.0

    idea: ClassVar[str] = "each client with a probability of its own, from a Beta distribution"
    private = alone

    def available(self, clients: Info, round_: int, seed: int) -> Bools:
        number = len(clients.index)
        luck = stream(seed, "availability", round_).random(number)
        return luck < stream(seed, "phase").beta(self.a, self.b, number)


@dataclass(frozen=True, kw_only=True)
class OnOff:
    """In each round an available client leaves with probability ``leave``; an absent client joins with probability ``join``.

    On average a client is available for 1 / leave rounds, then absent for 1 / join rounds. In every round, the probability that it
    is available is join / (leave + join).
    """

    leave: PositiveShare = 0.1
    join: PositiveShare = 0.1

    idea: ClassVar[str] = "each client comes and goes, and stays or stays away for some rounds (a Markov chain)"
    private = alone

    def __post_init__(self) -> None:
        require(
            self.leave + self.join <= 1, f"leave and join must be at most 1 together, got {self.leave} and {self.join}"
        )

    def available(self, clients: Info, round_: int, seed: int) -> Bools:
        # Equivalent rule: with probability leave + join a state is drawn anew, else it stays. The last draw decides.
        number, often = len(clients.index), self.leave + self.join
        there, open_ = np.zeros(number, dtype=np.bool_), np.ones(number, dtype=np.bool_)
        for past in range(round_, -1, -1):
            luck = stream(seed, "availability", past).random((number, 2))
            drawn = open_ & ((luck[:, 0] < often) | (past == 0))
            there[drawn] = luck[drawn, 1] < self.join / often
            open_ &= ~drawn
            if not open_.any():
                break
        return there


def not_poisson(component: object, privacy: Privacy) -> str:
    """Return why the privacy accountant does not cover this selection, and what to use instead."""
    return (
        f"its accountant assumes that each client takes part independently with probability q = {privacy.q:g}; use "
        f"--selection poisson:rate={privacy.q:g}"
    )


@dataclass(frozen=True, kw_only=True)
class Everyone:
    """Selects all clients that are online."""

    idea: ClassVar[str] = "every client in every round"
    private = not_poisson

    def largest(self, num_clients: int) -> int:
        return num_clients

    def select(self, clients: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return clients


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Selects each client with probability ``rate``, independently. A round may have no client."""

    rate: PositiveShare = 0.1

    idea: ClassVar[str] = "each client by chance, independently of the others, as privacy accounting assumes"

    def private(self, privacy: Privacy) -> str:
        return "" if self.rate == privacy.q else not_poisson(self, privacy)

    def largest(self, num_clients: int) -> int:
        return num_clients

    def select(self, clients: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return clients[rng.random(len(clients)) < self.rate]


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Draws ``clients`` clients, or a ``fraction`` (at least one), uniformly without replacement; all if fewer are online."""

    clients: PositiveInt | None = None
    fraction: PositiveShare | None = None

    idea: ClassVar[str] = "a random cohort without replacement: a number of clients, or a fraction of them"
    private = not_poisson

    def __post_init__(self) -> None:
        require((self.clients is None) != (self.fraction is None), "give either clients or fraction")

    def size(self, num_clients: int) -> int:
        """Return the size of a cohort if enough clients are online."""
        if self.fraction is not None:
            # in floating point 0.29 * 100 is 28.999..., but the floor must be 29
            return max(int(self.fraction * num_clients + 1e-9), 1)
        assert self.clients is not None
        return self.clients

    def largest(self, num_clients: int) -> int:
        return min(self.size(num_clients), num_clients)

    def accepts(self, setup: Setup) -> str:
        """Return why the cohort is too large: fewer clients have data. Empty if it is not."""
        clients = setup.clients
        if clients is None or self.size(clients) <= clients:
            return ""
        return f"draws {self.size(clients)} clients, but only {clients} have data; draw fewer"

    def select(self, clients: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return np.sort(rng.choice(clients, size=self.largest(len(clients)), replace=False))

"""Concept skew: clients give the same row different labels, from the start or from a later round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeInt, PositiveInt, PositiveShare
from fedskew.core.seeding import stream
from fedskew.skew.feature import Floats, clusters
from fedskew.skew.partition import Ints

if TYPE_CHECKING:
    from fedskew.core.contract import Setup

Parameters = dict[str, NDArray[np.generic]]
Course = Literal["sudden", "gradual", "incremental", "recurrent"]


@dataclass(frozen=True, kw_only=True)
class Concept(ABC):
    """Some clients change to another concept: the same row gets another label.

    ``clusters``: the number of random clusters of clients. The first cluster keeps the data set's concept. Each other cluster gets
    its own. With 1, all clients change to the same concept. ``clients`` below 1: only this share of the clients changes. These
    clients are dealt to the clusters other than the first.
    ``rho``: the share of the rows that change. ``at_round``: the first round with the new concept, counted from 0. With
    ``stagger`` > 0 each client starts up to ``stagger`` rounds later.
    ``course``: ``sudden``: all rows change at once. ``gradual``: they change in random order, over ``rounds`` rounds.
    ``incremental``: they change class by class, or from the far side of the region inwards, over ``rounds`` rounds.
    ``recurrent``: the old and the new concept take turns, with ``rounds`` rounds each.
    """

    clusters: PositiveInt = 2
    clients: PositiveShare = 1.0
    rho: PositiveShare = 1.0
    at_round: NonNegativeInt = 0
    course: Course = "sudden"
    rounds: PositiveInt = 10
    stagger: NonNegativeInt = 0

    def __post_init__(self) -> None:
        require(
            self.changes or self.clusters > 1 or self.clients < 1,
            "clusters=1 from the start gives all clients the same concept; use clusters=2, or say at_round",
        )

    def accepts(self, setup: Setup) -> str:
        if setup.target != "classes":
            return "changes classes, but these targets are no classes; use a feature skew"
        if setup.simulated:
            return ""
        return "changes labels, which works only in simulations, because nodes have their own labels; leave it out"

    @property
    def changes(self) -> bool:
        """True if any label changes after round 0."""
        return self.at_round > 0 or self.course != "sudden" or self.stagger > 0

    @property
    def complete(self) -> int:
        """The first round in which the change is complete for all clients."""
        return self.at_round + self.stagger + (self.rounds if self.course in ("gradual", "incremental") else 0)

    @property
    def kinds(self) -> int:
        """The number of new concepts, without the data set's own."""
        return max(self.clusters - 1, 1)

    def assign(self, num_clients: int, rng: np.random.Generator) -> Parameters:
        """Draw ``group`` (K,), the concept to which each client changes (0: none), and ``start`` (K,), its first round."""
        group = clusters(self.clusters, num_clients, rng) if self.clusters > 1 else np.ones(num_clients, dtype=np.int64)
        concerned = rng.permutation(num_clients)[: max(1, round(self.clients * num_clients))]
        if self.clients < 1:
            group = np.zeros(num_clients, dtype=np.int64)
            group[concerned] = 1 + np.arange(len(concerned)) % self.kinds
        return {"group": group, "start": self.at_round + rng.integers(0, self.stagger + 1, num_clients)}

    def reach(self, since: Ints) -> NDArray[np.float64]:
        """Return the share (0..1) of a client's rows with the new concept, ``since`` rounds after its start."""
        if self.course in ("gradual", "incremental"):
            return self.rho * np.clip(since / self.rounds, 0.0, 1.0)
        changed = since >= 0
        if self.course == "recurrent":
            changed &= since // self.rounds % 2 == 0
        return self.rho * changed.astype(np.float64)

    @abstractmethod
    def draw(self, x: Floats, num_classes: int, num_clients: int, rng: np.random.Generator) -> Parameters:
        """Draw ``group`` and ``start`` of each client, and a ``table`` (concepts + 1, classes) of new labels."""

    @abstractmethod
    def touched(self, parameters: Parameters, x: Floats, group: Ints) -> NDArray[np.bool_]:
        """Return for each row (n,) if it may change."""

    @abstractmethod
    def turn(self, parameters: Parameters, x: Floats, y: Ints, group: Ints) -> NDArray[np.float64]:
        """Return when each row (n,) changes in an incremental change, in 0..1."""


@dataclass(frozen=True, kw_only=True)
class ConceptSwap(Concept):
    """The labels of a random share ``strength`` of the classes are permuted cyclically.

    Any two concepts disagree on all these classes, so that no single model is right for both.
    """

    strength: PositiveShare = 1.0

    idea: ClassVar[str] = "labels are exchanged in some clients, from the start or from a round on"
    cites: ClassVar[tuple[str, ...]] = ("ifca",)

    def draw(self, x: Floats, num_classes: int, num_clients: int, rng: np.random.Generator) -> Parameters:
        moved = rng.permutation(num_classes)[: round(self.strength * num_classes)]
        require(
            len(moved) >= 2,
            f"strength {self.strength} of {num_classes} classes leaves fewer than two to exchange; raise it",
        )
        require(
            self.kinds < len(moved),
            f"{len(moved)} exchanged classes allow {len(moved)} concepts; use clusters={len(moved)} or less",
        )
        table = np.tile(np.arange(num_classes), (self.kinds + 1, 1))
        for shift in range(1, self.kinds + 1):
            table[shift, moved] = np.roll(moved, -shift)
        turn = np.ones(num_classes)  # when each class changes in an incremental change: one after the other, in 0..1
        turn[moved] = (np.arange(len(moved)) + 0.5) / len(moved)
        return {**self.assign(num_clients, rng), "table": table, "turn": turn}

    def touched(self, parameters: Parameters, x: Floats, group: Ints) -> NDArray[np.bool_]:
        return group > 0

    def turn(self, parameters: Parameters, x: Floats, y: Ints, group: Ints) -> NDArray[np.float64]:
        return parameters["turn"][y].astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class ConceptFlip(Concept):
    """Rows in a half-space of the features get the next class as label. With two classes, labels flip.

    The half-space contains ``share`` of the training rows. Each concept has its own half-space, in a random direction of the data
    set's standardised features.
    """

    share: PositiveShare = 0.5

    idea: ClassVar[str] = "labels flip in some clients where the features lie in a half-space"

    def draw(self, x: Floats, num_classes: int, num_clients: int, rng: np.random.Generator) -> Parameters:
        require(num_classes >= 2, "labels can flip only if there are at least two classes")
        flat = x.reshape(len(x), -1)
        std = flat.std(axis=0, dtype=np.float64)
        direction = rng.standard_normal((self.kinds, flat.shape[1])) / np.where(std > 0, std, np.inf)
        across = np.sort([along(flat, vector) for vector in direction], axis=1)
        table = np.tile(np.arange(num_classes), (self.kinds + 1, 1))
        table[1:] = (table[1:] + 1) % num_classes
        return {**self.assign(num_clients, rng), "table": table, "direction": direction, "across": across}

    def depth(self, parameters: Parameters, x: Floats, group: Ints) -> NDArray[np.float64]:
        """Return for each row (n,) the share of training rows that lie further in its concept's direction."""
        shares = np.ones(len(x))
        for j in range(len(parameters["direction"])):
            mine = group == j + 1
            across: NDArray[np.float64] = parameters["across"][j].astype(np.float64)
            where = along(x[mine].reshape(int(mine.sum()), -1), parameters["direction"][j].astype(np.float64))
            shares[mine] = (len(across) - np.searchsorted(across, where, side="right")) / len(across)
        return shares

    def touched(self, parameters: Parameters, x: Floats, group: Ints) -> NDArray[np.bool_]:
        return self.depth(parameters, x, group) < self.share

    def turn(self, parameters: Parameters, x: Floats, y: Ints, group: Ints) -> NDArray[np.float64]:
        return self.depth(parameters, x, group) / self.share


def along(rows: Floats, direction: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inner products (n,) with a direction. Unlike a matrix product, each is bitwise independent of other rows."""
    return np.einsum("ij,j->i", rows.astype(np.float64), direction)


@dataclass(frozen=True, eq=False)
class Layer:
    """One concept skew on some rows. Row i has the new concept in round r if ``u[i] < reach(r - start[i])``."""

    skew: Concept
    table: Ints  # (concepts + 1, classes)
    group: Ints  # (n,) the concept to which a row may change; 0: none
    start: Ints  # (n,) the client's first round with the new concept
    u: NDArray[np.float64]  # (n,) in 0..1


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of some rows over the rounds."""

    y: Ints  # (n,) labels of the data set
    layers: tuple[Layer, ...]

    @property
    def change(self) -> bool:
        """True if any label differs between rounds."""
        return any(layer.skew.changes and bool(layer.group.any()) for layer in self.layers)

    def at(self, round_: int) -> Ints:
        """Return the labels (n,) of a round, counted from 0."""
        y = self.y
        for layer in self.layers:
            other = layer.u < layer.skew.reach(round_ - layer.start)
            y = np.where(other, layer.table[layer.group, y], y)
        return y


def draw_all(concepts: Sequence[Concept], x: Floats, num_classes: int, num_clients: int, seed: int) -> list[Parameters]:
    """Draw the parameters of each skew for the clients."""
    streams = (stream(seed, "concepts", place, 0) for place in range(len(concepts)))
    return [skew.draw(x, num_classes, num_clients, rng) for skew, rng in zip(concepts, streams, strict=True)]


def labels_of(
    concepts: Sequence[Concept],
    drawn_parameters: Sequence[Parameters],
    x: Floats,
    y: Ints,
    owner: Ints,
    seed: int,
    part: int,
) -> Labels:
    """Return the labels of the clients' rows over the rounds. A row without an owner (-1) keeps the data set's concept.

    ``part`` is 1 for training and 2 for test rows, so that both get different random numbers.
    """
    layers = []
    for place, (skew, drew) in enumerate(zip(concepts, drawn_parameters, strict=True)):
        group = np.where(owner >= 0, drew["group"][np.maximum(owner, 0)], 0).astype(np.int64)
        group[~skew.touched(drew, x, group)] = 0
        u = stream(seed, "concepts", place, part).random(len(y))
        if skew.course == "incremental":
            u = skew.turn(drew, x, y, group)
        start = drew["start"][np.maximum(owner, 0)].astype(np.int64)
        layers.append(Layer(skew, drew["table"].astype(np.int64), group, start, u))
    return Labels(y, tuple(layers))

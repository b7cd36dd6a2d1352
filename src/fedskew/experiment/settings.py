"""The settings of an experiment that are no components: one class for each section."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedskew.core.errors import require, require_storable
from fedskew.core.privacy import after_noise, alone

if TYPE_CHECKING:
    from fedskew.core.contract import Setup

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
    """

    number: int = 10
    partition_seed: int = 0
    held_out: float = 0.2
    unseen: float = 0.0
    private = alone

    def accepts(self, setup: Setup) -> str:
        """Return why this run cannot leave clients out of training; empty if it can."""
        return "" if setup.simulated or not self.unseen else "unseen: on nodes every client trains; leave it out"

    def __post_init__(self) -> None:
        require(self.number >= 1, f"number must be at least 1, got {self.number}")
        require(self.partition_seed >= 0, f"partition_seed must be at least 0, got {self.partition_seed}")
        require_storable("partition_seed", self.partition_seed)
        require(0 <= self.held_out < 1, f"held_out is a share, at least 0 and below 1, got {self.held_out}")
        require(0 <= self.unseen < 1, f"unseen is a share, at least 0 and below 1, got {self.unseen}")
        require(
            self.held_out > 0 or not self.unseen,
            "unseen clients are measured on held-out rows; set held_out above 0",
        )


@dataclass(frozen=True, kw_only=True)
class ServerData:
    """The server's own labelled rows: a class-balanced ``share`` (0..0.5) of the training rows. No client gets these rows.

    Before round 0 the initial model takes ``warm_up`` steps of the local solver on all of them.
    """

    share: float = 0.0
    warm_up: int = 0
    private = alone

    def __post_init__(self) -> None:
        require(self.warm_up >= 0, f"warm_up must be at least 0, got {self.warm_up}")
        require(self.share > 0 or not self.warm_up, f"warm_up {self.warm_up} needs rows: set share above 0")
        require(0 <= self.share <= 0.5, f"share must be at least 0 and at most 0.5, got {self.share}")


@dataclass(frozen=True, kw_only=True)
class SharedData:
    """A public, class-balanced share of the training rows. Every client gets a random part of it beside its own rows.

    ``beta`` (0..1) is the size of the share relative to the rows that are dealt, ``alpha`` (0..1) the part of it that each client
    gets. These rows count among the client's rows. No model is warmed up on the share.
    """

    beta: float = 0.0
    alpha: float = 1.0
    private = alone

    def __post_init__(self) -> None:
        require(0 <= self.beta <= 1, f"beta must be at least 0 and at most 1, got {self.beta}")
        require(0 < self.alpha <= 1, f"alpha must be above 0 and at most 1, got {self.alpha}")


@dataclass(frozen=True, kw_only=True)
class Training:
    """Rounds, random seed, number format and device.

    With ``threads=0``, ``engine="auto"`` chooses the number of threads, or else PyTorch; parallel runs share the cores.
    ``states`` says where client states are between rounds; "auto" is the disk if they take more than 1 GiB in total.
    ``device="auto"`` is a GPU if there is one. ``precision="bf16"`` uses PyTorch's autocast; parameters stay in ``dtype``.
    """

    rounds: int = 30
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["full", "bf16"] = "full"
    device: str = "cpu"
    threads: int = 0
    states: Literal["auto", "memory", "disk"] = "auto"
    private = after_noise

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}")
        require(self.seed >= 0, f"seed must be at least 0, got {self.seed}")
        for name in ("rounds", "seed"):
            require_storable(name, getattr(self, name))
        require(self.precision == "full" or self.dtype == "float32", "precision bf16 needs dtype float32")
        require(
            0 <= self.threads <= MOST_THREADS,
            f"threads must be at least 0 and at most {MOST_THREADS}, got {self.threads}",
        )


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

    every: int | Literal["auto"] = 1
    max_clients: int = 1000
    local_models: bool = True
    adapt_steps: int = 0
    adapt_lr: float | None = None
    inexactness: bool = False
    layers: bool = False
    classes: bool = False
    margin: float | None = None
    private = after_noise

    def accepts(self, setup: Setup) -> str:
        """Return why something cannot be measured on these targets or on Flower's nodes; empty if all can."""
        if self.classes and setup.target not in ("classes", "labels"):
            return "classes: the targets are neither classes nor labels; leave it out"
        if setup.simulated or not self.inexactness:
            return ""
        return "inexactness needs the clients' rows at the server, and they stay on the nodes; leave it out"

    def __post_init__(self) -> None:
        require(self.every == "auto" or self.every >= 1, f"every must be at least 1, or auto, got {self.every}")
        require(self.max_clients >= 1, f"max_clients must be at least 1, got {self.max_clients}")
        require(self.adapt_steps >= 0, f"adapt_steps must be at least 0, got {self.adapt_steps}")
        for name in ("adapt_lr", "margin"):
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, f"{name} must be a finite number above 0, got {value}")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Save a checkpoint after every ``every`` rounds, at the end, and when the run is interrupted."""

    every: int = 10
    private = after_noise

    def __post_init__(self) -> None:
        require(self.every >= 1, f"every must be at least 1, got {self.every}")


LIGHT: dict[str, type] = {
    "clients": Clients,
    "server_data": ServerData,
    "shared_data": SharedData,
    "training": Training,
    "evaluation": Evaluation,
    "checkpoint": Checkpoint,
}
"""Sections of plain settings that can be checked without PyTorch."""

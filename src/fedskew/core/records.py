"""The records that travel between the loops, the engines and the hooks of an algorithm.

Shapes: C clients of the cohort, K classes, P parameters, B rows of a batch. Inside a client hook the leading axis C is
absent; the engine adds it when it stacks clients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.batch import Batch as Batch
from fedskew.core.seeding import Seed
from fedskew.core.task import Task
from fedskew.core.trees import Tree
from fedskew.core.vectors import Dispersion, weighted_sum


class Info(NamedTuple):
    """Facts about a client before training."""

    index: Tensor  # type: ignore[assignment]  # () integer id; a tuple has a method of this name
    num_examples: Tensor  # () rows it trains on
    label_counts: Tensor  # (K,) rows of each class
    batch_size: Tensor  # () rows of a full batch


class View(NamedTuple):
    """All inputs of one client in one round. A client hook sees nothing else."""

    x: Tensor  # (P,) the global model
    extras: Tree  # what the algorithm adds to the broadcast
    state: Tree  # this client's own state from earlier rounds
    info: Info
    before: Tree  # sums over the local data at x, if the algorithm asked for them
    lr: Tensor  # () the client learning rate of this round
    steps: Tensor  # () local steps that the client takes in this round


OWN = ("state", "info", "before", "steps")
"""The fields of a view that differ between clients. In a cohort's view they have a leading axis; clients share the others."""


def rows_of(values: object, dtype: torch.dtype, device: torch.device, ids: bool) -> Tensor:
    """Convert rows to a tensor of this type, or of integers if they are ``ids``. A matching tensor is not copied."""
    rows = torch.as_tensor(values, device=device)
    return rows.to(torch.long if ids and not rows.is_floating_point() else dtype)


def targets_of(values: object, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Convert targets to a tensor: numbers of this type, classes as integers."""
    y = torch.as_tensor(values, device=device)
    return y.to(dtype) if y.is_floating_point() else y


def channels_last(x: Tensor) -> Tensor:
    """Store images with the channels of a pixel side by side, the fastest layout for convolutions on a CPU. Other rows stay."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


class Carry(NamedTuple):
    """State of a client between two local steps."""

    w: Tensor  # (P,) the local model
    opt: Tree  # the solver's state, fresh in every round
    scratch: Tree  # the algorithm's own, fresh in every round
    steps: Tensor  # () steps taken so far


class Upload(NamedTuple):
    """The message of a client after its local steps."""

    delta: Tensor  # (P,) local model minus global model
    extras: Tree
    report: Tree  # scalars


class Cohort(NamedTuple):
    """The clients that answered; every leaf has a leading axis C, sorted by client id."""

    info: Info
    uploads: Upload
    known: Dispersion | None = None  # dispersion of the deltas, before any codec

    @property
    def size(self) -> int:
        return int(self.info.index.shape[0])

    def sum(self, weights: Tensor) -> Tensor:
        """``sum_c weights[c] * delta[c]`` (P,). A known sum of these deltas and weights is not computed again."""
        rows, known = self.uploads.delta, self.known
        if known is not None and known.rows is rows and torch.equal(known.weights, weights.double()):
            return known.total
        return weighted_sum(weights, rows)


class Server(NamedTuple):
    """The server's changing state between two rounds."""

    round: int  # rounds finished so far
    x: Tensor  # (P,) the global model
    opt: Tree  # the server optimiser's state
    state: Tree  # the algorithm's own


class ServerView(NamedTuple):
    """All inputs of a server hook in one round: first what changes, then what stays the same."""

    round: int  # rounds finished so far
    x: Tensor  # (P,) the global model
    state: Tree  # the algorithm's own
    rounds: int  # rounds that are planned
    seed: Seed  # seed of the server's random draws, for `fedskew.core.seeding`
    clients: Info  # leading axis: all K clients of the population that hold data
    task: Task
    data: Batch | None  # the server's own labelled rows, if it has any

    @property
    def num_clients(self) -> int:
        """Clients of the population that hold data."""
        return int(self.clients.index.shape[0])

    @property
    def num_examples(self) -> float:
        """Rows of the population."""
        return float(self.clients.num_examples.sum())


class Privacy(NamedTuple):
    """A round as a Gaussian mechanism on a Poisson sample of the clients."""

    q: float  # the probability with which a client takes part
    noise: float  # standard deviation of the noise, divided by the most that one client can add to the sum
    delta: float  # the delta for which epsilon is stated
    by: type | None = None  # the method that states it; a subclass must state its own


class Plan(NamedTuple):
    """The batches of a client: row numbers in the pooled data and a mask, both (T, B)."""

    index: NDArray[np.int64]  # type: ignore[assignment]  # a tuple has a method of this name
    mask: NDArray[np.float64]
    warp: NDArray[np.int64] | None = None  # (T, B, 3), see `fedskew.loop.warp`; None: rows as they are

    def first(self, steps: int) -> Plan:
        """The first ``steps`` steps."""
        return Plan(self.index[:steps], self.mask[:steps], None if self.warp is None else self.warp[:steps])

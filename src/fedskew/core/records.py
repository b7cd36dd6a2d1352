"""The records that loops, engines and a method's hooks exchange.

Shapes: C clients of the cohort, K classes, P parameters, B rows of a batch. Inside a client hook the leading axis C is
absent; the engine adds it when it stacks clients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.seeding import Seed
from fedskew.core.task import Batch as Batch, Task
from fedskew.core.trees import Dispersion, Tree, pick, weighted_sum


class Info(NamedTuple):
    """Facts about a client before training."""

    index: Tensor  # type: ignore[assignment]  # () integer id; a tuple has a method of this name
    num_examples: Tensor  # () number of rows on which it trains
    label_counts: Tensor  # (K,) number of rows of each class
    batch_size: Tensor  # () number of rows in a full batch


class View(NamedTuple):
    """All inputs of one client in one round. A client hook sees nothing else."""

    x: Tensor  # (P,) the global model
    extras: Tree  # the tensors that the method broadcasts in addition to the model
    state: Tree  # this client's own state from earlier rounds
    info: Info
    before: Tree  # the sums of the hook `before` over the local data, if the method has this hook
    lr: Tensor  # () the client's learning rate in this round
    steps: Tensor  # () number of local steps that the client takes in this round

    def of(self, at: object) -> View:
        """Return the view of the clients at these positions of the cohort; of one client for a single position."""
        return self._replace(**{part: pick(getattr(self, part), at) for part in OWN})


OWN = ("state", "info", "before", "steps")
"""The fields of a view that differ between clients. In a cohort's view they have a leading axis; all clients share the others."""


def rows_of(values: object, dtype: torch.dtype, device: torch.device, ids: bool) -> Tensor:
    """Convert rows to a tensor of this type, or to integers if they are ``ids``. A matching tensor is not copied."""
    rows = torch.as_tensor(values, device=device)
    return rows.to(torch.long if ids and not rows.is_floating_point() else dtype)


def targets_of(values: object, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Convert targets to a tensor: numbers of this type, classes as integers."""
    y = torch.as_tensor(values, device=device)
    return y.to(dtype) if y.is_floating_point() else y


def channels_last(x: Tensor) -> Tensor:
    """Store images with the channels of a pixel side by side: the fastest layout for convolutions on a CPU.

    Other rows do not change.
    """
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


class Carry(NamedTuple):
    """The state of a client between two local steps."""

    w: Tensor  # (P,) the local model
    opt: Tree  # the solver's state, new in every round
    scratch: Tree  # the method's values between steps, new in every round
    steps: Tensor  # () number of steps so far


class Upload(NamedTuple):
    """What a client sends after its local steps, and notes for the store."""

    delta: Tensor  # (P,) local model minus global model
    extras: Tree
    report: Tree  # scalars
    notes: Tree = {}  # noqa: RUF012  # scalars that a simulation stores and nobody sends: no server hook gets them


class Cohort(NamedTuple):
    """The clients that answered, sorted by id. Every leaf has a leading axis C."""

    info: Info
    uploads: Upload
    dispersion: Dispersion | None = None  # dispersion of the deltas before the codec, if it is computed already

    @property
    def size(self) -> int:
        return int(self.info.index.shape[0])

    def sum(self, weights: Tensor) -> Tensor:
        """Return ``sum_c weights[c] * delta[c]`` (P,). If this sum is known already, it is not computed again."""
        rows, seen = self.uploads.delta, self.dispersion
        if seen is not None and seen.rows is rows and torch.equal(seen.weights, weights.double()):
            return seen.total
        return weighted_sum(weights, rows)


class Server(NamedTuple):
    """The server's state between two rounds."""

    round: int  # number of finished rounds
    x: Tensor  # (P,) the global model
    opt: Tree  # the server optimiser's state
    state: Tree  # the method's state


class ServerView(NamedTuple):
    """All inputs of a server hook in one round. The first three change from round to round."""

    round: int  # number of finished rounds
    x: Tensor  # (P,) the global model
    state: Tree  # the method's state
    rounds: int  # number of planned rounds
    seed: Seed  # seed of the server's random draws, for `fedskew.core.seeding`
    clients: Info  # leading axis: all K clients that have data
    task: Task
    data: Batch | None  # the server's own labelled rows, if it has any
    weights: Tensor  # (K,) the clients' own weights, see `Algorithm.weighting`; 1 for a client without one
    after: Tree | None = None  # in `Algorithm.decided`: the state that `aggregate` returned

    @property
    def num_clients(self) -> int:
        """The number of clients that have data."""
        return int(self.clients.index.shape[0])

    @property
    def num_examples(self) -> float:
        """The number of all clients' rows together."""
        return float(self.clients.num_examples.sum())


class Privacy(NamedTuple):
    """A round as a Gaussian mechanism on a Poisson sample of the clients."""

    q: float  # the probability that a client takes part
    noise: float  # standard deviation of the noise, divided by the maximum length that one client can add to the sum
    delta: float  # the delta for which epsilon is computed
    by: type | None = None  # the method that declares this; a subclass must declare its own


class BatchPlan(NamedTuple):
    """The batches of a client: row numbers in the pooled data and a mask, both (T, B)."""

    index: NDArray[np.int64]  # type: ignore[assignment]  # a tuple has a method of this name
    mask: NDArray[np.float64]
    warp: NDArray[np.int64] | None = None  # (T, B, 3), see `fedskew.loop.work`; None: rows are not changed

    def first(self, steps: int, rows: int | None = None) -> BatchPlan:
        """Return the plan of the first ``steps`` steps, with the first ``rows`` rows of each batch."""
        parts = (None if part is None else part[:steps, :rows] for part in self)
        return BatchPlan(*parts)  # type: ignore[arg-type]

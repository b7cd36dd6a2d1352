"""Who does which work: plans of batches, stragglers, dropouts, and clients of different speed.

Plans depend only on (seed, round, client), so that all methods and engines train on the same batches.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Protocol

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedskew.core.contract import Augmentation, Setup
from fedskew.core.errors import BadInput, require
from fedskew.core.limits import PositiveFloat, PositiveInt, PositiveShare, Share
from fedskew.core.machine import require_memory
from fedskew.core.privacy import alone
from fedskew.core.records import BatchPlan, Privacy
from fedskew.core.rows import Of
from fedskew.core.seeding import stream
from fedskew.skew.partition import Ints

PLAN_BYTES = 24
"""Number of bytes for each row of a plan: two indices and a mask."""

PASS_ROWS = 128
"""Number of rows in a batch when a client's data are read without training."""


class Planner(Protocol):
    """Makes the plan of batches of one client in one round."""

    def train(self, round_: int, client: int, rows: Ints) -> BatchPlan: ...

    def batch_sizes(self, sizes: Ints) -> Ints:
        """Return each client's batch size (K,). ``sizes`` (K,) are the clients' numbers of rows."""

    def varied(self, shares: Mapping[int, float]) -> "Planner":
        """Return a planner in which each client in ``shares`` has this share of the batch size, rounded by `adapted`."""

    def parts(self, client: int) -> int:
        """Return into how many equal parts the client's plans divide. A straggler stops after one of these parts."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """The local work of a round: ``epochs`` over the client's rows, or exactly ``steps`` batches if ``steps`` is given.

    ``batches="shuffled"`` reshuffles in every epoch, and keeps the last, shorter batch. ``"independent"`` draws each batch
    with replacement. ``batch_size="all"`` takes all the client's rows at once. Part of an epoch, such as ``epochs=0.25``, is this
    part of its batches, rounded up.
    """

    epochs: PositiveInt | PositiveFloat = 5
    steps: PositiveInt | None = None
    batch_size: PositiveInt | Literal["all"] = 16
    batches: Literal["shuffled", "independent"] = "shuffled"
    private = alone


@dataclass(frozen=True, kw_only=True)
class NamedWork(Local):
    """The local work of a named client, its learning rate, and its weight in averages with ``weighting="own"``.

    ``lr`` is in place of the solver's, and follows the same schedule; None: the solver's.
    """

    lr: PositiveFloat | None = None
    weight: PositiveFloat = 1.0


@dataclass(frozen=True)
class SeededPlanner:
    """Draws batches from the random stream (seed, purpose, round, client).

    ``by_client`` is each client's local work, if they differ.
    """

    local: Local
    seed: int
    by_client: tuple[Local, ...] = ()
    sizes: Mapping[int, int] = field(default_factory=dict)  # batch sizes of this round by client, before all others
    purpose: str = "batches"
    augmentation: Augmentation | None = None

    def work(self, client: int) -> Local:
        """Return the local work of one client."""
        return self.by_client[client] if self.by_client else self.local

    def batch_size(self, client: int, num_rows: int) -> int:
        size = self.sizes.get(client, self.work(client).batch_size)
        return num_rows if size == "all" else min(size, num_rows)

    def batch_sizes(self, sizes: Ints) -> Ints:
        if self.by_client or self.sizes:
            return np.asarray([self.batch_size(k, n) for k, n in enumerate(sizes.tolist())])
        return np.minimum(sizes, self.local.batch_size) if self.local.batch_size != "all" else sizes

    def varied(self, shares: Mapping[int, float]) -> "SeededPlanner":
        return replace(self, sizes={k: adapted(self.local, share) for k, share in shares.items()})

    def parts(self, client: int) -> int:
        return max(1, int(self.work(client).steps or self.work(client).epochs))

    def train(self, round_: int, client: int, rows: Ints) -> BatchPlan:
        plan = self.dealt(round_, client, rows)
        if self.augmentation is None:
            return plan
        rng = stream(self.seed, "augment", round_, client)
        return plan._replace(warp=self.augmentation.draw(plan.index.shape, rng))

    def check_memory(self, sizes: Ints, cohort: int) -> None:
        """Raise `BadInput` if the plans of a round do not fit into memory. The ``cohort`` largest clients take part in it."""
        works, batch = self.by_client or (self.local,), self.batch_sizes(sizes)
        epochs, steps = (
            np.asarray([getattr(w, name) or 0 for w in works], dtype=float) for name in ("epochs", "steps")
        )
        rows = np.where(steps, steps, epochs * -(-sizes // batch)) * batch
        require_memory(
            int(PLAN_BYTES * np.sort(rows)[-cohort:].sum()),
            f"local: the plan of a round, {rows.max():.2g} rows of a client in batches,",
            "lower epochs or steps",
        )

    def extent(self, client: int, num_rows: int) -> tuple[int, int]:
        """Return the number of local steps of a client with ``num_rows`` rows, and its batch size."""
        local, size = self.work(client), self.batch_size(client, num_rows)
        # 0.07 epochs of 100 batches are 7.000000000000001
        return local.steps or math.ceil(local.epochs * -(-num_rows // size) - 1e-9), size

    def dealt(self, round_: int, client: int, rows: Ints) -> BatchPlan:
        """Return the plan of batches without augmentation."""
        rng = stream(self.seed, self.purpose, round_, client)
        steps, size = self.extent(client, len(rows))
        if self.work(client).batches == "independent":
            return BatchPlan(rows[rng.integers(0, len(rows), size=(steps, size))], np.ones((steps, size)))
        epochs = -(-steps // -(-len(rows) // size))
        return in_batches(np.stack([rng.permutation(rows) for _ in range(epochs)]), size).first(steps)


NO_STEPS = BatchPlan(np.zeros((0, 1), dtype=np.int64), np.zeros((0, 1)))
"""The plan of a client that does not train."""


def one_pass(rows: Ints, joint: bool = False) -> BatchPlan:
    """Return a plan with all rows once, in large batches; in a single batch if ``joint``.

    Without rows there is one batch with mask 0, so that sums over it are 0.
    """
    if not len(rows):
        return BatchPlan(np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1)))
    return in_batches(rows[None], len(rows) if joint else min(PASS_ROWS, len(rows)))


def in_batches(epochs: Ints, size: int) -> BatchPlan:
    """Divide each epoch of ``epochs`` (epochs, n) into consecutive batches of ``size`` rows; the last one is padded with mask 0."""
    n = epochs.shape[1]
    count = -(-n // size)
    index = np.empty((len(epochs), count * size), dtype=np.int64)
    mask = np.zeros(index.shape)
    index[:, :n] = epochs
    index[:, n:] = epochs[:, [(count - 1) * size]]
    mask[:, :n] = 1
    return BatchPlan(index.reshape(-1, size), mask.reshape(-1, size))


Choices = tuple[int, ...] | str
"""Values to draw from: a list, or a range such as ``"2-6"``."""

Late = Mapping[int, float]
"""The stragglers of a cohort. A number in [0, 1) says how much of its work each one does."""


@dataclass(frozen=True, kw_only=True)
class System:
    """How reliable and how fast clients are. Without options, every client does all its work in every round.

    ``stragglers`` is the probability that a client does only a part of its work if it is selected, drawn anew for each client and
    round. The part is a number of epochs (or of steps, if ``local.steps`` is set), drawn uniformly from 1 to one less than all; a
    client with one epoch does it. Of 2.5 epochs it is one of two equal parts. The server aggregates this part, as in
    FedProx, or discards it with ``drop_stragglers``.
    ``dropout`` is the probability that a selected client does not answer. ``epochs`` and ``batch_sizes`` give each client its own
    value, drawn once from a list or a range such as ``"2-6"``. ``resources`` and ``variance`` set batch sizes by `adapted`:
    ``resources`` has shares of the largest device; each client draws one. With ``variance`` the clients of a round send, at its
    start, the variance of their rows' losses or gradients, see `fedskew.loop.batches`.
    """

    stragglers: Share = 0.0
    drop_stragglers: bool = False
    dropout: Share = 0.0
    epochs: Choices | None = None
    batch_sizes: Choices | None = None
    resources: Annotated[tuple[PositiveShare, ...], Meta(min_length=1)] | None = None
    variance: Of | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_sizes"):
            if getattr(self, name) is not None:
                values(name, getattr(self, name))
        adapts = self.resources is not None or self.variance is not None
        require(
            not (adapts and self.batch_sizes is not None),
            "batch_sizes, resources and variance all set the batch sizes; leave out batch_sizes, or the others",
        )

    def private(self, privacy: Privacy) -> str:
        return "variance makes a client's batches depend on the other clients; leave it out" if self.variance else ""

    @property
    def decides(self) -> dict[str, str]:
        """What a run stores of it, as in `Algorithm.decides`."""
        varies = (self.batch_sizes, self.resources, self.variance) != (None, None, None)
        return {"client/batch_size": "rows in a full batch"} if varies else {}

    def accepts(self, setup: Setup) -> str:
        """Return why an option would have no effect on the local work; empty if all have an effect."""
        local = setup.local
        if self.epochs is not None and local.steps is not None:
            return "epochs have no effect if local.steps is set; leave one of them out"
        if (self.resources is not None or self.variance is not None) and local.batch_size == "all":
            return "resources and variance scale a batch of some rows; set local.batch_size to a number"
        if self.variance is not None and not setup.simulated:
            return "variance is surveyed in simulations only; leave it out"
        most = int(local.steps or (max(values("epochs", self.epochs)) if self.epochs else local.epochs))
        if not self.stragglers or self.drop_stragglers or most > 1:
            return ""
        return (
            "a straggler does fewer than all local epochs, and there is only 1; raise local.epochs, or set "
            "system.drop_stragglers"
        )

    def own_work(self, local: Local, num_clients: int, seed: int) -> tuple[Local, ...]:
        """Return the local work of each client; () if all clients do ``local``."""
        epochs: Sequence[float] = values("epochs", self.epochs) if self.epochs else [local.epochs]
        sizes: Sequence[int | Literal["all"]] = [local.batch_size]
        if self.resources is not None or self.variance is not None:
            sizes = [adapted(local, share) for share in self.resources or (1.0,)]
        elif self.batch_sizes is not None:
            sizes = values("batch_sizes", self.batch_sizes)
        elif self.epochs is None:
            return ()
        at = (stream(seed, "devices").random((num_clients, 2)) * (len(epochs), len(sizes))).astype(np.int64).tolist()
        kinds = {(e, b): replace(local, epochs=epochs[e], batch_size=sizes[b]) for e, b in set(map(tuple, at))}
        return tuple(kinds[e, b] for e, b in at)

    def shares(self, num_clients: int, seed: int) -> list[float]:
        """Return each client's share of the largest device (K,); 1 without ``resources``."""
        possible = self.resources or (1.0,)
        return [possible[int(u * len(possible))] for u in stream(seed, "devices").random((num_clients, 2))[:, 1]]

    def reached(self, num_clients: int, round_: int, seed: int) -> NDArray[np.bool_]:
        """Return for each client (K,) if it answers when it is selected."""
        if not self.dropout:
            return np.ones(num_clients, dtype=np.bool_)
        return stream(seed, "dropout", round_).random(num_clients) >= self.dropout

    def late(self, cohort: Ints, num_clients: int, round_: int, seed: int) -> Late:
        """Return the stragglers of a cohort.

        Each client has its own random draw, so that another client in the cohort does not change it.
        """
        if not self.stragglers:
            return {}
        luck = stream(seed, "stragglers", round_).random((num_clients, 2))
        return {int(k): float(luck[k, 1]) for k in cohort if luck[k, 0] < self.stragglers}


def adapted(local: Local, share: float) -> int:
    """Return the share of the local batch size, as the next lower power of two, but at least 8 and at most 4 times the size."""
    assert local.batch_size != "all"
    return min(max(2 ** math.floor(math.log2(local.batch_size * share)), 8), 4 * local.batch_size)


def values(option: str, choices: Choices) -> Sequence[int]:
    """Parse the values to draw from. Raises `BadInput`, which names the option, if they are not valid."""
    if isinstance(choices, str):
        ends = re.fullmatch(r"([0-9]+)-([0-9]+)", choices)
        if not ends:
            raise BadInput(f"{option}: cannot read {choices!r}; write a list such as [1,2,5], or a range such as 2-6")
        drawn: Sequence[int] = range(int(ends[1]), int(ends[2]) + 1)
    else:
        drawn = choices
    require(len(drawn) > 0 and min(drawn) >= 1, f"{option}: needs one or more numbers of at least 1, got {choices!r}")
    return drawn


def partial(plan: BatchPlan, parts: int, luck: float) -> BatchPlan:
    """Return the first 1 to ``parts`` - 1 of a plan's equal parts; ``luck`` in [0, 1) chooses the number.

    If there is only one part, it is returned.
    """
    return plan.first(len(plan.index) // parts * (1 + int(luck * (parts - 1))))

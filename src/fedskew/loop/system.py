"""System heterogeneity: stragglers, dropouts, and different epochs and batch sizes of clients.

It depends only on (seed, round, client), and is the same for every method. Random numbers are drawn for all clients, so that a
client's number does not depend on the cohort.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedskew.core.contract import Setup
from fedskew.core.errors import BadInput, require
from fedskew.core.privacy import alone
from fedskew.core.records import Plan
from fedskew.core.seeding import stream
from fedskew.loop.plan import Local
from fedskew.skew.partition import Ints

Choices = tuple[int, ...] | str
"""Values to draw from: a list, or a range such as ``"2-6"``."""

Late = Mapping[int, float]
"""The stragglers of a cohort. A number in [0, 1) says how much of its work each one does."""


@dataclass(frozen=True, kw_only=True)
class System:
    """How reliable and how fast clients are. Without options, every client does all its work in every round.

    ``stragglers`` is the probability that a client does only a part of its work if it is selected, drawn anew for each client and
    round. The part is a number of epochs (or of steps, if ``local.steps`` is set), drawn uniformly from 1 to one less than all; a
    client with one epoch does it. The server aggregates this part, as in FedProx, or discards it with ``drop_stragglers``.
    ``dropout`` is the probability that a selected client does not answer. ``epochs`` and ``batch_sizes`` give each client its own
    value, drawn once from a list or a range such as ``"2-6"``.
    """

    stragglers: float = 0.0
    drop_stragglers: bool = False
    dropout: float = 0.0
    epochs: Choices | None = None
    batch_sizes: Choices | None = None
    private = alone

    def __post_init__(self) -> None:
        for name in ("stragglers", "dropout"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} must be between 0 and 1, got {value}")
        for name in ("epochs", "batch_sizes"):
            if getattr(self, name) is not None:
                values(name, getattr(self, name))

    def accepts(self, setup: Setup) -> str:
        """Return why an option would have no effect on the local work; empty if all have an effect."""
        local = setup.local
        if self.epochs is not None and local.steps is not None:
            return "epochs have no effect if local.steps is set; leave one of them out"
        most = local.steps or (max(values("epochs", self.epochs)) if self.epochs else local.epochs)
        if not self.stragglers or self.drop_stragglers or most > 1:
            return ""
        return (
            "a straggler does fewer than all local epochs, and there is only 1; raise local.epochs, or set "
            "system.drop_stragglers"
        )

    def own_work(self, local: Local, num_clients: int, seed: int) -> tuple[Local, ...]:
        """Return the local work of each client; () if all clients do ``local``."""
        if self.epochs is None and self.batch_sizes is None:
            return ()
        epochs = values("epochs", self.epochs) if self.epochs else [local.epochs]
        sizes = values("batch_sizes", self.batch_sizes) if self.batch_sizes else [local.batch_size]
        at = (stream(seed, "devices").random((num_clients, 2)) * (len(epochs), len(sizes))).astype(np.int64).tolist()
        kinds = {(e, b): replace(local, epochs=epochs[e], batch_size=sizes[b]) for e, b in set(map(tuple, at))}
        return tuple(kinds[e, b] for e, b in at)

    def reached(self, num_clients: int, round_: int, seed: int) -> NDArray[np.bool_]:
        """Return for each client (K,) if it answers when it is selected."""
        if not self.dropout:
            return np.ones(num_clients, dtype=np.bool_)
        return stream(seed, "dropout", round_).random(num_clients) >= self.dropout

    def late(self, cohort: Ints, num_clients: int, round_: int, seed: int) -> Late:
        """Return the stragglers of a cohort. Each client has its own coin, so that one client more or less changes no other one."""
        if not self.stragglers:
            return {}
        luck = stream(seed, "stragglers", round_).random((num_clients, 2))
        return {int(k): float(luck[k, 1]) for k in cohort if luck[k, 0] < self.stragglers}


def values(option: str, choices: Choices) -> Sequence[int]:
    """Parse the values to draw from. Raises `BadInput`, which names the option, if they are not valid."""
    if isinstance(choices, str):
        found = re.fullmatch(r"([0-9]+)-([0-9]+)", choices)
        if not found:
            raise BadInput(f"{option}: cannot read {choices!r}; write a list such as [1,2,5], or a range such as 2-6")
        drawn: Sequence[int] = range(int(found[1]), int(found[2]) + 1)
    else:
        drawn = choices
    require(len(drawn) > 0 and min(drawn) >= 1, f"{option}: needs one or more numbers of at least 1, got {choices!r}")
    return drawn


def partial(plan: Plan, parts: int, luck: float) -> Plan:
    """Return the first 1 to ``parts`` - 1 of a plan's equal parts; ``luck`` in [0, 1) chooses the number.

    If there is only one part, it is returned.
    """
    return plan.first(len(plan.index) // parts * (1 + int(luck * (parts - 1))))

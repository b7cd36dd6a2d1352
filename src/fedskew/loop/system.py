"""Clients that are slow, fail, or differ in what they can do: a function of (seed, round, client), the same for every method.

Each stream gives one number to every client of the population, so that what befalls a client does not depend on who else is
in its cohort.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
"""Values to draw from: a list, or a range in words, ``"2-6"``."""

Late = Mapping[int, float]
"""The stragglers of a cohort, and for each a number in [0, 1) for how far it gets."""


@dataclass(frozen=True, kw_only=True)
class System:
    """What clients can do and how reliable they are; without options all do their work, in every round the same for all methods.

    ``stragglers`` is the share of all clients, to the nearest whole one and drawn anew in each round, that gets done with fewer
    epochs if they train: a number drawn uniformly from 1 to one less than its own (of steps where ``local.steps`` is set; a
    client of one epoch does it). What it has done is aggregated, as FedProx has it, or discarded with ``drop_stragglers``.
    ``dropout`` is the probability that a selected client does not answer at all. ``epochs`` and ``batch_sizes`` give each
    client its own, drawn
    once from a list or a range such as ``"2-6"``.
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
        """Refuses options that mean nothing beside the local work."""
        local = setup.local
        if self.epochs is not None and local.steps is not None:
            return "epochs mean nothing where local.steps is set; leave one of them out"
        most = local.steps or (max(values("epochs", self.epochs)) if self.epochs else local.epochs)
        if not self.stragglers or self.drop_stragglers or most > 1:
            return ""
        return (
            "a straggler does fewer than all local epochs, and there is only 1; raise local.epochs, or set "
            "system.drop_stragglers"
        )

    def own_work(self, local: Local, num_clients: int, seed: int) -> tuple[Local, ...]:
        """The local work of each client, or () if it is ``local`` for all."""
        if self.epochs is None and self.batch_sizes is None:
            return ()
        epochs = values("epochs", self.epochs) if self.epochs else [local.epochs]
        sizes: Sequence[Any] = values("batch_sizes", self.batch_sizes) if self.batch_sizes else [local.batch_size]
        at = (stream(seed, "devices").random((num_clients, 2)) * (len(epochs), len(sizes))).astype(np.int64)
        drawn = [(epochs[e], sizes[b]) for e, b in at.tolist()]
        kinds = {(e, b): replace(local, epochs=e, batch_size=b) for e, b in set(drawn)}
        return tuple(kinds[pair] for pair in drawn)

    def reached(self, num_clients: int, round_: int, seed: int) -> NDArray[np.bool_]:
        """Whether each client (K,) would answer if it were selected."""
        if not self.dropout:
            return np.ones(num_clients, dtype=np.bool_)
        return stream(seed, "dropout", round_).random(num_clients) >= self.dropout

    def late(self, cohort: Ints, num_clients: int, round_: int, seed: int) -> Late:
        """Who of a cohort is late; of each client the same whoever else is in the cohort."""
        if not self.stragglers:
            return {}
        luck = stream(seed, "stragglers", round_).random((num_clients, 2))
        first = luck[:, 0].argsort(kind="stable")[: int(self.stragglers * num_clients + 0.5)]
        return {int(k): float(luck[k, 1]) for k in np.intersect1d(cohort, first)}


def values(option: str, choices: Choices) -> Sequence[int]:
    """The values to draw from. Raises `BadInput` naming the option."""
    if isinstance(choices, str):
        found = re.fullmatch(r"([0-9]+)-([0-9]+)", choices)
        if not found:
            raise BadInput(f"{option}: cannot read {choices!r}; write a list such as [1,2,5], or a range such as 2-6")
        drawn: Sequence[int] = range(int(found[1]), int(found[2]) + 1)
    else:
        drawn = choices
    require(
        len(drawn) > 0 and min(drawn) >= 1, f"{option} are numbers of at least 1, and at least one, got {choices!r}"
    )
    return drawn


def partial(plan: Plan, parts: int, luck: float) -> Plan:
    """The first 1 to ``parts - 1`` of a plan's equal parts, as ``luck`` in [0, 1) has it; a single part is done."""
    steps = len(plan.index) // parts * (1 + int(luck * (parts - 1)))
    return plan.first(steps)

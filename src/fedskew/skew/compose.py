"""Several skews at once: one deals the rows, one may set the sizes, any number change features and concepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.component import build, label
from fedskew.core.errors import BadInput, require
from fedskew.skew.blocks import dealt_by_counts, fitted, rounded
from fedskew.skew.catalogue import SKEWS
from fedskew.skew.exported import FromFolder
from fedskew.skew.partition import Ints, Partition, cut, offsets
from fedskew.skew.plain import Iid, Natural, Pooled, check_clients


def skews_of(spec: Any) -> tuple[Any, ...]:
    """The components of a compact string, a table, an object, or a list of them."""
    specs = spec if isinstance(spec, list | tuple) else [spec]
    require(bool(specs), "skew: the list is empty; write skew = 'iid' for clients that do not differ")
    skews = tuple(build("skew", SKEWS, one) for one in specs)
    mixture(skews)
    return skews


FACES = ("none", "label", "quantity", "feature", "concept")


@dataclass(frozen=True)
class Mixture:
    """What an experiment's skews say together; it deals rows as a single skew does.

    Sizes of a quantity skew are hit exactly. Label proportions are then as near to those of the label skew alone as the rows allow,
    in total variation; every row is dealt at most once.
    """

    dealer: Any  # a label skew, natural clients, a folder; IID where nothing else deals
    quantity: Any = None
    features: tuple[Any, ...] = ()
    concepts: tuple[Any, ...] = ()
    pooled: bool = False  # all clients' rows are put together after everything else

    @property
    def by_groups(self) -> bool:
        return getattr(self.dealer, "by_groups", False)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """The rows of each client."""
        if self.quantity is None:
            dealt: list[Ints] = self.dealer.deal(labels, groups, num_clients, rng)
            return dealt
        check_clients(num_clients, len(labels))
        sizes = self.quantity.sizes(len(labels), num_clients, rng.spawn(1)[0])
        if type(self.dealer) is Iid:
            return cut(rng.permutation(len(labels)), np.cumsum(sizes))
        p = self.proportions(labels, groups, num_clients, rng)
        return dealt_by_counts(labels, fitted(rounded(sizes[:, None] * p, sizes), p, np.bincount(labels), rng), rng)

    def proportions(
        self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """(clients, classes) class proportions that the label skew alone gives; those of the data for a client without rows."""
        if hasattr(self.dealer, "proportions"):
            p: NDArray[np.float64] = self.dealer.proportions(labels, num_clients, rng)
        else:
            dealt = self.dealer.deal(labels, groups, num_clients, rng)
            p = np.stack([np.bincount(labels[rows], minlength=int(labels.max()) + 1) for rows in dealt]).astype(float)
        p[p.sum(1) <= 0] = np.bincount(labels)
        return p / p.sum(1, keepdims=True)


def mixture(skews: Sequence[Any]) -> Mixture:
    """The skews together; raises `BadInput` for some that cannot be, with the reason and the fix."""
    by_face: dict[str, list[Any]] = {face: [] for face in FACES}
    pooled = [skew for skew in skews if isinstance(skew, Pooled)]
    for skew in skews:
        if not isinstance(skew, Pooled):
            by_face[skew.face].append(skew)
    dealers = [*by_face["none"], *by_face["label"]]
    require(
        len(dealers) <= 1,
        f"skew: {written(dealers)} both say who gets which rows; give one, and quantity, feature or concept skews beside it",
    )
    require(len(pooled) <= 1, "skew: pooled stands there twice; give it once")
    quantities = by_face["quantity"]
    require(len(quantities) <= 1, f"skew: {written(quantities)} both set the clients' sizes; give one of them")
    if not dealers and pooled and len(skews) == 1:
        return Mixture(pooled[0])
    dealer = dealers[0] if dealers else Iid()
    for kind, why in (
        (Natural, "natural clients bring their sizes"),
        (FromFolder, "a folder holds its clients' sizes"),
    ):
        if isinstance(dealer, kind) and quantities:
            raise BadInput(f"skew: {why}; leave out {written(quantities)}, or use a label skew or iid")
    return Mixture(
        dealer, next(iter(quantities), None), tuple(by_face["feature"]), tuple(by_face["concept"]), bool(pooled)
    )


def written(skews: Sequence[Any]) -> str:
    return " and ".join(label(skew, SKEWS) for skew in skews)


def owners(partition: Partition, num_rows: int) -> Ints:
    """The client of each row, (n,); -1 for a row that nobody has."""
    owner = np.full(num_rows, -1)
    owner[partition.indices] = np.repeat(np.arange(len(partition)), partition.sizes)
    if partition.held_out is not None:
        indices, cuts = partition.held_out
        owner[indices] = np.repeat(np.arange(len(partition)), np.diff(cuts))
    return owner


def pooled(partition: Partition) -> Partition:
    """All clients' rows on one client."""
    aside = partition.held_out
    return Partition(
        indices=partition.indices,
        offsets=offsets([partition.indices]),
        names=("0",),
        empty=0,
        unassigned=partition.unassigned,
        held_out=None if aside is None else (aside[0], offsets([aside[0]])),
    )

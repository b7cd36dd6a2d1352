"""Combine skews: one deals the rows, one may set the sizes, and any number change features and concepts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.core.component import Catalogue, build, label
from fedskew.core.errors import BadInput, require
from fedskew.core.seeding import stream
from fedskew.skew import SKEWS
from fedskew.skew.concept import Concept
from fedskew.skew.exported import FromFolder
from fedskew.skew.feature import FeatureSkew
from fedskew.skew.label import Floats, LabelDirichletBalanced, dealt_by_counts, fitted, rounded
from fedskew.skew.partition import Dealer, Iid, Ints, Natural, Partition, Pooled, Shuffled, cut, offsets
from fedskew.skew.quantity import SizeSkew
from fedskew.skew.values import TimeBlocks

Skew = Dealer | SizeSkew | FeatureSkew | Concept

KNOWN = Catalogue("skews", SKEWS, Dealer, SizeSkew, FeatureSkew, Concept)


def skews_of(spec: object) -> tuple[Skew, ...]:
    """Build skews from a compact string, a table, an object, or a list of these. Raises `BadInput` if they do not combine."""
    specs = spec if isinstance(spec, list | tuple) else [spec]
    require(bool(specs), "skew: the list is empty; write skew = 'iid' for clients that do not differ")
    skews = tuple(build("skew", KNOWN, part) for part in specs)
    mixture(skews)
    return skews


@dataclass(frozen=True)
class Mixture:
    """The skews of one experiment. It has the method ``deal`` of a single skew.

    If there is a quantity skew, it alone sets the sizes. The label proportions are then as close to the label skew's as the rows
    allow, in total variation. No row is dealt twice.
    """

    dealer: Dealer  # a label skew, natural clients or a folder; IID by default
    quantity: SizeSkew | None = None
    features: tuple[FeatureSkew, ...] = ()
    concepts: tuple[Concept, ...] = ()
    pooled: bool = False  # True: after all other changes, all rows go to one client
    shuffled: bool = False  # True: after all other changes, the clients' rows are dealt to them anew

    @property
    def by_groups(self) -> bool:
        """True if the clients are the natural clients of the data set."""
        return isinstance(self.dealer, Natural)

    def deal(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> list[Ints]:
        """Return the row numbers of each client. Raises `BadInput` for more clients than rows, unless the skew sets the number."""
        if not isinstance(self.dealer, Natural | Pooled | FromFolder):
            require(num_clients >= 1, f"the number of clients must be at least 1, got {num_clients}")
            if num_clients > len(labels):
                raise BadInput(f"{num_clients} clients cannot share {len(labels)} rows; use fewer clients")
        if self.quantity is None:
            return self.dealer.deal(labels, groups, num_clients, rng)
        sizes = self.quantity.sizes(len(labels), num_clients, rng.spawn(1)[0])
        if type(self.dealer) is Iid:
            return cut(rng.permutation(len(labels)), np.cumsum(sizes))
        p = self.proportions(labels, groups, num_clients, rng)
        return dealt_by_counts(labels, fitted(rounded(sizes[:, None] * p, sizes), p, np.bincount(labels), rng), rng)

    def proportions(self, labels: Ints, groups: Ints | None, num_clients: int, rng: np.random.Generator) -> Floats:
        """Return the proportions (clients, classes) of the label skew alone. A client without rows gets the data set's."""
        if isinstance(self.dealer, LabelDirichletBalanced):
            p = self.dealer.proportions(labels, num_clients, rng)
        else:
            dealt = self.dealer.deal(labels, groups, num_clients, rng)
            p = np.stack([np.bincount(labels[rows], minlength=int(labels.max()) + 1) for rows in dealt]).astype(float)
        p[p.sum(1) <= 0] = np.bincount(labels)
        return p / p.sum(1, keepdims=True)


def mixture(skews: Sequence[Skew]) -> Mixture:
    """Combine the skews. Raises `BadInput`, with the reason and a remedy, if they do not combine."""
    pooled, shuffled = ([skew for skew in skews if isinstance(skew, kind)] for kind in (Pooled, Shuffled))
    dealers = [skew for skew in skews if isinstance(skew, Dealer) and not isinstance(skew, Pooled | Shuffled)]
    quantities = [skew for skew in skews if isinstance(skew, SizeSkew)]
    require(
        len(dealers) <= 1,
        f"skew: {written(dealers)} both deal the rows; give one of them, together with quantity, feature or concept skews",
    )
    for twice in (pooled, shuffled):
        require(len(twice) <= 1, f"skew: {written(twice[:1])} is given twice; give it once")
    require(len(quantities) <= 1, f"skew: {written(quantities)} both set the clients' sizes; give one of them")
    if pooled and len(skews) == 1:
        return Mixture(pooled[0])
    dealer = dealers[0] if dealers else Iid()
    for kind, why in (
        (Natural, "natural clients have their own sizes"),
        (FromFolder, "the folder sets the clients' sizes"),
        (TimeBlocks, "blocks of time have equal sizes"),
    ):
        if isinstance(dealer, kind) and quantities:
            raise BadInput(f"skew: {why}; leave out {written(quantities)}, or use a label skew or iid")
    quantity = quantities[0] if quantities else None
    features = tuple(skew for skew in skews if isinstance(skew, FeatureSkew))
    concepts = tuple(skew for skew in skews if isinstance(skew, Concept))
    return Mixture(dealer, quantity, features, concepts, bool(pooled), bool(shuffled) and not pooled)


def written(skews: Sequence[Skew]) -> str:
    """Return the compact forms, joined by "and"."""
    return " and ".join(label(skew, KNOWN) for skew in skews)


def left_out(skews: Mixture, dealt: Partition) -> str:
    """Say how many rows and clients the skews leave out, and what to write instead; empty if they leave out none."""
    aside = 0 if dealt.held_out is None else len(dealt.held_out[0])
    texts = []
    if dealt.unassigned:
        remedy = getattr(skews.quantity or skews.dealer, "deals_all", "")
        rows = dealt.unassigned + len(dealt.indices) + aside
        texts += [f"{dealt.unassigned:,} of {rows:,} rows go to no client" + (f" ({remedy})" if remedy else "")]
    if dealt.empty:
        fewer = "use fewer clients, or a skew with min_size above 0"
        remedy = "lower server_data and shared_data" if skews.by_groups else fewer
        texts += [f"{dealt.empty:,} of {dealt.empty + len(dealt):,} clients have no rows and take no part ({remedy})"]
    return "; ".join(texts)


def owners(partition: Partition, num_rows: int) -> Ints:
    """Return the client of each row, (n,); -1 for a row without a client."""
    owner = np.full(num_rows, -1)
    owner[partition.indices] = np.repeat(np.arange(len(partition)), partition.sizes)
    if partition.held_out is not None:
        indices, cuts = partition.held_out
        owner[indices] = np.repeat(np.arange(len(partition)), np.diff(cuts))
    return owner


def pooled(partition: Partition) -> Partition:
    """Return the partition with all clients' rows on one client."""
    return partition.changed(lambda rows, _: (rows, offsets([rows])), names=("0",), empty=0)


def shuffled(partition: Partition, seed: int) -> Partition:
    """Return the partition with the training rows dealt anew to clients of the same sizes, and so the held-out rows."""
    rng, names = stream(seed, "shuffled"), tuple(map(str, range(len(partition))))
    return partition.changed(lambda rows, cuts: (rng.permutation(rows), cuts), names=names)

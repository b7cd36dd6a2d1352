"""Deal the rows of an experiment to its clients, then change features and labels by client. Importing it loads no PyTorch.

Some rows are dealt by no skew: class-balanced rows for the server, and a public share that all clients use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.component import label
from fedskew.core.errors import require, suggestion
from fedskew.core.seeding import stream
from fedskew.core.sites import RowHarmonisation, SiteMaps, SiteSums
from fedskew.data.dataset import Dataset
from fedskew.data.preprocessing import Preprocessing, as_it_is
from fedskew.data.texts import reworded
from fedskew.experiment.settings import Dealing
from fedskew.measure.heterogeneity import label_distance, label_distance_by_chance
from fedskew.skew import concept, feature
from fedskew.skew.compose import KNOWN, Mixture, left_out, mixture, owners, pooled, shuffled, written
from fedskew.skew.concept import Labels
from fedskew.skew.exported import FromFolder
from fedskew.skew.feature import FeatureText, Floats, Parameters, rewritten
from fedskew.skew.partition import Dealer, Ints, Partition, deal, offsets
from fedskew.skew.values import ByValues

if TYPE_CHECKING:
    from fedskew.experiment.config import Experiment


Drawn = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class ClientData:
    """The rows of all clients."""

    partition: Partition
    sites: Partition  # the same before rows are pooled and shared
    dataset: Dataset  # training texts are in the style of the client that holds them
    x: Floats  # (n, ...) training rows after feature skew; word ids refer to the vocabulary of the clients' training rows
    x_test: Floats
    labels: Labels  # of the training rows
    test_labels: Labels  # of the test rows
    drawn: Drawn  # the random draws of each feature and concept skew for the clients, by NUMBER-SKEW-NAME
    preprocessing: Preprocessing | None = None  # made x_test from raw rows; without feature skew
    unseen: Partition | None = None  # the rows of clients that take no part in training
    test_owner: Ints | None = None  # (n_test,) number in `sites` of each test row's site, see `test_owners`
    maps: SiteMaps | None = None  # how the sites change x and x_test, after the preprocessing

    def label_counts(self) -> Ints:
        """Return the number of training rows (clients, strata) of each class before round 1, or of each stratum."""
        strata, names = self.dataset.strata
        if self.dataset.num_classes:
            return self.partition.label_counts(self.labels.at(0), len(names))
        # for clients on other machines only the sizes are known
        return self.partition.label_counts(strata, len(names)) if len(self.x) else self.partition.sizes[:, None]


def client_data(experiment: Dealing, dataset: Dataset, dealt: Partition | None = None) -> ClientData:
    """Deal the rows, then change features and labels by client. The server's rows and shared rows do not change.

    ``dealt`` is the result of `dealt_rows`, if it is known already. Each test row is assigned to a random client, with
    probability proportional to the client's number of rows. Its label follows this client's concept; its features do not change.
    """
    skews, seed = mixture(experiment.skew), experiment.clients.partition_seed
    check_features(skews, dataset)
    dealt = dealt or dealt_rows(experiment, dataset)
    partition, sites = finished(experiment, dataset, dealt), seen_of(experiment, dealt)
    owner, number = owners(dealt, len(dataset.y)), len(dealt)
    changes_of = feature.draw_all(skews.features, rows_of(dataset, dataset.x), number, seed)
    styled = restyled(skews, changes_of, dataset, owner, seed)
    x, x_test, preprocessing = reworded(styled, partition.indices, styled is not dataset)
    seen = feature.transformed(skews.features, changes_of, rows_of(dataset, x), owner, seed)
    seen = np.concatenate([seen, x[:, -1:]], axis=1) if dataset.sensitive else seen
    changes = concept.draw_all(skews.concepts, x, dataset.num_classes, number, seed)
    unseen = unseen_clients(experiment, dealt)
    test_owner, maps = test_owners(skews, dataset, sites), None
    sizes = np.bincount(owner[owner >= 0], minlength=number)
    sizes[unseen] = 0
    tested = stream(seed, "test clients").choice(number, size=len(dataset.y_test), p=sizes / sizes.sum())
    # a concept is about rows as the data set has them, at all sites
    test_labels = concept.labels_of(skews.concepts, changes, x_test, dataset.y_test, tested, seed, part=2)
    if isinstance(experiment.harmonisation, RowHarmonisation):
        parts = [seen[sites.rows(k)] for k in range(len(sites))]
        maps = fitted_maps(experiment.harmonisation, dataset, seen, partial(SiteSums.of, parts))
        seen = maps.changed(seen, owners(sites, len(dataset.y)))
        x_test = maps.changed(x_test, np.full(len(x_test), -1) if test_owner is None else test_owner)
    return ClientData(
        partition=partition,
        sites=sites,
        dataset=styled,
        x=seen,
        x_test=x_test,
        labels=concept.labels_of(skews.concepts, changes, x, dataset.y, owner, seed, part=1),
        test_labels=test_labels,
        drawn=named(skews, changes_of, changes),
        preprocessing=preprocessing or (None if dataset.texts else as_it_is(dataset.x, dataset.columns)),
        unseen=dealt.only(unseen) if len(unseen) else None,
        test_owner=test_owner,
        maps=maps,
    )


def client_column(experiment: Experiment, sites: bool = False) -> str:
    """Return the column of a table whose values are the names of the clients; empty if skews deal rows to other clients.

    With ``sites``, it is about the clients before rows are pooled or shuffled.
    """
    skews = mixture(experiment.skew)
    natural = skews.by_groups and (sites or not (skews.pooled or skews.shuffled))
    return getattr(experiment.dataset, "client", "") if natural else ""


def test_owners(skews: Mixture, dataset: Dataset, sites: Partition) -> Ints | None:
    """Return the number of each test row's natural client (n_test,) in ``sites``; -1 if it is not there. None if unknown.

    Skews change no test row. So with skews of features or labels a client has no test rows that are like its training rows.
    """
    groups, tested = dataset.groups, dataset.groups_test
    if groups is None or tested is None or not skews.by_groups or skews.features or skews.concepts:
        return None
    owner = owners(sites, len(dataset.y))
    number = dict(zip(groups[owner >= 0].tolist(), owner[owner >= 0].tolist(), strict=True))
    return np.array([number.get(group, -1) for group in tested.tolist()], dtype=np.int64)


def fitted_maps(
    harmonisation: RowHarmonisation, dataset: Dataset, x: Floats, sums_of: Callable[[Ints], SiteSums]
) -> SiteMaps:
    """Fit the change of rows such as ``x`` to the sums of the sites' training rows.

    ``sums_of`` returns the sums for the positions of the protected columns. Raises `BadInput` if rows have no columns of numbers.
    """
    numbers = x.ndim == 2 and np.issubdtype(x.dtype, np.floating)
    words = f"harmonisation: changes columns of numbers, but rows of {dataset.name} are {dataset.x.dtype} of shape {dataset.shape}"
    require(numbers, f"{words}; use --harmonisation site-bias")
    names = [column.partition(" = ")[0].removesuffix(" is missing") for column in dataset.columns]
    for name in harmonisation.protected:
        require(name in names, f"harmonisation: protected: there is no column {name!r}; {suggestion(name, names)}")
    protected = [at for at, name in enumerate(names) if name in harmonisation.protected]
    maps = harmonisation.fit(sums_of(np.array(protected, dtype=np.int64)))
    if dataset.sensitive:  # the last column stays 0 and 1
        maps.factor[:, -1], maps.offset[:, -1], maps.effect[:, :, -1] = 1, 0, 0
    return maps


def unseen_clients(experiment: Dealing, dealt: Partition) -> Ints:
    """Return the clients that take no part in training, ascending. Raises `BadInput` if fewer than two can be measured."""
    share, number = experiment.clients.unseen, len(dealt)
    if not share:
        return np.arange(0)
    count = int(share * number + 1e-9)
    unseen = np.sort(stream(experiment.clients.partition_seed, "unseen").permutation(number)[:count])
    measured = 0 if dealt.held_out is None else sum(len(dealt.measured_rows(k)) > 0 for k in unseen)
    require(
        measured >= 2,
        f"clients: unseen {share:g} of {number} clients leaves {measured} with held-out rows, and 2 are needed; raise unseen, "
        "or use more clients",
    )
    return unseen


def check_features(skews: Mixture, dataset: Dataset) -> None:
    """Raise `BadInput` if a feature skew cannot change these rows."""
    of_texts = [isinstance(skew, FeatureText) for skew in skews.features]
    require(
        not any(of_texts) or dataset.texts is not None,
        f"skew: {dataset.name} has no texts, which feature-text needs; use another feature skew",
    )
    require(
        all(of_texts) or np.issubdtype(dataset.x.dtype, np.floating),
        f"skew: {dataset.name} holds word ids, which only feature-text can change; use that, or a label, quantity or concept skew",
    )


def restyled(skews: Mixture, drawn_by: list[Parameters], dataset: Dataset, owner: Ints, seed: int) -> Dataset:
    """Return the data set with each training text rewritten in the style of its client."""
    for place, (skew, drawn) in enumerate(zip(skews.features, drawn_by, strict=True)):
        if isinstance(skew, FeatureText) and dataset.texts is not None:
            train, test = dataset.texts
            texts = rewritten(skew, drawn, train, owner, seed, place)
            dataset = dataclasses.replace(dataset, texts=(texts, test))
    return dataset


def rows_of(dataset: Dataset, x: Floats) -> Floats:
    """Return training rows ``x`` without the last column if it is the sensitive attribute."""
    return x[:, :-1] if dataset.sensitive else x


def named(skews: Mixture, *drawn: Sequence[Mapping[str, NDArray[np.generic]]]) -> Drawn:
    """Collect the random draws of all skews by NUMBER-SKEW-NAME."""
    parts = zip((*skews.features, *skews.concepts), chain(*drawn), strict=True)
    return {
        f"{place}-{label(skew, KNOWN).partition(':')[0]}-{name}": values
        for place, (skew, values_by) in enumerate(parts)
        for name, values in values_by.items()
    }


def dealt_rows(experiment: Dealing, dataset: Dataset) -> Partition:
    """Return the partition as the skews deal it, before rows are pooled or shared."""
    who, skews = experiment.clients, mixture(experiment.skew)
    reserved = reserved_rows(experiment, dataset)
    if isinstance(skews.dealer, FromFolder):
        partition = read_back(skews.dealer, dataset, reserved)
    else:
        settings = who.number, who.partition_seed, who.held_out, dataset.persons and dataset.persons[0]
        partition = deal_others(skews, dealt_by(skews, dataset), dataset.groups, reserved, *settings)
        if skews.by_groups and dataset.group_names:
            names = tuple(dataset.group_names[int(name)] for name in partition.names)
            partition = dataclasses.replace(partition, names=names)
    texts = (of_files(experiment, dataset, skews), left_out(skews, partition))
    return dataclasses.replace(partition, note="; ".join(filter(None, texts)))


def of_files(experiment: Dealing, dataset: Dataset, skews: Mixture) -> str:
    """Say whether the files of a folder are the clients; empty if the rows are no files without a column of clients."""
    from_files = getattr(experiment.dataset, "file_a_client", False) and dataset.groups is not None
    if not from_files or isinstance(skews.dealer, FromFolder):
        return ""
    files = f"{len(dataset.group_names)} files"
    if skews.by_groups:
        return f"each of {files} is a client (--skew iid, or another skew, deals the rows anew)"
    return f"{written([skews.dealer])} deals the rows of {files} anew (--skew natural makes each file a client)"


def dealt_by(skews: Mixture, dataset: Dataset) -> Ints:
    """Return the integer of each training row (n,) by which the skews deal: class, stratum, or the skew's own value."""
    return skews.dealer.values(dataset) if isinstance(skews.dealer, ByValues) else dataset.strata[0]


def read_back(folder: FromFolder, dataset: Dataset, reserved: Ints) -> Partition:
    """Read the partition from a folder. Raises `BadInput` if the folder belongs to other data or settings."""
    before, now = folder.facts().fingerprint, dataset.fingerprint()
    require(
        before == now,
        f"skew from-folder: {folder.path} was made from other data (fingerprint {before}, these are {now}); use the data set that "
        "its README names",
    )
    partition = folder.read(len(dataset.y))
    aside = partition.indices[:0] if partition.held_out is None else partition.held_out[0]
    require(
        not np.isin(reserved, np.concatenate([partition.indices, aside])).any(),
        f"skew from-folder: clients of {folder.path} hold rows that the server or the public share needs; leave out "
        "server_data and shared_data, or export with them",
    )
    return partition


def finished(experiment: Dealing, dataset: Dataset, dealt: Partition) -> Partition:
    """Make the final partition from `dealt_rows`.

    Unseen clients are removed, rows are pooled or shuffled if a skew does so, and each client gets its part of the public share.
    """
    seen, skews = seen_of(experiment, dealt), mixture(experiment.skew)
    shared = shared_rows(experiment, dataset)
    seed, partition = experiment.clients.partition_seed, pooled(seen) if skews.pooled else seen
    if skews.shuffled and not skews.pooled:
        partition = shuffled(seen, seed)
    return share_out(partition, shared, experiment.shared_data.alpha, seed) if len(shared) else partition


def seen_of(experiment: Dealing, dealt: Partition) -> Partition:
    """Return the partition without the unseen clients."""
    unseen = unseen_clients(experiment, dealt)
    return dealt.only(np.delete(np.arange(len(dealt)), unseen)) if len(unseen) else dealt


def server_rows(experiment: Dealing, dataset: Dataset) -> Ints:
    """Return the server's own training rows, ascending."""
    rows, share = np.arange(len(dataset.y)), experiment.server_data.share
    if share == 0:
        return rows[:0]
    rng = stream(experiment.clients.partition_seed, "server data")
    return class_balanced(dataset.strata[0], rows, int(share * len(rows) + 1e-9), rng, "server_data")


def shared_rows(experiment: Dealing, dataset: Dataset) -> Ints:
    """Return the training rows of the public share, ascending. They belong neither to the server nor to the dealt rows."""
    beta = experiment.shared_data.beta
    if beta == 0:
        return np.arange(0)
    rows = np.setdiff1d(np.arange(len(dataset.y)), server_rows(experiment, dataset))
    rng = stream(experiment.clients.partition_seed, "shared data")
    return class_balanced(dataset.strata[0], rows, int(beta / (1 + beta) * len(rows) + 1e-9), rng, "shared_data")


def reserved_rows(experiment: Dealing, dataset: Dataset) -> Ints:
    """Return the training rows that no skew deals: the server's rows, and the public share."""
    return np.concatenate([server_rows(experiment, dataset), shared_rows(experiment, dataset)])


def partition_facts(experiment: Experiment, dataset: Dataset, data: ClientData, row_bytes: int) -> dict[str, Any]:
    """Return the numbers of a partition for the run's facts: clients, rows, label distance and its value by chance.

    ``row_bytes`` is the size of one row when it is sent to a client.
    """
    partition, skews = data.partition, mixture(experiment.skew)
    counts, sizes = data.label_counts(), partition.sizes
    shared = len(shared_rows(experiment, dataset))
    each = int(experiment.shared_data.alpha * shared + 1e-9)
    facts: dict[str, Any] = {
        "skews": " + ".join(experiment.labels("skew")),
        "clients": len(partition),
        "empty": partition.empty,
        "unassigned": partition.unassigned,
        "note": partition.note,
        "rows": int(sizes.sum()),
        "held_out": 0 if partition.held_out is None else len(partition.held_out[0]),
        "unmeasured": partition.unmeasured,
        "unseen": 0 if data.unseen is None else len(data.unseen),
        "server_rows": len(server_rows(experiment, dataset)),
        "shared_rows": shared,
        "shared_rows_each": each,
        "shared_bytes": len(partition) * each * row_bytes,
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "size_variation": float(sizes.std() / sizes.mean()),
        "label_distance": label_distance(counts),
        "label_distance_by_chance": label_distance_by_chance(counts),
    }
    if skews.quantity is not None:
        facts["label_shift"] = label_shift(experiment, dataset)
    if skews.concepts:
        for name, round_ in (("changed_labels", 0), ("changed_labels_at_the_end", experiment.training.rounds)):
            facts[name] = float((data.labels.at(round_) != dataset.y)[partition.indices].mean())
    if skews.features or skews.concepts:
        changed = "" if data.maps is None else ", harmonised as rows of unknown sites"
        concepts = "; each row follows the concept of a client, drawn in proportion to the clients' rows"
        facts["test_set"] = f"features as the data set has them{changed}{concepts if skews.concepts else ''}"
    return facts


def label_shift(experiment: Dealing, dataset: Dataset) -> float:
    """Return how far the dealt class proportions are from the requested ones: mean total variation (0..1).

    Clients are weighted by their size. The proportions differ because sizes are kept, classes run out, and rows are whole.
    """
    who, skews = experiment.clients, mixture(experiment.skew)
    others = np.setdiff1d(np.arange(len(dataset.y)), reserved_rows(experiment, dataset))
    labels, groups = dealt_by(skews, dataset)[others], None if dataset.groups is None else dataset.groups[others]
    bare = dataclasses.replace(skews, features=(), concepts=())
    dealt = bare.deal(labels, groups, who.number, stream(who.partition_seed, "partition"))
    requested = bare.proportions(labels, groups, who.number, stream(who.partition_seed, "partition"))
    counts = np.stack([np.bincount(labels[rows], minlength=requested.shape[1]) for rows in dealt])
    sizes = counts.sum(1)
    return float((np.abs(counts - sizes[:, None] * requested).sum(1) / 2).sum() / sizes.sum())


def class_balanced(labels: Ints, rows: Ints, size: int, rng: np.random.Generator, what: str) -> Ints:
    """Draw ``size`` of the ``rows``, equally many of each class; return them in ascending order.

    A class gives at most half of its rows, so that the clients keep some; other classes then give more. Raises `BadInput` if
    ``size`` is below the number of classes. ``what`` names the purpose of the rows in the message.
    """
    by_class = [rows[labels[rows] == c] for c in np.unique(labels[rows])]
    require(
        size >= len(by_class),
        f"{what}: {size} of {len(rows)} rows cannot include all {len(by_class)} classes; use a larger share",
    )
    counts = level([len(class_rows) // 2 for class_rows in by_class], size)
    drawn = [rng.permutation(class_rows)[:count] for class_rows, count in zip(by_class, counts, strict=True)]
    return np.sort(np.concatenate(drawn))


def level(room: Sequence[int], size: int) -> list[int]:
    """Divide ``size`` into counts that are as equal as possible, each at most its ``room``.

    If all room together is less than ``size``, the counts are the room.
    """
    counts, left = [0] * len(room), size
    # smallest room first, so that larger ones share the rest
    for done, c in enumerate(sorted(range(len(room)), key=lambda c: room[c])):
        counts[c] = min(room[c], left // (len(room) - done))
        left -= counts[c]
    return counts


def deal_others(
    skew: Dealer,
    labels: Ints,
    groups: Ints | None,
    reserved: Ints,
    num_clients: int,
    seed: int,
    held_out: float = 0.0,
    person: Ints | None = None,
) -> Partition:
    """Call `deal` for all rows except the ``reserved`` ones. A natural client with only reserved rows counts as empty.

    A ``person`` (n,) with a reserved row is not held out, because models train on reserved rows.
    """
    if not len(reserved):
        return deal(skew, labels, groups, num_clients, seed, held_out, person)
    others = np.delete(np.arange(len(labels)), reserved)
    other_groups = None if groups is None else groups[others]
    if person is not None:
        person = np.where(np.isin(person, person[reserved]), -1, person)[others]
    part = deal(skew, labels[others], other_groups, num_clients, seed, held_out, person)
    emptied = 0
    if groups is not None and other_groups is not None and getattr(skew, "by_groups", False):
        emptied = len(np.unique(groups)) - len(np.unique(other_groups))
    return part.changed(lambda rows, cuts: (others[rows], cuts), empty=part.empty + emptied)


def share_out(partition: Partition, rows: Ints, alpha: float, seed: int) -> Partition:
    """Add random ``rows`` to each client's training rows: the share ``alpha`` (rounded down), drawn for each client anew.

    Held-out rows do not change. Raises `BadInput` if the share rounds to no row.
    """
    size = int(alpha * len(rows) + 1e-9)
    require(
        size > 0,
        f"shared_data: alpha {alpha} of {len(rows)} shared rows is less than one row for a client; raise alpha",
    )
    parts = []
    for k in range(len(partition)):
        # k + 1, because key 0 would give the stream that drew the share (trailing zeros do not change a seed)
        drawn = stream(seed, "shared data", k + 1).permutation(rows)[:size]
        parts.append(np.concatenate([partition.rows(k), drawn]))
    return dataclasses.replace(partition, indices=np.concatenate(parts), offsets=offsets(parts))

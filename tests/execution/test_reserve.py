"""Rows that are kept from the clients: the server's own, and a public share that is split among the clients."""

import numpy as np
import pytest
import torch

from fedskew.api.functions import run
from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.execution.build import assemble
from fedskew.execution.deal import (
    class_balanced,
    deal_others,
    dealt_rows,
    finished,
    level,
    server_rows,
    share_out,
    shared_rows,
)
from fedskew.experiment.config import Experiment
from fedskew.loop.round import start
from fedskew.measure.heterogeneity import label_distance
from fedskew.skew import SKEWS, Natural
from fedskew.skew.partition import Partition
from tests.blobs import DATA, numbers, small

OTHERS = ("from-folder", "quantile-dirichlet", "column-dirichlet")
DEALERS = [name for name, cls in SKEWS.items() if hasattr(cls, "deal") and name not in OTHERS]
"""Skews that deal any rows. The others need a folder, targets that are numbers, or a column."""


def partition_of(experiment: Experiment, dataset: Dataset) -> Partition:
    """Return the final partition: dealt, and with shared rows."""
    return finished(experiment, dataset, dealt_rows(experiment, dataset))


def rng() -> np.random.Generator:
    return np.random.default_rng(4)


# what is drawn


@pytest.mark.parametrize(
    ("room", "size", "counts"),
    [
        ([10, 10, 10], 6, [2, 2, 2]),
        ([1, 10, 10], 9, [1, 4, 4]),
        ([10, 2, 3], 11, [6, 2, 3]),
        ([2, 2], 9, [2, 2]),
        ([0, 4], 3, [0, 3]),
        ([3], 2, [2]),
    ],
)
def test_counts_are_as_equal_as_the_room_allows(room: list[int], size: int, counts: list[int]) -> None:
    assert level(room, size) == counts


def test_a_remainder_makes_counts_differ_by_one() -> None:
    assert sorted(level([9, 9, 9], 7)) == [2, 2, 3]


def test_server_rows_are_class_balanced_and_among_the_given_rows() -> None:
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    rows = np.arange(0, 100, 2)
    drawn = class_balanced(labels, rows, 12, rng(), "server_data")
    assert np.bincount(labels[drawn]).tolist() == [4, 4, 4]
    assert set(drawn) <= set(rows)
    assert (np.diff(drawn) > 0).all(), "in ascending order, without repeats"


def test_a_class_keeps_at_least_half_of_its_rows() -> None:
    labels = np.repeat([0, 1, 2], [40, 5, 15])
    drawn = class_balanced(labels, np.arange(60), 20, rng(), "server_data")
    assert np.bincount(labels[drawn]).tolist() == [11, 2, 7]


def test_every_row_of_a_class_is_drawn_equally_often() -> None:
    labels, taken = np.repeat([0, 1], 6), np.zeros(12)
    generator = rng()
    for _ in range(600):
        taken[class_balanced(labels, np.arange(12), 4, generator, "server_data")] += 1
    # 200 expected, standard deviation 11.5
    assert np.abs(taken - 200).max() < 60


def test_fewer_rows_than_classes_are_refused() -> None:
    with pytest.raises(BadInput, match="server_data: 2 of 60 rows cannot include all 3 classes; use a larger share"):
        class_balanced(np.repeat([0, 1, 2], 20), np.arange(60), 2, rng(), "server_data")


# what is left for the clients


def test_natural_clients_keep_their_own_rows_and_names() -> None:
    groups = np.asarray([5, 5, 9, 9, 9, 12, 12])
    part = deal_others(Natural(), np.zeros(7, dtype=np.int64), groups, np.asarray([0, 5, 6]), 99, 0)
    assert part.names == ("5", "9")
    assert [sorted(part.rows(k)) for k in range(2)] == [[1], [2, 3, 4]]
    assert part.empty == 1, "client 12 had only rows that were reserved"


def test_server_rows_depend_on_the_partition_seed_only() -> None:
    def rows(**changes) -> list[int]:
        return server_rows(small(server_data={"share": 0.1}, **changes), DATA).tolist()

    assert rows() == rows(skew="iid") == rows(training={"seed": 5, "threads": 1}) == rows(clients={"number": 3})
    assert rows() != rows(clients={"number": 6, "partition_seed": 1})


# into the run


def test_the_server_sees_its_rows_and_the_facts_count_them() -> None:
    experiment = small(server_data={"share": 0.1})
    assembly = assemble(experiment, DATA)
    server = assembly.federation.view(start(assembly.federation, assembly.x0))
    rows = server_rows(experiment, DATA)
    assert torch.equal(server.data.x, torch.as_tensor(DATA.x[rows]))
    assert server.data.y.tolist() == DATA.y[rows].tolist()
    assert server.data.mask.tolist() == [1.0] * 12
    assert np.bincount(server.data.y).tolist() == [4, 4, 4]
    facts = assembly.partition_facts()
    assert facts["server_rows"] == 12
    assert facts["rows"] + facts["unassigned"] == 108
    assert assemble(small(), DATA).federation.server_data is None
    assert assemble(small(), DATA).partition_facts()["server_rows"] == 0


# a public share


def parts_of(part: Partition) -> list[np.ndarray]:
    return [part.rows(k) for k in range(len(part))]


def own_and_drawn(part: Partition, shared: np.ndarray) -> list[tuple[list[int], list[int]]]:
    """Return each client's own rows, and its rows of the shared part, both in ascending order."""
    return [(sorted(set(rows) - set(shared)), sorted(set(rows) & set(shared))) for rows in parts_of(part)]


@pytest.mark.parametrize("skew", DEALERS)
def test_every_client_gets_its_part_in_addition_to_its_own_rows(skew: str) -> None:
    data = {"shared_data": {"beta": 0.25, "alpha": 0.5}, "server_data": {"share": 0.1}}
    experiment = small(skew=skew, clients={"number": 3, "held_out": 0.3}, **data)
    server, shared = server_rows(experiment, DATA), shared_rows(experiment, DATA)
    # 12 for the server; of 108, a fifth is a quarter of the other four fifths; half of 21 is 10
    assert (len(server), len(shared)) == (12, 21)
    assert np.bincount(DATA.y[shared]).tolist() == [7, 7, 7]
    part = partition_of(experiment, DATA)
    clients = own_and_drawn(part, shared)
    assert all(len(drawn) == 10 for _, drawn in clients)
    assert part.sizes.tolist() == [len(own) + 10 for own, _ in clients]
    used = np.concatenate([server, shared, part.held_out[0], *(own for own, _ in clients)]).astype(int)
    assert len(np.unique(used)) == len(used), "a row is the server's, or of the share, or one client's"
    assert len(used) + part.unassigned == len(DATA.y)
    assert part.label_counts(DATA.y, 3).sum(1).tolist() == part.sizes.tolist()


def test_clients_draw_different_parts_and_the_same_again() -> None:
    experiment = small(skew="iid", shared_data={"beta": 0.3, "alpha": 0.5})
    shared = shared_rows(experiment, DATA)
    drawn = [rows for _, rows in own_and_drawn(partition_of(experiment, DATA), shared)]
    assert len({tuple(rows) for rows in drawn}) == len(drawn)
    assert drawn == [rows for _, rows in own_and_drawn(partition_of(experiment, DATA), shared)]
    # every row of the share is as likely as another: 13 of 27, over 60 clients of 12 seeds
    taken = np.zeros(len(shared))
    for seed in range(12):
        part = Partition(np.arange(5), np.arange(6), tuple("abcde"), 0, 0)
        for rows in parts_of(share_out(part, 100 + np.arange(len(shared)), 0.5, seed)):
            taken[rows[1:] - 100] += 1
    assert np.abs(taken - 60 * 13 / 27).max() < 4.5 * np.sqrt(60 / 4)


def test_alpha_1_gives_every_client_the_whole_share() -> None:
    experiment = small(shared_data={"beta": 0.2})
    shared = shared_rows(experiment, DATA)
    assert all(drawn == shared.tolist() for _, drawn in own_and_drawn(partition_of(experiment, DATA), shared))


def test_beta_0_is_fedavg(tmp_path) -> None:
    one, two = (
        run(small(method, rounds=2), data=DATA, runs=tmp_path / method) for method in ("fedavg", "data-sharing:beta=0")
    )
    assert numbers(one) == numbers(two)


def test_share_as_large_as_all_clients_divides_the_label_distance_by_clients_plus_one() -> None:
    """Equal sizes and balanced classes: p_k <- (n p_k + K n u) / (n + K n), so p_k - u shrinks by K + 1."""
    labels = np.tile([0, 1, 2], 80)
    data = Dataset(x=np.eye(3)[labels], y=labels, x_test=np.eye(3), y_test=np.arange(3), classes=tuple("abc"))
    experiment = small(skew="label-sorted", clients={"number": 4}, shared_data={"beta": 1.0})
    plain = small(skew="label-sorted", clients={"number": 4}).replace(server_data={"share": 0.5})
    before, after = (partition_of(e, data).label_counts(data.y, 3) for e in (plain, experiment))
    assert before.sum() == 120, "the same number of rows dealt, none shared"
    assert label_distance(after) == pytest.approx(label_distance(before) / 5)


def test_n_k_and_the_bytes_that_are_sent_once_count_the_share() -> None:
    experiment = small("data-sharing:beta=0.25,alpha=0.5", server_data={"share": 0.1})
    assembly = assemble(experiment, DATA)
    part, facts = assembly.partition, assembly.partition_facts()
    assert assembly.federation.info.num_examples.tolist() == part.sizes.tolist()
    assert (facts["shared_rows"], facts["shared_rows_each"]) == (21, 10)
    # five float32 features and a label of 8 bytes
    assert facts["shared_bytes"] == len(part) * 10 * (5 * 4 + 8)
    assert facts["rows"] == part.sizes.sum()
    assert facts["label_distance"] == label_distance(part.label_counts(DATA.y, 3))
    plain = assemble(small(), DATA).partition_facts()
    assert plain["shared_rows"] == plain["shared_rows_each"] == plain["shared_bytes"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": 0.1, "alpha": 0.01}, "is less than one row for a client; raise alpha"),
        ({"beta": 0.01}, "shared_data: 1 of 120 rows"),
    ],
)
def test_a_share_that_cannot_be_is_refused(options: dict, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        assemble(small(shared_data=options), DATA)

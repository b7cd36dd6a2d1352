"""Rows that are kept from the clients: the server's own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.core.algorithm import SERVER_DATA, Algorithm
from fedskew.core.errors import BadInput
from fedskew.experiment.build import assemble, check_needs, partition_of, server_rows
from fedskew.experiment.config import Experiment, from_toml
from fedskew.loop.round import start
from fedskew.skew import SKEWS, Natural
from fedskew.skew.partition import deal
from fedskew.skew.reserve import class_balanced, deal_others, level
from tests.test_experiment import DATA, blobs, small


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
def test_level_fills_the_small_ones_first(room: list[int], size: int, counts: list[int]) -> None:
    assert level(room, size) == counts


def test_a_remainder_makes_counts_differ_by_one() -> None:
    assert sorted(level([9, 9, 9], 7)) == [2, 2, 3]


def test_the_draw_is_class_balanced_and_its_rows_are_the_given_ones() -> None:
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
    with pytest.raises(
        BadInput, match="server_data: 2 of 60 rows cannot hold each of 3 classes; ask for a larger share"
    ):
        class_balanced(np.repeat([0, 1, 2], 20), np.arange(60), 2, rng(), "server_data")


# what is left for the clients


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_every_skew_deals_the_other_rows_once(skew: str, held_out: float) -> None:
    experiment = small(skew=skew, clients={"number": 3, "held_out": held_out}, server_data={"share": 0.2})
    kept, part = server_rows(experiment, DATA), partition_of(experiment, DATA)
    assert len(kept) == 24
    aside = part.held_out[0] if part.held_out else kept[:0]
    used = np.concatenate([kept, part.indices, aside])
    assert len(np.unique(used)) == len(used), "a row belongs to two"
    assert len(used) + part.unassigned == len(DATA.y)


def test_the_other_rows_are_dealt_as_if_the_reserved_ones_did_not_exist() -> None:
    labels, groups = DATA.y, np.arange(120) % 7
    reserved = np.arange(3, 120, 5)
    others = np.setdiff1d(np.arange(120), reserved)
    for name in SKEWS:
        skew = SKEWS[name]()
        part = deal_others(skew, labels, groups, reserved, 3, 5, 0.2)
        alone = deal(skew, labels[others], groups[others], 3, 5, 0.2)
        assert np.array_equal(part.indices, others[alone.indices])
        assert np.array_equal(part.held_out[0], others[alone.held_out[0]])
        assert part.names == alone.names


def test_natural_clients_keep_their_own_rows_and_names() -> None:
    groups = np.asarray([5, 5, 9, 9, 9, 12, 12])
    part = deal_others(Natural(), np.zeros(7, dtype=np.int64), groups, np.asarray([0, 5, 6]), 99, 0)
    assert part.names == ("5", "9")
    assert [sorted(part.rows(k)) for k in range(2)] == [[1], [2, 3, 4]]
    assert part.empty == 1, "client 12 had only rows that were reserved"


def test_nothing_reserved_changes_nothing() -> None:
    experiment = small()
    who = experiment.clients
    plain = deal(experiment.skew, DATA.y, DATA.groups, who.number, who.partition_seed, who.held_out)
    assert np.array_equal(partition_of(experiment, DATA).indices, plain.indices)


def test_the_draw_depends_on_the_partition_seed_only() -> None:
    def rows(**changes) -> list[int]:
        return server_rows(small(server_data={"share": 0.1}, **changes), DATA).tolist()

    assert rows() == rows(skew="iid") == rows(training={"seed": 5, "threads": 1}) == rows(clients={"number": 3})
    assert rows() != rows(clients={"number": 6, "partition_seed": 1})


# into the run


def test_the_server_sees_its_rows_and_the_facts_count_them() -> None:
    experiment = small(server_data={"share": 0.1})
    assembly = assemble(experiment, DATA)
    server = start(assembly.federation, assembly.x0)
    rows = server_rows(experiment, DATA)
    assert torch.equal(server.data.x, torch.as_tensor(DATA.x[rows]))
    assert server.data.y.tolist() == DATA.y[rows].tolist()
    assert server.data.mask.tolist() == [1.0] * 12
    assert np.bincount(server.data.y).tolist() == [4, 4, 4]
    facts = assembly.partition_facts()
    assert facts["server_rows"] == 12
    assert facts["rows"] + facts["unassigned"] == 108
    assert start(assemble(small(), DATA).federation, assembly.x0).data is None
    assert assemble(small(), DATA).partition_facts()["server_rows"] == 0


def test_no_server_row_is_a_test_row() -> None:
    data = blobs(rows=90)
    apart = dataclasses.replace(data, x_test=data.x_test + 100)
    server = assemble(small(server_data={"share": 0.3}), apart).federation.server_data
    assert not (server.x[:, None] == torch.as_tensor(apart.x_test)).all(-1).any()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needy(Algorithm):
    def needs(self) -> frozenset[str]:
        return frozenset({SERVER_DATA})


def test_a_method_that_needs_server_data_is_refused_without_and_taken_with(monkeypatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "needy", Needy)
    with pytest.raises(BadInput, match=r"needy needs labelled rows on the server.*--server-data 0.02"):
        check_needs(Experiment(algorithm="needy"))
    check_needs(Experiment(algorithm="needy", server_data={"share": 0.02}))


def test_the_setting_is_written_and_read_back_and_checked() -> None:
    experiment = small(server_data={"share": 0.05})
    assert from_toml(experiment.toml()) == experiment
    for share in (-0.1, 0.6, float("nan")):
        with pytest.raises(BadInput, match="server_data: share must be"):
            small(server_data={"share": share})
    with pytest.raises(BadInput, match="server_data: 1 of 120 rows"):
        assemble(small(server_data={"share": 0.01}), DATA)

"""Partitions: what holds for every skew that deals rows, and the plain skews."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from fedskew.core.errors import BadInput
from fedskew.skew import SKEWS, Iid, LabelDirichlet, LabelDirichletPerClass, LabelSorted, Natural, Pooled
from fedskew.skew.exported import FromFolder
from fedskew.skew.label import (
    LabelBlocks,
    LabelClasses,
    LabelDirichletBalanced,
    LabelDirichletTopUp,
    LabelShards,
    LabelSimilarity,
)
from fedskew.skew.partition import IidStratified, Partition, Shuffled, deal
from fedskew.skew.values import ColumnDirichlet, QuantileDirichlet, TimeBlocks

QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


RANDOM = [
    *(Iid(), Shuffled(), IidStratified(), LabelDirichlet(), LabelDirichlet(remainder="drop"), LabelDirichletPerClass()),
    *(LabelDirichletBalanced(), LabelDirichletTopUp(), LabelShards(), LabelSimilarity()),
    *(QuantileDirichlet(), ColumnDirichlet(column="age")),
]


STRUCTURED = [LabelClasses(), LabelBlocks()]
"""Random too, but they need several classes."""


FIXED = [LabelSorted(), TimeBlocks(), Natural(), Pooled()]


def rows_of(partition: Partition) -> list[np.ndarray]:
    return [partition.rows(k) for k in range(len(partition))]


def sets_of(parts) -> list[list[int]]:
    return [sorted(int(i) for i in part) for part in parts]


def same(a: Partition, b: Partition) -> bool:
    aside = a.held_out is None or all(np.array_equal(p, q) for p, q in zip(a.held_out, b.held_out, strict=True))
    return (
        np.array_equal(a.indices, b.indices) and np.array_equal(a.offsets, b.offsets) and a.names == b.names and aside
    )


def balanced(num_rows: int, num_classes: int) -> np.ndarray:
    return np.random.default_rng(5).permutation(np.arange(num_rows) % num_classes)


def deal_some(*args) -> Partition:
    """Deal the rows. Skip tiny examples with too few rows or classes, and examples in which the paper's rule drops rows."""
    try:
        return deal(*args)
    except BadInput:
        assume(getattr(args[0], "remainder", "") != "drop")
        assume(not isinstance(args[0], LabelShards | LabelClasses | LabelBlocks | TimeBlocks))
        raise


@st.composite
def cases(draw):
    """Draw labels, groups, a number of clients, a skew that fits them, a seed and a held-out share."""
    labels = np.asarray(draw(st.lists(st.integers(0, 5), min_size=1, max_size=120)), dtype=np.int64)
    n = len(labels)
    groups = np.asarray(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), dtype=np.int64)
    clients = draw(st.integers(1, min(n, 25)))
    alpha = 10.0 ** draw(st.floats(-6, 6))
    skew = draw(
        st.sampled_from(
            [
                *FIXED,
                Iid(),
                LabelDirichlet(alpha=alpha),
                LabelDirichlet(alpha=alpha, remainder="drop"),
                LabelDirichletPerClass(alpha=alpha, min_size=0),
                LabelDirichletPerClass(alpha=alpha, min_size=0, balance=False),
                IidStratified(),
                LabelDirichletBalanced(alpha=alpha),
                LabelDirichletBalanced(alpha=alpha, prior="data"),
                LabelDirichletTopUp(alpha=alpha),
                QuantileDirichlet(alpha=alpha),
                TimeBlocks(blocks=draw(st.integers(1, 3))),
                LabelShards(shards=draw(st.integers(1, 3))),
                LabelClasses(k=draw(st.integers(1, 3))),
                LabelSimilarity(similarity=draw(st.floats(0, 1))),
                LabelBlocks(primary=draw(st.floats(0, 1)), secondary=draw(st.integers(0, 2))),
            ]
        )
    )
    return skew, labels, groups, clients, draw(st.integers(0, 2**32)), draw(st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9]))


@QUICK
@given(cases())
def test_every_row_is_dealt_once_and_every_count_is_right(case):
    skew, labels, groups, clients, seed, held_out = case
    part = deal_some(skew, labels, groups, clients, seed, held_out)
    aside = part.held_out[0] if part.held_out else np.zeros(0, dtype=np.int64)
    used = np.concatenate([part.indices, aside])
    assert len(np.unique(used)) == len(used), "a row was dealt twice"
    assert used.min() >= 0
    assert used.max() < len(labels)
    assert len(used) + part.unassigned == len(labels)
    assert part.unassigned >= 0
    assert part.offsets[0] == 0
    assert part.offsets[-1] == len(part.indices)
    assert (part.sizes >= 1).all(), "a client without rows is left out"
    assert len(part) == len(part.names) == len(part.offsets) - 1 == len(set(part.names))
    assert np.array_equal(np.concatenate(rows_of(part)), part.indices)
    assert len(part) + part.empty == {Natural: len(np.unique(groups)), Pooled: 1}.get(type(skew), clients)
    assert np.array_equal(
        part.label_counts(labels, 6), [np.bincount(labels[rows], minlength=6) for rows in rows_of(part)]
    )


@QUICK
@given(cases())
def test_held_out_rows_are_a_rounded_down_share_of_each_client(case):
    skew, labels, groups, clients, seed, held_out = case
    part, whole = (
        deal_some(skew, labels, groups, clients, seed, held_out),
        deal_some(skew, labels, groups, clients, seed),
    )
    assert part.names == whole.names
    assert part.unmeasured == sum(len(part.measured_rows(k)) == 0 for k in range(len(part)))
    for k in range(len(part)):
        mine = set(whole.rows(k).tolist())
        train = set(part.rows(k).tolist())
        if part.held_out is None:
            assert held_out * max(whole.sizes) < 1, "no client has enough rows"
            assert np.array_equal(part.measured_rows(k), part.rows(k))
        else:
            aside = set(part.measured_rows(k).tolist())
            assert aside.isdisjoint(train)
            assert train | aside == mine
            assert len(aside) == math.floor(round(held_out * len(mine), 6))


@QUICK
@given(cases())
def test_the_same_seed_gives_the_same_partition(case):
    skew, labels, groups, clients, seed, held_out = case
    again = (labels.copy(), groups.copy())
    one, two = (
        deal_some(skew, labels, groups, clients, seed, held_out),
        deal_some(skew, *again, clients, seed, held_out),
    )
    assert same(one, two)
    assert np.array_equal(labels, again[0])
    assert np.array_equal(groups, again[1])


@pytest.mark.parametrize("skew", [*RANDOM, *STRUCTURED], ids=repr)
def test_another_seed_gives_another_partition(skew):
    labels = balanced(300, 5)
    dealt = [deal(skew, labels, None, 5, seed) for seed in range(4)]
    for a in range(4):
        for b in range(a):
            assert sets_of(rows_of(dealt[a])) != sets_of(rows_of(dealt[b]))


@pytest.mark.parametrize("skew", RANDOM, ids=repr)
def test_any_row_of_a_class_may_go_to_any_client(skew):
    labels = np.zeros(60, dtype=np.int64)
    owners = [set() for _ in labels]
    for seed in range(40):
        for k, rows in enumerate(rows_of(deal(skew, labels, None, 3, seed))):
            for i in rows:
                owners[i].add(k)
    assert all(held == {0, 1, 2} for held in owners)


@pytest.mark.parametrize("skew", FIXED, ids=repr)
def test_seed_changes_only_the_order_of_deterministic_partitions(skew):
    labels, groups = balanced(300, 5), balanced(300, 7)
    one, two = deal(skew, labels, groups, 5, 0), deal(skew, labels, groups, 5, 1)
    assert sets_of(rows_of(one)) == sets_of(rows_of(two))
    assert not np.array_equal(one.indices, two.indices), "within a client the rows are shuffled"


@pytest.mark.parametrize("skew", [*RANDOM, *STRUCTURED, *FIXED], ids=repr)
def test_rows_within_a_client_are_shuffled(skew):
    labels = balanced(300, 5)
    part = deal(skew, labels, balanced(300, 7), 3, 0)
    for rows in rows_of(part):
        assert len(rows) < 20 or abs(np.corrcoef(np.arange(len(rows)), labels[rows])[0, 1]) < 0.5
        assert len(rows) < 20 or not (np.diff(rows) > 0).all()


def test_these_tables_hold_every_skew_that_deals_rows():
    dealers = {cls for cls in SKEWS.values() if hasattr(cls, "deal")}
    assert {type(skew) for skew in [*RANDOM, *STRUCTURED, *FIXED]} == dealers - {FromFolder}


def test_empty_clients_are_left_out_and_counted():
    labels = np.zeros(20, dtype=np.int64)
    part = deal(LabelDirichletPerClass(alpha=1e-4, min_size=0), labels, None, 6, 3)
    assert len(part) == 1
    assert part.empty == 5
    assert part.unassigned == 0


def test_names_skip_the_empty_clients():
    class Gaps:
        def deal(self, labels, groups, num_clients, rng):
            return [np.array([0, 1]), np.array([], dtype=np.int64), np.array([2])]

    part = deal(Gaps(), np.zeros(5, dtype=np.int64), None, 3, 0)
    assert part.names == ("0", "2")
    assert part.empty == 1
    assert part.unassigned == 2


@pytest.mark.parametrize(("rows", "clients"), [(100, 5), (103, 10), (7, 7), (1, 1)])
def test_iid_blocks_are_nearly_equal(rows, clients):
    sizes = deal(Iid(), np.zeros(rows, dtype=np.int64), None, clients, 0).sizes
    assert sizes.sum() == rows
    assert sizes.max() - sizes.min() <= 1
    assert len(sizes) == clients


def test_natural_clients_are_the_groups():
    groups = np.array([7, 3, 3, 11, 7, 3])
    part = deal(Natural(), np.zeros(6, dtype=np.int64), groups, 99, 0)
    assert part.names == ("3", "7", "11")
    assert sets_of(rows_of(part)) == [[1, 2, 5], [0, 4], [3]]
    assert part.unassigned == part.empty == 0
    assert deal(Iid(), np.zeros(6, dtype=np.int64), groups, 2, 0).names == ("0", "1")


def test_label_sorted_is_a_stable_sort_cut_into_blocks():
    dealt = LabelSorted().deal(np.array([1, 0, 1, 0, 2]), None, 3, np.random.default_rng(0))
    assert [rows.tolist() for rows in dealt] == [[1, 3], [0, 2], [4]]


@pytest.mark.parametrize("held_out", [1.0, 1 - 1e-13])
def test_no_held_out_share_takes_all_rows_of_a_client(held_out):
    try:
        part = deal(Iid(), balanced(20, 4), None, 4, 0, held_out)
    except BadInput:
        return
    assert (part.sizes >= 1).all()

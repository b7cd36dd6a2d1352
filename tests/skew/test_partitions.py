"""Partitions: what every one of them must be, what each promises, and Dirichlet draws against theory."""

from __future__ import annotations

import contextlib
import math
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scipy.special import digamma, polygamma

from fedskew.core.component import build
from fedskew.core.errors import BadInput
from fedskew.data.datasets.synthetic_softmax import SyntheticSoftmax
from fedskew.skew import SKEWS, Iid, LabelDirichlet, LabelDirichletPerClass, LabelSorted, Natural, Pooled
from fedskew.skew.balanced import LabelDirichletBalanced, LabelDirichletTopUp
from fedskew.skew.blocks import LabelBlocks, LabelClasses, LabelShards, LabelSimilarity
from fedskew.skew.exported import FromFolder
from fedskew.skew.label import dirichlet, top_up
from fedskew.skew.partition import Partition, deal
from fedskew.skew.plain import IidStratified

QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
RANDOM = [
    *(Iid(), IidStratified(), LabelDirichlet(), LabelDirichlet(remainder="largest"), LabelDirichletPerClass()),
    *(LabelDirichletBalanced(), LabelDirichletTopUp(), LabelShards(), LabelSimilarity()),
]
STRUCTURED = [LabelClasses(), LabelBlocks()]
"""Random too, but they need several classes."""
FIXED = [LabelSorted(), Natural(), Pooled()]


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


# what holds for every skew


def deal_some(*args) -> Partition:
    """`deal`, unless the paper's rule drops every row of a tiny example, or it has not the classes or rows that are asked."""
    try:
        return deal(*args)
    except BadInput:
        assume(getattr(args[0], "remainder", "") != "drop")
        assume(not isinstance(args[0], LabelShards | LabelClasses | LabelBlocks))
        raise


@st.composite
def cases(draw):
    """Labels, groups, a number of clients, a skew that fits them, a seed, a held-out share."""
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
                LabelDirichlet(alpha=alpha, remainder="largest"),
                LabelDirichletPerClass(alpha=alpha, min_size=0),
                LabelDirichletPerClass(alpha=alpha, min_size=0, balance=False),
                IidStratified(),
                LabelDirichletBalanced(alpha=alpha),
                LabelDirichletBalanced(alpha=alpha, prior="data"),
                LabelDirichletTopUp(alpha=alpha),
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
def test_rows_are_dealt_once_and_accounted_for(case):
    skew, labels, groups, clients, seed, held_out = case
    part = deal_some(skew, labels, groups, clients, seed, held_out)
    aside = part.held_out[0] if part.held_out else np.zeros(0, dtype=np.int64)
    used = np.concatenate([part.indices, aside])
    assert len(np.unique(used)) == len(used), "a row was dealt twice"
    assert used.min() >= 0
    assert used.max() < len(labels)
    assert len(used) + part.unassigned == len(labels)
    assert part.unassigned >= 0


@QUICK
@given(cases())
def test_offsets_names_and_empty_clients_are_consistent(case):
    skew, labels, groups, clients, seed, held_out = case
    part = deal_some(skew, labels, groups, clients, seed, held_out)
    assert part.offsets[0] == 0
    assert part.offsets[-1] == len(part.indices)
    assert (part.sizes >= 1).all(), "a client without rows is not one of the partition's clients"
    assert len(part) == len(part.names) == len(part.offsets) - 1 == len(set(part.names))
    assert np.array_equal(np.concatenate(rows_of(part)), part.indices)
    expected = {Natural: len(np.unique(groups)), Pooled: 1}.get(type(skew), clients)
    assert len(part) + part.empty == expected


@QUICK
@given(cases())
def test_held_out_rows_are_a_rounded_down_share_of_each_client(case):
    skew, labels, groups, clients, seed, held_out = case
    part, whole = (
        deal_some(skew, labels, groups, clients, seed, held_out),
        deal_some(skew, labels, groups, clients, seed),
    )
    assert part.names == whole.names
    for k in range(len(part)):
        mine = set(whole.rows(k).tolist())
        train = set(part.rows(k).tolist())
        if held_out == 0:
            assert part.held_out is None
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


@QUICK
@given(cases())
def test_label_counts_are_those_of_the_training_rows(case):
    skew, labels, groups, clients, seed, held_out = case
    part = deal_some(skew, labels, groups, clients, seed, held_out)
    expected = [np.bincount(labels[rows], minlength=6) for rows in rows_of(part)]
    assert np.array_equal(part.label_counts(labels, 6), expected)


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
def test_a_seed_changes_only_the_order_where_nothing_is_random(skew):
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


def test_every_skew_is_in_the_catalogue_and_is_tested_here():
    dealers = {cls for cls in SKEWS.values() if cls.face in ("none", "label")}
    assert {type(skew) for skew in [*RANDOM, *STRUCTURED, *FIXED]} == dealers - {FromFolder}


def test_empty_clients_are_left_out_and_counted():
    labels = np.zeros(20, dtype=np.int64)
    part = deal(LabelDirichletPerClass(alpha=1e-4, min_size=0), labels, None, 6, 3)
    assert len(part) == 1
    assert part.empty == 5
    assert part.unassigned == 0
    dealt = LabelDirichletPerClass(alpha=1e-4, min_size=0).deal(labels, None, 6, np.random.default_rng(3))
    assert sum(len(rows) == 0 for rows in dealt) >= 4


def test_names_skip_the_empty_clients():
    class Gaps:
        def deal(self, labels, groups, num_clients, rng):
            return [np.array([0, 1]), np.array([], dtype=np.int64), np.array([2])]

    part = deal(Gaps(), np.zeros(5, dtype=np.int64), None, 3, 0)
    assert part.names == ("0", "2")
    assert part.empty == 1
    assert part.unassigned == 2


# plain skews


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


def test_names_are_the_groups_only_for_natural_clients():
    groups = np.array([7, 3, 3, 11, 7, 3])
    assert deal(Iid(), np.zeros(6, dtype=np.int64), groups, 2, 0).names == ("0", "1")


def test_pooled_is_one_client_with_all_rows():
    part = deal(Pooled(), balanced(50, 3), None, 7, 0)
    assert len(part) == 1
    assert sorted(part.indices) == list(range(50))


# label-sorted chop


@QUICK
@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 12))
def test_label_sorted_is_a_stable_sort_cut_into_blocks(labels, clients):
    labels = np.asarray(labels)
    clients = min(clients, len(labels))
    dealt = LabelSorted().deal(labels, None, clients, np.random.default_rng(0))
    order = sorted(range(len(labels)), key=lambda i: (labels[i], i))
    cut, longer = divmod(len(labels), clients)
    for k, rows in enumerate(dealt):
        start = k * cut + min(k, longer)
        assert list(rows) == order[start : start + cut + (k < longer)]


def test_label_sorted_on_the_drift_demo_data():
    """Algorithms note 2.A.7: six classes, thirty clients of 400 rows, and exactly five of them see two classes."""
    labels = SyntheticSoftmax(data_seed=0).load().y
    part = deal(LabelSorted(), labels, None, 30, 0)
    held = (part.label_counts(labels, 6) > 0).sum(1)
    assert (part.sizes == 400).all()
    assert sorted(held) == [1] * 25 + [2] * 5
    assert sets_of(rows_of(part)) == sets_of(np.array_split(np.argsort(labels, kind="stable"), 30))


# Algorithm 3 of failure-modes


@QUICK
@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=5),
    st.integers(1, 9),
    st.floats(-5, 6),
    st.integers(0, 10**6),
)
def test_remainder_of_a_class_is_less_than_one_row_a_client(class_sizes, clients, log_alpha, seed):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(class_sizes)), class_sizes))
    if len(labels) < clients:
        return
    n_c, alpha = np.bincount(labels), 10.0**log_alpha
    classes = len(n_c)
    dealt = {
        rule: np.array(
            [
                np.bincount(labels[rows], minlength=classes)
                for rows in LabelDirichlet(alpha=alpha, remainder=rule).deal(
                    labels, None, clients, np.random.default_rng(seed)
                )
            ]
        )
        for rule in ("drop", "largest")
    }
    left = n_c - dealt["drop"].sum(0)
    assert (left >= 0).all()
    assert (left <= clients - 1).all()
    assert np.array_equal(dealt["largest"].sum(0), n_c), "largest drops none"
    extra = dealt["largest"] - dealt["drop"]
    assert ((extra == 0) | (extra == 1)).all(), "a client gets at most one row more of a class"


def test_floors_and_largest_parts_of_known_shares(monkeypatch):
    """Ten rows in shares 0.55, 0.27, 0.18: floors 5, 2, 1; the two rows left go to the parts .8 and .7."""
    shares = np.array([[0.55], [0.27], [0.18]])
    monkeypatch.setattr("fedskew.skew.label.dirichlet", lambda *_: np.log(shares))
    labels = np.zeros(10, dtype=np.int64)
    sizes = {
        rule: [len(p) for p in LabelDirichlet(remainder=rule).deal(labels, None, 3, np.random.default_rng(0))]
        for rule in ("drop", "largest")
    }
    assert sizes == {"drop": [5, 2, 1], "largest": [5, 3, 2]}


def test_claims_are_normalised_over_the_clients(monkeypatch):
    """p = (.8, .2) and (.4, .6): class 0 is cut 2 : 1, class 1 is cut 1 : 3."""
    claims = np.log(np.array([[0.8, 0.2], [0.4, 0.6]]))
    monkeypatch.setattr("fedskew.skew.label.dirichlet", lambda *_: claims)
    labels = np.repeat([0, 1], [30, 40])
    dealt = LabelDirichlet().deal(labels, None, 2, np.random.default_rng(0))
    assert [np.bincount(labels[rows]).tolist() for rows in dealt] == [[20, 10], [10, 30]]


@pytest.mark.parametrize(("classes", "clients"), [(2, 2), (4, 5), (3, 8), (6, 10)])
@pytest.mark.parametrize("alpha", [1e-4, 1e-2, 0.1, 1.0, 100.0])
def test_nobody_is_empty_if_every_class_has_a_row_for_each_client_and_class(alpha, classes, clients):
    labels = np.repeat(np.arange(classes), classes * clients)
    for seed in range(40):
        part = deal(LabelDirichlet(alpha=alpha), labels, None, clients, seed)
        assert part.empty == 0
        assert len(part) == clients
        assert (part.label_counts(labels, classes).max(1) >= 1).all()


def test_small_classes_may_leave_clients_empty():
    labels = np.repeat(np.arange(4), 3)
    assert any(deal(LabelDirichlet(alpha=0.01), labels, None, 8, seed).empty for seed in range(20))


@pytest.mark.parametrize(
    "skew",
    [
        LabelDirichlet(alpha=1e6),
        LabelDirichlet(alpha=1e6, remainder="largest"),
        LabelDirichletPerClass(alpha=1e6, min_size=0),
        LabelDirichletPerClass(alpha=1e6, min_size=0, balance=False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("seed", range(5))
def test_large_alpha_is_even(skew, seed):
    labels, clients = np.repeat(np.arange(4), [100, 250, 333, 400]), 7
    counts = deal(skew, labels, None, clients, seed).label_counts(labels, 4)
    assert np.abs(counts - np.bincount(labels) / clients).max() <= 2


@pytest.mark.parametrize("alpha", [1e-2, 1e-4, 1e-12, 1e-300])
@pytest.mark.parametrize(
    "make",
    [
        lambda a: LabelDirichlet(alpha=a),
        lambda a: LabelDirichlet(alpha=a, remainder="largest"),
        lambda a: LabelDirichletPerClass(alpha=a, min_size=10),
        lambda a: LabelDirichletPerClass(alpha=a, min_size=0, balance=False),
    ],
    ids=["alg3", "alg3-largest", "per-class", "per-class-plain"],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_tiny_alpha_neither_fails_nor_hangs(make, alpha):
    labels = np.repeat(np.arange(6), 200)
    began = time.perf_counter()
    for seed in range(3):
        part = deal(make(alpha), labels, None, 10, seed)
        counts = part.label_counts(labels, 6)
        assert counts.sum() + part.unassigned == len(labels)
        assert part.unassigned <= 6 * 9
    assert time.perf_counter() - began < 20


def test_tiny_alpha_gives_single_claims_and_equal_splits():
    """alpha -> 0: a client claims one class; several that claim one class share it equally."""
    labels = np.repeat(np.arange(3), 600)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        log_p = dirichlet(1e-5, (6, 3), np.random.default_rng(seed))
        claimed = log_p.argmax(1)
        dealt = LabelDirichlet(alpha=1e-5).deal(labels, None, 6, rng)
        for c in set(claimed):
            holders = np.flatnonzero(claimed == c)
            got = [int((labels[dealt[k]] == c).sum()) for k in holders]
            assert max(got) - min(got) <= 6
            assert sum(got) >= 600 - 6


def test_executed_averages_of_failure_modes():
    """Algorithms note 2.A.2 and 3.1 (class counts): 4,000 rows, 4 classes, 5 clients; averages over partitions."""
    labels, partitions = np.repeat(np.arange(4), 1000), 600
    found = {}
    for alpha in (0.1, 0.01):
        above5, above95, square, left, smallest = [], [], [], [], []
        for seed in range(partitions):
            part = deal(LabelDirichlet(alpha=alpha), labels, None, 5, seed)
            assert len(part) == 5, "nobody is empty"
            p = part.label_counts(labels, 4) / part.sizes[:, None]
            above5.append((p > 0.05).sum(1).mean())
            above95.append((p.max(1) > 0.95).mean())
            square.append(((p - 0.25) ** 2).sum(1).mean())
            left.append(part.unassigned)
            smallest.append(part.sizes.min())
        found[alpha] = [np.mean(v) for v in (above5, above95, square, left)]
        error = [4 * np.std(v) / math.sqrt(partitions) + 0.005 for v in (above5, above95, square, left)]
        expected = {0.1: [1.87, 0.31, 0.469, 7.0], 0.01: [1.27, 0.74, None, None]}[alpha]
        for value, tolerance, target in zip(found[alpha], error, expected, strict=True):
            assert target is None or value == pytest.approx(target, abs=tolerance)
        assert max(left) <= 4 * 4
        assert min(smallest) > 196
    assert found[0.1][0] > found[0.01][0]


# per class


@QUICK
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=100),
    st.integers(1, 10),
    st.integers(0, 12),
    st.floats(-4, 4),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_per_class_assigns_every_row_and_respects_min_size(labels, clients, min_size, log_alpha, balance, seed):
    labels = np.asarray(labels)
    clients = min(clients, len(labels))
    min_size = min(min_size, len(labels) // clients)
    skew = LabelDirichletPerClass(alpha=10.0**log_alpha, min_size=min_size, balance=balance)
    part = deal(skew, labels, None, clients, seed)
    assert part.unassigned == 0
    assert sorted(part.indices) == list(range(len(labels)))
    assert (part.sizes >= min_size).all()
    assert min_size == 0 or part.empty == 0


@pytest.mark.parametrize("clients", [3, 10])
def test_min_size_is_reached_by_moving_rows_where_no_draw_reaches_it(clients):
    labels = np.zeros(200, dtype=np.int64)  # one class at tiny alpha: one client gets it all, in every draw
    sizes = deal(LabelDirichletPerClass(alpha=1e-4, min_size=10), labels, None, clients, 0).sizes
    assert sorted(sizes)[:-1] == [10] * (clients - 1)
    assert sizes.max() == 200 - 10 * (clients - 1)


def test_min_size_may_use_up_every_row():
    sizes = deal(LabelDirichletPerClass(alpha=1e-4, min_size=10), np.zeros(40, dtype=np.int64), None, 4, 0).sizes
    assert list(sizes) == [10, 10, 10, 10]


def test_top_up_moves_random_rows_of_the_largest_client():
    parts = [np.arange(50), np.arange(50, 58), np.array([], dtype=np.int64)]
    seen = set()
    for seed in range(20):
        made = top_up([p.copy() for p in parts], 10, np.random.default_rng(seed))
        assert [len(p) for p in made] == [38, 10, 10]
        assert sorted(np.concatenate(made)) == list(range(58))
        assert set(made[1]) >= set(parts[1])
        assert set(made[2]) <= set(parts[0])
        seen |= set(made[2].tolist())
    assert len(seen) > 40, "any row of the largest client may move"


@QUICK
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 30), st.integers(0, 1000))
def test_top_up_takes_from_nobody_what_he_needs(sizes, min_size, seed):
    min_size = min(min_size, sum(sizes) // len(sizes))
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    made = top_up(list(parts), min_size, np.random.default_rng(seed))
    assert min(map(len, made)) >= min_size
    assert sorted(np.concatenate(made)) == list(range(sum(sizes)))
    for before, after in zip(parts, made, strict=True):
        assert len(before) >= min_size or set(before) <= set(after), "only those above min_size give"
        assert len(after) <= max(len(before), min_size), "nobody gets more than he lacks"


def test_redraws_stop_at_the_first_draw_that_is_large_enough(monkeypatch):
    drawn = []
    original = LabelDirichletPerClass.draw_counts

    def recording(self, sizes, clients, rng):
        drawn.append(original(self, sizes, clients, rng))
        return drawn[-1]

    monkeypatch.setattr(LabelDirichletPerClass, "draw_counts", recording)
    labels, numbers = np.repeat(np.arange(4), 50), []
    for seed in range(8):
        drawn.clear()
        part = deal(LabelDirichletPerClass(alpha=0.1, min_size=10), labels, None, 5, seed)
        smallest = [int(counts.sum(0).min()) for counts in drawn]
        assert all(size < 10 for size in smallest[:-1])
        assert smallest[-1] >= 10
        assert np.array_equal(part.label_counts(labels, 4).T, drawn[-1]), "no rows were moved"
        numbers.append(len(drawn))
    assert max(numbers) > 1


def test_at_most_a_thousand_redraws(monkeypatch):
    calls = []

    def hopeless(self, sizes, clients, rng):
        calls.append(1)
        return np.array([[size, *[0] * (clients - 1)] for size in sizes])

    monkeypatch.setattr(LabelDirichletPerClass, "draw_counts", hopeless)
    deal(LabelDirichletPerClass(min_size=5), np.zeros(50, dtype=np.int64), None, 4, 0)
    assert len(calls) == 1000


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0])
def test_balance_gives_nothing_more_to_a_client_with_its_share(alpha):
    sizes, clients, seen = [30, 50, 20, 60, 40], 4, 0
    for seed in range(50):
        counts = LabelDirichletPerClass(alpha=alpha, min_size=0).draw_counts(
            sizes, clients, np.random.default_rng(seed)
        )
        assert np.array_equal(counts.sum(1), sizes)
        held = np.cumsum(counts, axis=0)
        for c in range(1, len(sizes)):
            full = held[c - 1] >= sum(sizes) / clients
            seen += int(full.sum())
            assert (counts[c][full] == 0).all()
    assert seen > 20, "the rule came into play"


def test_without_balance_a_full_client_takes_more():
    skew = LabelDirichletPerClass(alpha=0.3, min_size=0, balance=False)
    more = 0
    for seed in range(50):
        counts = skew.draw_counts([30, 50, 20, 60, 40], 4, np.random.default_rng(seed))
        held = np.cumsum(counts, axis=0)
        more += sum(int((counts[c][held[c - 1] >= 50] > 0).sum()) for c in range(1, 5))
    assert more > 5


def test_per_class_cuts_follow_the_proportions(monkeypatch):
    """Shares .5, .3, .2 of 10 rows cut at floor(10 x .5) and floor(10 x .8); of 7 rows at 3 and 5."""
    monkeypatch.setattr("fedskew.skew.label.dirichlet", lambda *_: np.log([[0.5, 0.3, 0.2]]))
    counts = LabelDirichletPerClass(min_size=0, balance=False).draw_counts([10, 7], 3, np.random.default_rng(0))
    assert counts.tolist() == [[5, 3, 2], [3, 2, 2]]


def test_per_class_leaves_clients_empty_as_often_as_executed():
    """Algorithms note 2.A.3: alpha 0.01, 10 clients, the 7,352 rows of UCI-HAR: 4.0 hold below 10 rows, 2.6 none."""
    sizes = [1226, 1073, 986, 1286, 1374, 1407]
    for balance, below, none in ((False, 4.0, 2.6), (True, 3.0, 1.9)):
        skew = LabelDirichletPerClass(alpha=0.01, min_size=0, balance=balance)
        rng = np.random.default_rng(1)
        totals = np.array([skew.draw_counts(sizes, 10, rng).sum(0) for _ in range(1500)])
        for target, counted in ((below, (totals < 10).sum(1)), (none, (totals == 0).sum(1))):
            assert counted.mean() == pytest.approx(target, abs=0.05 + 4 * counted.std() / math.sqrt(1500))


# Dirichlet draws


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_dirichlet_moments(alpha, classes):
    draws = 40_000
    p = np.exp(dirichlet(alpha, (draws, classes), np.random.default_rng(2)))
    assert np.allclose(p.sum(1), 1, atol=1e-12)
    variance = (1 / classes) * (1 - 1 / classes) / (classes * alpha + 1)
    assert np.allclose(p.mean(0), 1 / classes, atol=5 * math.sqrt(variance / draws))
    squares = (p - 1 / classes) ** 2
    assert np.allclose(squares.mean(0), variance, atol=5 * squares.std() / math.sqrt(draws))


@pytest.mark.parametrize("alpha", [1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0])
def test_dirichlet_draws_are_exact_in_log_space(alpha):
    """E log p = psi(alpha) - psi(C alpha), where a plain Gamma draw underflows to log 0 (93 % of draws at 1e-4)."""
    classes, draws = 5, 40_000
    log_p = dirichlet(alpha, (draws, classes), np.random.default_rng(3))
    assert np.isfinite(log_p).all()
    mean = digamma(alpha) - digamma(classes * alpha)
    variance = polygamma(1, alpha) - polygamma(1, classes * alpha)
    assert log_p.mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / draws))
    assert log_p.var() == pytest.approx(variance, rel=0.15)


# bad input

BAD_ALPHA = [0.0, -1.0, float("nan"), float("inf"), float("-inf")]


def one_line(error: pytest.ExceptionInfo[BadInput]) -> str:
    text = str(error.value)
    assert text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("alpha", BAD_ALPHA)
@pytest.mark.parametrize("skew", [LabelDirichlet, LabelDirichletPerClass])
def test_alpha_must_be_positive_and_finite(skew, alpha):
    with pytest.raises(BadInput) as error:
        skew(alpha=alpha)
    assert "alpha" in one_line(error)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("label-dirichlet:alpha=0", "alpha"),
        ("label-dirichlet:alpha=nan", "alpha"),
        ("label-dirichlet:alpha=inf", "alpha"),
        ("label-dirichlet:remainder=keep", "remainder"),
        ("label-dirichlet-per-class:min_size=-1", "min_size"),
        ("label-dirichlet:alpah=1", "alpha"),
        ("label-dirichle", "label-dirichlet"),
    ],
)
def test_compact_forms_are_checked(spec, word):
    with pytest.raises(BadInput) as error:
        build("skew", SKEWS, spec)
    assert word in one_line(error)


@pytest.mark.parametrize("skew", [Iid(), LabelSorted(), LabelDirichlet(), LabelDirichletPerClass(min_size=0)], ids=repr)
@pytest.mark.parametrize("clients", [-1, 0, 21])
def test_the_number_of_clients_must_fit_the_rows(skew, clients):
    with pytest.raises(BadInput) as error:
        deal(skew, balanced(20, 4), None, clients, 0)
    assert str(clients) in one_line(error)


def test_natural_needs_groups():
    with pytest.raises(BadInput) as error:
        deal(Natural(), balanced(20, 4), None, 3, 0)
    assert "natural" in one_line(error)


def test_min_size_must_be_possible():
    with pytest.raises(BadInput) as error:
        deal(LabelDirichletPerClass(min_size=10), balanced(20, 4), None, 3, 0)
    assert "30 rows" in one_line(error)


def test_a_partition_in_which_nobody_has_rows_is_refused():
    with pytest.raises(BadInput) as error:
        # one row per class, none of which is wholly anybody's
        deal(LabelDirichlet(alpha=1e6), np.arange(4), None, 4, 0)
    one_line(error)


@pytest.mark.parametrize("held_out", [1.0, 1 - 1e-13])
def test_no_held_out_share_takes_all_rows_of_a_client(held_out):
    with contextlib.suppress(BadInput):
        assert (deal(Iid(), balanced(20, 4), None, 4, 0, held_out).sizes >= 1).all()

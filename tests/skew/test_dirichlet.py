"""Dirichlet label skews: counts by hand, limits, and draws against theory and the executed figures of the papers."""

import math
import time
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from scipy.special import digamma, polygamma

from fedskew.skew import LabelDirichlet, LabelDirichletPerClass
from fedskew.skew.label import LabelDirichletBalanced, LabelDirichletTopUp, dirichlet, top_up
from fedskew.skew.partition import deal

QUICK = settings(max_examples=60)


@QUICK
@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=5),
    st.integers(1, 9),
    st.floats(-5, 6),
    st.integers(0, 10**6),
)
def test_remainder_of_a_class_is_less_than_one_row_a_client(class_sizes, clients, log_alpha, seed):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(class_sizes)), class_sizes))
    assume(len(labels) >= clients)
    n_c, alpha, classes = np.bincount(labels), 10.0**log_alpha, int(labels.max()) + 1
    dealt = {}
    for rule in ("drop", "largest"):
        parts = LabelDirichlet(alpha=alpha, remainder=rule).deal(labels, None, clients, np.random.default_rng(seed))
        dealt[rule] = np.array([np.bincount(labels[rows], minlength=classes) for rows in parts])
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
def test_no_client_is_empty_if_every_class_has_a_row_for_each_client_and_class(alpha, classes, clients):
    labels = np.repeat(np.arange(classes), classes * clients)
    for seed in range(40):
        part = deal(LabelDirichlet(alpha=alpha), labels, None, clients, seed)
        assert part.empty == 0
        assert len(part) == clients
        assert (part.label_counts(labels, classes).max(1) >= 1).all()


@pytest.mark.parametrize(
    "skew",
    [
        LabelDirichlet(alpha=1e6),
        LabelDirichlet(alpha=1e6, remainder="drop"),
        LabelDirichletPerClass(alpha=1e6, min_size=0),
        LabelDirichletPerClass(alpha=1e6, min_size=0, balance=False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("seed", range(5))
def test_a_large_alpha_deals_evenly(skew, seed):
    labels, clients = np.repeat(np.arange(4), [100, 250, 333, 400]), 7
    counts = deal(skew, labels, None, clients, seed).label_counts(labels, 4)
    assert np.abs(counts - np.bincount(labels) / clients).max() <= 2


@pytest.mark.parametrize("alpha", [1e-4, 1e-300])
@pytest.mark.parametrize(
    "make",
    [
        lambda a: LabelDirichlet(alpha=a),
        lambda a: LabelDirichlet(alpha=a, remainder="drop"),
        lambda a: LabelDirichletPerClass(alpha=a, min_size=10),
        lambda a: LabelDirichletPerClass(alpha=a, min_size=0, balance=False),
    ],
    ids=["alg3", "alg3-floor", "per-class", "per-class-plain"],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_tiny_alpha_neither_fails_nor_hangs(make, alpha):
    labels = np.repeat(np.arange(6), 200)
    began = time.process_time()
    for seed in range(2):
        part = deal(make(alpha), labels, None, 10, seed)
        counts = part.label_counts(labels, 6)
        assert counts.sum() + part.unassigned == len(labels)
        assert part.unassigned <= 6 * 9
    assert time.process_time() - began < 20


def test_executed_averages_of_failure_modes():
    """Algorithms note 2.A.2 and 3.1 (class counts): 4,000 rows, 4 classes, 5 clients; averages over partitions."""
    labels, partitions = np.repeat(np.arange(4), 1000), 600
    found = {}
    for alpha in (0.1, 0.01):
        above5, above95, square, left, smallest = [], [], [], [], []
        for seed in range(partitions):
            part = deal(LabelDirichlet(alpha=alpha, remainder="drop"), labels, None, 5, seed)
            assert len(part) == 5, "no client is empty"
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
    with mock.patch("fedskew.skew.label.REDRAWS", 20):
        part = deal(skew, labels, None, clients, seed)
    assert part.unassigned == 0
    assert sorted(part.indices) == list(range(len(labels)))
    assert (part.sizes >= min_size).all()
    assert min_size == 0 or part.empty == 0


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
def test_top_up_takes_only_rows_above_min_size(sizes, min_size, seed):
    min_size = min(min_size, sum(sizes) // len(sizes))
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    made = top_up(list(parts), min_size, np.random.default_rng(seed))
    assert min(map(len, made)) >= min_size
    assert sorted(np.concatenate(made)) == list(range(sum(sizes)))
    for before, after in zip(parts, made, strict=True):
        assert len(before) >= min_size or set(before) <= set(after), "only those above min_size give"
        assert len(after) <= max(len(before), min_size), "no client gets more than it lacks"


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


def test_balanced_dirichlet_has_equal_sizes_and_its_moments() -> None:
    """2.A.4: sizes exact; of the proportions E sum (p - 1/C)^2 = (1 - 1/C)/(C alpha + 1) (2.B)."""
    labels = np.repeat(np.arange(4), 300)
    for alpha in (0.1, 1.0, 10.0):
        skew = LabelDirichletBalanced(alpha=alpha)
        assert {len(rows) for rows in skew.deal(labels, None, 7, np.random.default_rng(0))} == {171, 172}
        squares = ((skew.proportions(labels, 4000, np.random.default_rng(1)) - 0.25) ** 2).sum(1)
        assert squares.mean() == pytest.approx(0.75 / (4 * alpha + 1), abs=5 * squares.std() / np.sqrt(4000))


def test_the_prior_of_the_data_follows_their_class_frequencies() -> None:
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    p = LabelDirichletBalanced(alpha=1.0, prior="data").proportions(labels, 20000, np.random.default_rng(0))
    assert np.allclose(p.mean(0), [0.9, 0.09, 0.01], atol=0.005)


def test_top_up_skew_is_the_papers_code(monkeypatch) -> None:
    """Shares (.5, .26, .24): floors 5 and 2 of 10, the last takes 3; 6 rows: 3, 1, 2. Then max(1, n / 10 K) each."""
    monkeypatch.setattr("fedskew.skew.label.dirichlet", lambda *_: np.log([[0.5, 0.26, 0.24]] * 2))
    labels = np.repeat([0, 1], [10, 6])
    dealt = LabelDirichletTopUp().deal(labels, None, 3, np.random.default_rng(0))
    assert [np.bincount(labels[rows]).tolist() for rows in dealt] == [[5, 3], [2, 1], [3, 2]]
    monkeypatch.setattr("fedskew.skew.label.dirichlet", lambda *_: np.log([[1 - 2e-9, 1e-9, 1e-9]] * 2))
    labels = np.repeat([0, 1], [60, 61])
    assert [len(rows) for rows in LabelDirichletTopUp().deal(labels, None, 3, np.random.default_rng(0))] == [113, 4, 4]

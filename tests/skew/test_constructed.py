"""Constructed partitions, client sizes, and both together: exact, or as near as the rows allow."""

from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import linprog

from fedskew.core.seeding import stream
from fedskew.skew.compose import mixture, skews_of
from fedskew.skew.label import LabelBlocks, LabelClasses, LabelShards, LabelSimilarity, fitted, rounded
from fedskew.skew.partition import IidStratified, deal
from fedskew.skew.quantity import QuantityDirichlet, QuantityLogNormal, QuantityPowerLaw, apportioned, at_least

QUICK = settings(max_examples=40)
MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(*sizes: int) -> np.ndarray:
    return rng(9).permutation(np.repeat(np.arange(len(sizes)), sizes))


def counts_of(dealt, labels) -> np.ndarray:
    return np.stack([np.bincount(labels[rows], minlength=int(labels.max()) + 1) for rows in dealt])


@pytest.mark.parametrize(("shards", "clients"), [(1, 10), (2, 10), (2, 25), (5, 4)])
def test_shards_that_divide_the_classes_bound_the_classes_of_a_client(shards: int, clients: int) -> None:
    labels = labels_of(*[100] * 10)
    for seed in range(10):
        counts = counts_of(LabelShards(shards=shards).deal(labels, None, clients, rng(seed)), labels)
        assert (counts.sum(1) == 1000 // clients).all()
        assert ((counts > 0).sum(1) <= shards).all()


def test_shards_of_mnist_straddle_class_bounds_as_executed() -> None:
    """Algorithms note 2.A.5: 200 shards of 300; some client has 3 classes in every deal, and 4 in 14 % of the deals."""
    labels = labels_of(*MNIST)
    bounds = np.cumsum(MNIST)[:-1]
    assert (bounds % 300 != 0).sum() == 9
    most = [(counts_of(LabelShards().deal(labels, None, 100, rng(s)), labels) > 0).sum(1).max() for s in range(150)]
    assert set(most) <= {3, 4}
    assert np.mean(np.equal(most, 4)) == pytest.approx(0.14, abs=4 * np.sqrt(0.14 * 0.86 / 150))


def test_the_rows_that_fill_no_shard_are_left_out_and_counted() -> None:
    part = deal(LabelShards(shards=2), labels_of(60, 43), None, 10, 0)
    assert (part.sizes == 10).all()
    assert part.unassigned == 3


@QUICK
@given(st.integers(1, 10), st.integers(1, 40), st.integers(0, 10**6))
def test_every_client_holds_exactly_k_classes(k: int, clients: int, seed: int) -> None:
    labels = labels_of(*range(60, 70))
    counts = counts_of(LabelClasses(k=k).deal(labels, None, clients, rng(seed)), labels)
    assert ((counts > 0).sum(1) == k).all()
    assert (counts[np.arange(clients), np.arange(clients) % 10] > 0).all(), "class i modulo the classes is one of them"
    for c in range(10):
        held = counts[counts[:, c] > 0, c]
        assert len(held) == 0 or (held.sum() == 60 + c and held.max() - held.min() <= 1), (
            "holders share a class equally"
        )


def test_stratified_clients_are_an_even_split() -> None:
    labels = labels_of(50, 70, 80)
    even = counts_of(IidStratified().deal(labels, None, 7, rng()), labels)
    assert (even.max(0) - even.min(0) <= 1).all()
    assert even.sum(1).max() - even.sum(1).min() <= 1


@pytest.mark.parametrize("similarity", [0.0, 0.1, 0.5, 1.0])
def test_similarity_is_the_share_that_is_dealt_iid(similarity: float) -> None:
    """Ten classes on ten clients: each client has one class in the sorted part, and about a tenth of each in the random part."""
    labels = labels_of(*[300] * 10)
    counts = counts_of(LabelSimilarity(similarity=similarity).deal(labels, None, 10, rng()), labels)
    assert (counts.sum(1) == 300).all()
    own = counts.max(1).mean() / 300
    assert own == pytest.approx(1 - similarity + similarity / 10, abs=0.05)


def test_similarity_zero_cuts_the_sorted_rows() -> None:
    labels = labels_of(30, 45, 25)
    counts = counts_of(LabelSimilarity(similarity=0.0).deal(labels, None, 4, rng()), labels)
    assert counts.tolist() == [[25, 0, 0], [5, 20, 0], [0, 25, 0], [0, 0, 25]]


def test_blocks_of_eleven_clients_and_46_intents() -> None:
    """Client i has nine tenths of 4i .. 4i + 3, clients 0 and 1 of 44 and 45; the rest of two intents is the client's before."""
    labels = labels_of(*[100] * 46)
    counts = counts_of(LabelBlocks().deal(labels, None, 11, rng()), labels)
    assert counts.sum() == 4600
    for i in range(11):
        assert (counts[i, 4 * i : 4 * i + 4] == 90).all()
        following = 4 * ((i + 1) % 11)
        assert (counts[i, following : following + 2] == 10).all()
    assert (counts[0, 44], counts[1, 45]) == (90, 90)


@QUICK
@given(st.integers(1, 60), st.integers(0, 5000), st.integers(0, 10**6), st.floats(0, 3))
def test_sizes_sum_to_the_rows_and_no_client_is_empty(clients: int, more: int, seed: int, sigma: float) -> None:
    rows = clients * 10 + more
    for skew in (QuantityLogNormal(sigma=sigma), QuantityPowerLaw(), QuantityDirichlet(beta=0.05 + sigma)):
        sizes = skew.sizes(rows, clients, rng(seed))
        assert sizes.sum() == rows
        assert sizes.min() >= (10 if isinstance(skew, QuantityDirichlet) else 1)


@pytest.mark.parametrize(
    ("clients", "sigma", "expected"),
    [(10, 0.3, 1.08), (10, 0.6, 1.34), (10, 0.9, 1.77), (100, 0.3, 1.09), (100, 0.6, 1.42), (100, 0.9, 2.16)],
)
def test_lognormal_sizes_vary_as_theory_says(clients: int, sigma: float, expected: float) -> None:
    """Algorithms note 2.A.8: E[1 + CV^2], which tends to exp(sigma^2) for many clients."""
    draw = rng(3)
    sizes = np.stack([QuantityLogNormal(sigma=sigma).sizes(10**7, clients, draw) for _ in range(1500)])
    factor = (sizes**2).mean(1) / sizes.mean(1) ** 2
    assert factor.mean() == pytest.approx(expected, abs=0.006 + 4 * factor.std() / np.sqrt(1500))


def test_sigma_zero_is_balanced_and_the_remainder_goes_to_one() -> None:
    assert sorted(QuantityLogNormal(sigma=0).sizes(103, 10, rng())) == [10] * 9 + [13]
    assert QuantityLogNormal(sigma=0).sizes(49, 49, rng()).tolist() == [1] * 49


def test_floors_and_the_largest_client() -> None:
    assert apportioned(np.asarray([1.0, 2.0, 4.0]), 10).tolist() == [1, 2, 7]
    assert at_least(np.asarray([0, 1, 9]), 2).tolist() == [2, 2, 6]
    assert at_least(np.asarray([1, 1, 1]), 1).tolist() == [1, 1, 1]


def test_dirichlet_sizes_have_their_second_moment() -> None:
    """E sum q^2 = (beta + 1)/(K beta + 1); with beta 5 and a million rows hardly a draw is drawn anew."""
    draw = rng(5)
    q = np.stack([QuantityDirichlet(beta=5.0).sizes(10**6, 20, draw) for _ in range(3000)]) / 1e6
    squares = (q**2).sum(1)
    assert squares.mean() == pytest.approx(6 / 101, abs=5 * squares.std() / np.sqrt(3000))


@st.composite
def mixtures(draw):
    labels = labels_of(*draw(st.lists(st.integers(1, 60), min_size=2, max_size=5)))
    clients = draw(st.integers(1, min(12, len(labels))))
    label = draw(st.sampled_from(["iid", "label-dirichlet:alpha=0.2", "label-sorted", "label-dirichlet-balanced"]))
    size = draw(
        st.sampled_from(["quantity-lognormal:sigma=1.5", "quantity-power-law", "quantity-dirichlet:min_size=1"])
    )
    return labels, clients, mixture(skews_of([label, size])), draw(st.integers(0, 10**6))


@QUICK
@given(mixtures())
def test_a_mixture_hits_sizes_exactly_and_deals_every_row_once(case) -> None:
    labels, clients, mixed, seed = case
    part = deal(mixed, labels, None, clients, seed)
    wanted = mixed.quantity.sizes(len(labels), clients, stream(seed, "partition").spawn(1)[0])
    assert part.sizes.tolist() == wanted.tolist()
    assert sorted(part.indices) == list(range(len(labels)))
    again = deal(mixed, labels, None, clients, seed)
    assert np.array_equal(part.indices, again.indices)


@QUICK
@given(st.integers(1, 6), st.integers(2, 4), st.integers(0, 10**6))
def test_fitted_counts_are_the_nearest_there_are(clients: int, classes: int, seed: int) -> None:
    """Linear programming gives the same smallest sum |N - D|, with the row sums of D and no column sum above the room."""
    draw = rng(seed)
    p = draw.dirichlet([0.3] * classes, clients)
    sizes = draw.integers(1, 12, clients)
    wanted = rounded(sizes[:, None] * p, sizes)
    room = draw.multinomial(int(sizes.sum()) + int(draw.integers(0, 4)), [1 / classes] * classes)
    got = fitted(wanted, p, room, draw)
    assert (got >= 0).all()
    assert np.array_equal(got.sum(1), sizes)
    assert (got.sum(0) <= room).all()
    n = clients * classes
    cells = np.arange(n).reshape(clients, classes)
    # N = D + a - b, cost sum a + b
    per_row, per_class = np.zeros((clients, 2 * n)), np.zeros((classes, 2 * n))
    for k in range(clients):
        per_row[k, cells[k]], per_row[k, n + cells[k]] = 1, -1
    for c in range(classes):
        per_class[c, cells[:, c]], per_class[c, n + cells[:, c]] = 1, -1
    best = linprog(
        np.ones(2 * n),
        A_ub=per_class,
        b_ub=room - wanted.sum(0),
        A_eq=per_row,
        b_eq=np.zeros(clients),
        bounds=[(0, None)] * n + [(0, d) for d in wanted.reshape(-1)],
    )
    assert np.abs(got - wanted).sum() == pytest.approx(best.fun, abs=1e-6)


def test_largest_remainders_get_the_rest() -> None:
    """1.7, 1.6, 0.7 to 4: floors 1, 1, 0, and the two rows left go to the parts .7."""
    shares = np.asarray([[1.7, 1.6, 0.7], [2.0, 0.0, 0.0]])
    assert rounded(shares, np.asarray([4, 2])).tolist() == [[2, 1, 1], [2, 0, 0]]


def test_fitted_counts_use_any_class_where_the_wanted_one_is_empty() -> None:
    """Otherwise a client that wants only one class would draw this class forever."""
    counts = fitted(np.asarray([[3, 0], [3, 0]]), np.asarray([[1.0, 0.0], [1.0, 0.0]]), np.asarray([3, 4]), rng())
    assert counts.sum(0).tolist() == [3, 3]
    assert counts.sum(1).tolist() == [3, 3]


def test_label_proportions_are_kept_where_rows_allow() -> None:
    """Two classes of 60 and 60, two clients that want one each, of sizes 90 and 30: 30 rows have to be of the other class."""
    labels = np.repeat([0, 1], [60, 60])
    part = deal(mixture(skews_of(["label-sorted", "quantity-sizes:rows=[90,30]"])), labels, None, 2, 0)
    assert part.label_counts(labels, 2).tolist() == [[60, 30], [0, 30]]


def test_listed_sizes_leave_the_other_rows_unassigned() -> None:
    part = deal(mixture(skews_of("quantity-sizes:rows=[7,2,11]")), labels_of(20, 20), None, 3, 0)
    assert part.sizes.tolist() == [7, 2, 11]
    assert part.unassigned == 20


@pytest.mark.parametrize(
    "spec",
    [
        *("iid-stratified", "label-dirichlet", "label-dirichlet-balanced", "label-dirichlet-top-up", "label-shards"),
        *("label-dirichlet-per-class:min_size=1,alpha=0.1", "label-classes", "label-similarity", "label-sorted"),
        ["label-dirichlet", "quantity-lognormal"],
        ["label-dirichlet-balanced", "quantity-dirichlet:min_size=1"],
    ],
    ids=str,
)
def test_ten_thousand_clients_take_less_than_two_seconds(spec) -> None:
    """60,000 rows are dealt to 10,000 clients. The test counts CPU seconds, which other programs do not change."""
    labels = rng().integers(0, 10, 60_000)
    began = process_time()
    deal(mixture(skews_of(spec)), labels, None, 10_000, 0, 0.2)
    assert process_time() - began < 2

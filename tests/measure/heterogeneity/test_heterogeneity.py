"""Measures of heterogeneity: hand-computed cases, identities, SciPy and POT as oracles, invariances."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from scipy import optimize, stats
from scipy.spatial.distance import jensenshannon
from sklearn.covariance import ledoit_wolf

from fedskew.core.seeding import fair_sample, level
from fedskew.measure.heterogeneity.concept import alignment, fitted
from fedskew.measure.heterogeneity.counts import (
    dirichlet_alpha,
    label_distance,
    label_distance_by_chance,
    label_measures,
    pairwise_variation,
    size_distance,
    size_measures,
)
from fedskew.measure.heterogeneity.details import (
    frechet,
    gradient_dissimilarity,
    least,
    optimum_gap,
    shrunk_covariance,
    sliced_wasserstein,
    softmax_gap,
    softmax_gradients,
    softmax_objective,
    within_classes,
)
from fedskew.measure.heterogeneity.rows import flat, standardised, sums_by, table
from tests.planted import faces

QUICK = settings(max_examples=60)
COUNTS = hnp.arrays(np.int64, st.tuples(st.integers(2, 6), st.integers(2, 5)), elements=st.integers(0, 30)).filter(
    lambda c: bool((c.sum(1) > 0).all())
)
"""Counts (clients, classes); every client has rows."""

# labels


@QUICK
@given(COUNTS)
def test_label_measures_equal_scipys_and_keep_their_inequalities(counts):
    found = label_measures(counts)
    p = counts.sum(0) / counts.sum()
    for k, row in enumerate(counts):
        own = row / row.sum()
        values = {name: v[k] for name, v in found.items()}
        assert values["Jensen-Shannon"] == pytest.approx(jensenshannon(own, p, base=2) ** 2, abs=1e-9)
        assert values["Kullback-Leibler"] == pytest.approx(stats.entropy(own, p, base=2), abs=1e-9)
        assert values["L1"] == pytest.approx(np.abs(own - p).sum())
        assert values["Hellinger"] == pytest.approx(np.linalg.norm(np.sqrt(own) - np.sqrt(p)) / np.sqrt(2), abs=1e-7)
        variation, hellinger = values["total variation"], values["Hellinger"]
        assert hellinger**2 <= variation + 1e-9 <= np.sqrt(2) * hellinger + 1e-6
        assert values["Jensen-Shannon"] <= variation + 1e-9
        assert 1 - 1e-9 <= values["effective classes"] <= values["classes held"] + 1e-9
    sizes = counts.sum(1)
    assert sizes @ found["total variation"] / sizes.sum() == pytest.approx(label_distance(counts))
    assert label_distance(counts) <= 1 - 1 / min(counts.shape) + 1e-12


@QUICK
@given(COUNTS)
def test_pairs_of_clients_equal_the_double_loop(counts):
    p = counts / counts.sum(1, keepdims=True)
    pairs = [np.abs(a - b).sum() / 2 for i, a in enumerate(p) for b in p[:i]]
    assert pairwise_variation(counts) == pytest.approx(np.mean(pairs), abs=1e-12)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 5.0])
def test_the_concentration_of_a_dirichlet_is_found_again(alpha):
    drawn = np.random.default_rng(0).dirichlet(np.full(6, alpha), size=4000)
    assert dirichlet_alpha(np.rint(1e6 * drawn).astype(np.int64)) == pytest.approx(alpha, rel=0.05)
    assert dirichlet_alpha(7 * np.eye(6, dtype=np.int64)) == 0


def test_a_client_without_rows_does_not_count():
    counts = np.array([[5, 7], [9, 2]])
    more = np.vstack([counts, [[0, 0]]])
    assert label_distance(more) == pytest.approx(label_distance(counts))
    assert label_distance_by_chance(more) == pytest.approx(label_distance_by_chance(counts))


@pytest.mark.parametrize(
    ("sizes", "classes", "tolerance"),
    [
        ([1000, 1000], [500, 500, 500, 500], 0.03),
        ([300, 1700], [900, 600, 400, 100], 0.03),
        ([400] * 5, [500, 500, 500, 500], 0.03),
        ([100, 200, 300, 600, 800], [200, 300, 700, 800], 0.03),
        ([60] * 20, [120] * 10, 0.04),
        ([5] * 20 + [60] * 4, [34] * 10, 0.02),
        ([20, 20, 20], [58, 2], 0.02),
    ],
    ids=["K2", "K2-ragged", "K5", "K5-ragged", "K20", "small-clients", "rare-class"],
)
def test_label_distance_by_chance_equals_the_mean_of_random_partitions(sizes, classes, tolerance):
    rng, labels = np.random.default_rng(8), np.repeat(np.arange(len(classes)), classes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    found = []
    for _ in range(1500):
        flat = np.bincount(owner * len(classes) + rng.permutation(labels), minlength=len(sizes) * len(classes))
        counts = flat.reshape(len(sizes), len(classes))
        found.append(label_distance(counts))
    assert np.std(found) / np.mean(found) / math.sqrt(1500) < 0.015, "the simulation is sharp enough to tell"
    assert label_distance_by_chance(counts) == pytest.approx(np.mean(found), rel=tolerance)


def test_clients_with_one_row_are_at_the_distance_of_one_class():
    assert label_distance_by_chance(np.eye(10, dtype=np.int64).repeat(9, axis=0)) == pytest.approx(0.9, rel=1e-7)


def test_one_client_is_at_no_distance_by_chance():
    assert label_distance_by_chance(np.array([[20, 30]])) == 0


# sizes


@QUICK
@given(hnp.arrays(np.int64, st.integers(2, 12), elements=st.integers(1, 500)))
def test_size_measures_equal_their_definitions(sizes):
    found, count, n = size_measures(sizes), len(sizes), sizes.sum()
    assert found["Gini"] == pytest.approx(np.abs(np.subtract.outer(sizes, sizes)).sum() / (2 * count * n))
    assert found["effective clients"] == pytest.approx(count / (1 + found["variation"] ** 2))
    assert found["ratio"] == sizes.max() / sizes.min()
    moved = np.maximum(sizes - n / count, 0).sum()
    assert size_distance(sizes) == pytest.approx(moved / n)
    assert size_distance(sizes) <= found["Gini"] + 1e-12 <= 1 - 1 / count + 1e-9


# distances between sets of rows


def test_sliced_wasserstein_equals_pots():
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((40, 5)), 2 * rng.standard_normal((31, 5)) + 1
    lines = np.random.default_rng(7).standard_normal((5, 64))
    lines /= np.linalg.norm(lines, axis=0)
    theirs = ot.sliced_wasserstein_distance(a, b, projections=lines)
    assert sliced_wasserstein(a, b, np.random.default_rng(7), 64) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("shape", [(80, 4), (5, 12), (7, 1), (2, 3)])
def test_shrunk_covariance_agrees_with_scikit_learn(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).standard_normal(shape) * np.arange(1, shape[1] + 1)
    assert shrunk_covariance(rows) == pytest.approx(ledoit_wolf(rows)[0], rel=1e-12)
    assert (shrunk_covariance(np.ones(shape)) == 0).all()


def test_frechet_is_the_wasserstein_distance_of_gaussians():
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((80, 4)) @ rng.standard_normal((4, 4)), rng.standard_normal((70, 4)) + 1
    theirs = ot.gaussian.bures_wasserstein_distance(a.mean(0), b.mean(0), ledoit_wolf(a)[0], ledoit_wolf(b)[0])
    assert frechet(a, b) == pytest.approx(theirs**2, rel=1e-6)


def test_distances_within_classes_ignore_labels():
    """Rows are their label alone: between clients of different labels nothing differs within a class."""
    y, client = np.tile([0, 0, 0, 1], 60), np.repeat([0, 1], 120)
    y[client == 1] = 1 - y[client == 1]
    z = y[:, None].astype(float)
    assert within_classes(lambda a, b: float(abs(a.mean() - b.mean())), z, y, client, np.arange(2)) == 0
    assert np.isnan(within_classes(frechet, z, y, y, np.arange(2)))


def test_only_classes_with_enough_rows_on_both_sides_count():
    """A client with five rows of the class at 1, the others' five at 0; with four on either side there is no pair."""
    z, y = np.repeat([1.0, 0.0], 5)[:, None], np.zeros(10, dtype=int)
    client = np.repeat([0, 1], 5)

    def apart(a, b):
        return float(abs(a.mean() - b.mean()))

    assert within_classes(apart, z, y, client, np.arange(2), fewest=5) == 1
    for left in (slice(1, None), slice(None, -1)):
        assert np.isnan(within_classes(apart, z[left], y[left], client[left], np.arange(2), fewest=5))
    rows, of_client = np.array([[0.0], [1], [1], [3]]), np.array([0, 1, 1, 2])
    found = within_classes(apart, rows, np.zeros(4, dtype=int), of_client, np.arange(3), fewest=1)
    assert found == pytest.approx((5 / 3 + 2 * 0.5 + 7 / 3) / 4), "weighted by the client's rows"


# the two faces that use inputs


def rows(seed: int, clients: int = 6, n: int = 3000, classes: int = 3, spread: float = 4.0):
    rng = np.random.default_rng(seed)
    y, client = rng.integers(0, classes, n), rng.integers(0, clients, n)
    means = spread * rng.standard_normal((classes, 5)) / np.sqrt(5)
    return rng, means[y] + rng.standard_normal((n, 5)), y, client, means


def each_of(face: str, z: np.ndarray, y: np.ndarray, client: np.ndarray) -> np.ndarray:
    return faces(z, y, client).face(face).each


def test_a_shift_of_the_inputs_reaches_its_total_variation():
    """Half of the clients at -d, half at +d: between N(-d, 1) and the mixture lies (2 Phi(d) - 1) / 2 of total variation."""
    rng, _, y, client, _ = rows(0, n=20_000)
    shift = 0.8
    z = rng.standard_normal((len(y), 5))
    z[:, 0] += np.where(client % 2, shift, -shift)
    assert each_of("feature", z, y, client).mean() == pytest.approx((2 * stats.norm.cdf(shift) - 1) / 2, abs=0.03)


def test_the_feature_face_measures_noise_but_neither_labels_nor_concepts():
    rng, z, y, client, means = rows(1)
    skewed = np.where(rng.random(len(y)) < 0.8, client % 3, y)
    of_labels = means[skewed] + rng.standard_normal(z.shape)
    noisy = z + (client[:, None] > 2) * rng.standard_normal(z.shape)
    assert each_of("feature", noisy, y, client).mean() > 0.1
    assert abs(each_of("feature", of_labels, skewed, client).mean()) < 0.03
    assert abs(each_of("feature", z, (y + client) % 3, client).mean()) < 0.03


def test_the_concept_face_measures_names_but_neither_labels_nor_shifts():
    rng, z, y, client, means = rows(2)
    chance = each_of("concept", z, y, client).mean()
    skewed = np.where(rng.random(len(y)) < 0.8, client % 3, y)
    of_labels = means[skewed] + rng.standard_normal(z.shape)
    shifted = z * (1 + client[:, None] / 5) + client[:, None]
    named = np.where(client % 2, (y + 1) % 3, y)
    assert each_of("concept", z, named, client).mean() > 0.3
    assert each_of("concept", of_labels, skewed, client).mean() < chance + 0.02
    assert each_of("concept", shifted, y, client).mean() < chance + 0.04


def test_names_exchanged_by_half_of_the_clients_give_one_half():
    """Two separate classes, exchanged by half of the clients: everybody says each of the two as often, a client one of them."""
    _, z, y, client, _ = rows(3, classes=2, spread=20.0)
    found = each_of("concept", z, np.where(client % 2, 1 - y, y), client)
    assert found == pytest.approx(np.full(6, 0.5), abs=0.05)


@QUICK
@given(st.integers(0, 10_000))
def test_fitted_tables_keep_margins_and_odds_ratios(seed):
    rng = np.random.default_rng(seed)
    seeds, other = rng.uniform(0.5, 2, (4, 3)), rng.uniform(0.5, 2, (2, 4, 3))
    made = fitted(seeds, other.sum(2), other.sum(1))
    assert made.sum(2) == pytest.approx(other.sum(2))
    assert made.sum(1) == pytest.approx(other.sum(1), rel=1e-3)
    odds = [t[0, 0] * t[1, 1] / (t[0, 1] * t[1, 0]) for t in (seeds, *made)]
    assert odds == pytest.approx([odds[0]] * 3)


def test_a_clients_gain_and_offset_are_taken_out():
    rng, z, y, client, _ = rows(4, n=6000)
    gain, offset = 1 + 0.3 * rng.random((6, 5)), rng.standard_normal((6, 5))
    moved = z * gain[client] + offset[client]
    sums = ([sums_by(groups, number, v) for v in (moved, moved**2)] for groups, number in ((y, 3), (client, 6)))
    centre, scale, shift = (part[client] for part in alignment(table(client, y, (6, 3)), *sums))
    back = (moved - centre) * scale + centre + shift
    spread = back.std(0)
    means = np.stack([(back[client == k] / spread).mean(0) for k in range(6)])
    of_moved = [(moved[client == k] / spread).mean(0) for k in range(6)]
    assert np.ptp(means, axis=0).max() < 0.1 < np.ptp(of_moved, axis=0).max()


# gradients


def test_the_identity_of_gradient_dissimilarity():
    rng = np.random.default_rng(0)
    g, p = rng.standard_normal((7, 20)), rng.dirichlet(np.ones(7))
    found, mean = gradient_dissimilarity(g, p), p @ g
    assert p @ (g**2).sum(1) == pytest.approx(mean @ mean + found["zeta^2"])
    assert found["B^2"] == pytest.approx(p @ (g**2).sum(1) / (mean @ mean))
    alike = gradient_dissimilarity(np.ones((3, 4)), np.full(3, 1 / 3))
    assert alike == {"zeta^2": 0, "B^2": 1, "G^2": 0}


def test_softmax_gradients_equal_torchs():
    import torch

    rng = np.random.default_rng(0)
    z, y, client = rng.standard_normal((30, 4)), rng.integers(0, 3, 30), rng.integers(0, 2, 30)
    at = rng.standard_normal((3, 5))
    found = softmax_gradients(z, y, client, 2, at)
    for k in range(2):
        w = torch.tensor(at, requires_grad=True)
        own = torch.tensor(np.column_stack([z, np.ones(30)])[client == k])
        torch.nn.functional.cross_entropy(own @ w.T, torch.tensor(y[client == k])).backward()
        assert found[k] == pytest.approx(w.grad.numpy().ravel())


# optima


def quadratic(h, b):
    return lambda w: (float(h / 2 * ((w - b) ** 2).sum()), h * (w - b))


@QUICK
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_the_optimum_gap_of_quadratics_in_closed_form(seed, clients):
    rng = np.random.default_rng(seed)
    h, b, p = rng.uniform(0.5, 4, clients), rng.normal(0, 3, (clients, 2)), rng.dirichlet(np.ones(clients))
    best = (p * h) @ b / (p @ h)
    expected = float((p * h / 2) @ ((best - b) ** 2).sum(1))
    found = optimum_gap([quadratic(*one) for one in zip(h, b, strict=True)], p, np.zeros(2))
    assert found == pytest.approx(expected, abs=1e-6, rel=1e-5)


def test_the_softmax_objective_has_the_gradient_and_the_minimum_that_scipy_finds():
    rng = np.random.default_rng(0)
    z, y, w = rng.standard_normal((40, 3)), rng.integers(0, 3, 40), rng.standard_normal(12)
    objective = softmax_objective(z, y, 3, 0.1)
    logits = np.column_stack([z, np.ones(40)]) @ w.reshape(3, 4).T
    cross = np.mean([np.log(np.exp(row).sum()) - row[c] for row, c in zip(logits, y, strict=True)])
    assert objective(w)[0] == pytest.approx(cross + 0.05 * (w @ w))
    assert optimize.check_grad(lambda v: objective(v)[0], lambda v: objective(v)[1], w) < 1e-6
    # from values alone, by another method
    other = optimize.minimize(lambda v: objective(v)[0], np.zeros(12), method="BFGS", options={"gtol": 1e-6})
    assert least(objective, w)[0] == pytest.approx(other.fun, abs=1e-8)


def test_the_softmax_gap_of_equal_clients_is_0_and_of_single_labels_known():
    rng = np.random.default_rng(0)
    z, y, clients = rng.standard_normal((30, 3)), rng.integers(0, 3, 30), np.arange(2)
    twice = np.repeat(clients, 30)
    assert softmax_gap(np.tile(z, (2, 1)), np.tile(y, 2), twice, 3, clients) == pytest.approx(0, abs=1e-7)
    # no inputs: two clients of one label each want opposite biases b, log(1 + e^-2b) + 0.01 b^2, and together want none
    alone = optimize.minimize_scalar(lambda b: np.log1p(np.exp(-2 * b)) + 0.01 * b * b, (0, 1)).fun
    found = softmax_gap(np.zeros((20, 0)), np.repeat(clients, 10), np.repeat(clients, 10), 2, clients)
    assert found == pytest.approx(np.log(2) - alone, abs=1e-6)
    assert np.isnan(softmax_gap(z, y, np.zeros(30, dtype=int), 3, clients))


# rows as numbers, samples


def test_rows_of_any_shape_become_standardised_columns():
    rng = np.random.default_rng(0)
    for x, width in ((rng.random((50, 7)), 7), (rng.random((300, 3, 30)), 9), (rng.random((300, 2, 12, 12)), 288)):
        z = standardised(flat(x))
        assert z.shape == (len(x), width)
        assert np.abs(z.mean(0)).max() < 1e-6
        assert z.std(0) == pytest.approx(np.ones(width), abs=1e-5)
    assert standardised(np.full((9, 4), 1e9)).tolist() == np.zeros((9, 4)).tolist()
    small = 1e6 + np.arange(9.0)[:, None]
    assert standardised(small)[:, 0] == pytest.approx((np.arange(9) - 4) / np.std(np.arange(9)))


@QUICK
@given(
    hnp.arrays(np.int64, st.integers(1, 12), elements=st.integers(0, 40)).filter(lambda s: s.sum() > 0),
    st.integers(1, 99),
)
def test_a_fair_sample_uses_all_allowed_rows(sizes, most):
    each = level(sizes, most)
    kept = np.minimum(sizes, each).sum()
    assert kept <= most or each == 1
    assert kept == sizes.sum() or np.minimum(sizes, each + 1).sum() > most
    groups = np.repeat(np.arange(len(sizes)), sizes)
    rows = fair_sample(groups, np.random.default_rng(0).random(len(groups)), each)
    assert np.array_equal(np.bincount(groups[rows], minlength=len(sizes)), np.minimum(sizes, each))

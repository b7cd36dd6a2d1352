"""Class counts with noise: the distribution, its privacy, and faces that repeat the noise by chance."""

import math

import numpy as np
import pytest

from fedskew.core.errors import BadInput
from fedskew.measure.heterogeneity.noise import DELTA, faces_of_counts, frequent, noisy, threshold


def mass(k: np.ndarray, epsilon: float) -> np.ndarray:
    """The probability of noise k: (1 - a) / (1 + a) a^|k| with a = exp(-epsilon)."""
    a = math.exp(-epsilon)
    return (1 - a) / (1 + a) * a ** np.abs(k)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_noise_has_the_two_sided_geometric_distribution(epsilon):
    n, most = 200_000, 500
    drawn = noisy(np.full((n, 1), most), epsilon, np.random.default_rng(0))[:, 0] - most
    assert drawn.mean() == pytest.approx(0, abs=6 * drawn.std() / math.sqrt(n))
    for k in range(-6, 7):
        p = float(mass(np.array(k), epsilon))
        assert (drawn == k).mean() == pytest.approx(p, abs=5 * math.sqrt(p / n))


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0])
def test_one_row_changes_no_probability_by_more_than_epsilon_and_delta(epsilon):
    """All values that a count of n and of n + 1 can give, with their exact probabilities."""
    first = threshold(epsilon)
    values = np.arange(first, first + int(80 / epsilon))

    def given(count: int) -> np.ndarray:
        """The probabilities of 0 and of each value from the threshold."""
        kept = mass(values - count, epsilon) if count else np.zeros(len(values))
        return np.array([1 - kept.sum(), *kept])

    for count in (0, 1, 2, first - 1, first, first + 5):
        one, other = given(count), given(count + 1)
        for p, q in ((one, other), (other, one)):
            # the most that any set of values can exceed exp(epsilon) times its probability
            excess = np.maximum(p - math.exp(epsilon) * q, 0).sum()
            assert excess <= DELTA * (1 if count == 0 else 1e-6)
    assert mass(np.arange(first - 2, first + int(80 / epsilon)), epsilon).sum() > DELTA, "the threshold is the lowest"


def test_a_class_without_rows_never_appears():
    assert not frequent(np.zeros((10_000, 3), dtype=int), 0.1, np.random.default_rng(0)).any()


@pytest.mark.parametrize(("rows", "classes"), [(1500, 4), (600, 10)])
def test_the_faces_repeat_the_noise_in_their_chance(rows, classes):
    """Sites of one population are called different as often as the level allows, though the noise is large."""
    called = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        held = rng.multinomial(rng.multinomial(rows, np.full(5, 0.2)), np.full(classes, 1 / classes))
        counts = noisy(held, 0.5, rng)
        found = faces_of_counts(counts, lambda tables, rng: noisy(tables, 0.5, rng), seed)
        called += bool(found.dominant)
    assert called <= 7  # at most 5 % are due; 60 seeds exceed 7 with probability 1 %


def test_without_noise_the_faces_equal_the_plain_ones():
    counts = np.array([[40, 5, 5], [5, 80, 5], [20, 20, 20]])
    found = faces_of_counts(counts, lambda tables, rng: tables, 0)
    assert [face.name for face in found.faces] == ["label", "quantity"]
    pooled, sizes = counts.sum(0) / 200 / 1.0, counts.sum(1)
    each = np.abs(counts / sizes[:, None] - pooled).sum(1) / 2
    assert found.face("label").each == pytest.approx(each, abs=1e-15)
    assert found.face("label").value == pytest.approx(float(sizes @ each / 200), abs=1e-15)
    assert found.face("quantity").value == pytest.approx(float(np.abs(sizes / 200 - 1 / 3).sum() / 2), abs=1e-15)
    assert found.dominant == "label"


def test_sites_without_rows_are_refused():
    with pytest.raises(BadInput, match="clients without rows"):
        faces_of_counts(np.array([[0, 0], [3, 4]]), lambda tables, rng: tables, 0)

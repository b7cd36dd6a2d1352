"""Statistics against SciPy, closed forms, and simulated coverage."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from fedskew.core.errors import BadInput
from fedskew.measure.statistics import (
    cliffs_delta,
    decided,
    equal_seeds_to_decide,
    equivalence_p,
    flipped_p,
    hedges_g,
    holm,
    mean_interval,
    paired_p,
    rank_methods,
    t_quantile,
    t_tail,
)

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=20).filter(lambda v: np.std(v) > 1e-6))
def test_the_paired_test_is_scipys(values: list[float]) -> None:
    assert paired_p(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-6, abs=1e-12)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=9).filter(any))
def test_the_test_of_signs_is_scipys(values: list[int]) -> None:
    exact = stats.permutation_test((np.array(values),), np.sum, permutation_type="samples", n_resamples=10_000)
    assert flipped_p([value / 10 for value in values]) == pytest.approx(min(exact.pvalue, 1))


def test_agreement_of_all_seeds_has_the_smallest_p_of_signs() -> None:
    assert flipped_p([0.001] * 10 + [5.0]) == 2.0**-10
    assert paired_p([0.001] * 10 + [5.0]) > 0.3


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=20).filter(lambda v: np.std(v) > 1e-6), st.floats(0.01, 1))
def test_equivalence_is_two_one_sided_tests_of_scipy(values: list[float], margin: float) -> None:
    above = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(values, margin, alternative="less").pvalue
    assert equivalence_p(values, margin) == pytest.approx(max(above, below), rel=1e-6, abs=1e-12)


def test_equal_differences_are_equivalent_from_five_seeds_on() -> None:
    assert equivalence_p([0.0] * 4, 0.01, rows=1000) == 1 / 16
    assert equivalence_p([0.005] * 5, 0.01, rows=2000) == 1 / 32
    assert equivalence_p([0.02] * 9, 0.01) == 1
    assert math.isnan(equivalence_p([0.0], 0.01))


def test_students_t_equals_scipys() -> None:
    for freedom in range(1, 40):
        assert float(t_quantile(freedom)) == stats.t.ppf(0.975, freedom)
        assert t_tail(freedom / 7, freedom) == stats.t.sf(freedom / 7, freedom)
    assert np.array_equal(t_quantile([1, 2, 9]), stats.t.ppf(0.975, [1, 2, 9]))


def test_differences_that_do_not_vary() -> None:
    assert paired_p([0.0, 0.0, 0.0]) == 1
    assert paired_p([0.1, 0.1]) == 0.5
    assert math.isnan(paired_p([0.1]))
    for n in (2, 3, 7):  # the computed deviation of three numbers 0.1 is not 0
        assert math.isnan(hedges_g([0.1] * n))
        assert paired_p([0.1] * n) == 2.0 ** (1 - n)
    # two more of 360 rows are right under either seed, which subtraction rounds differently
    same = [282 / 360 - 280 / 360, 287 / 360 - 285 / 360]
    assert same[0] != same[1]
    assert paired_p(same) == 0.5
    assert math.isnan(hedges_g(same))


@given(P_VALUES)
def test_holms_correction_is_its_definition(p: list[float]) -> None:
    """The adjusted p of the i-th smallest is the largest of (m - j + 1) p_j for j up to i, at most 1 (Holm 1979)."""
    ranked = sorted(p)
    steps = [min(1.0, (len(p) - j) * value) for j, value in enumerate(ranked)]
    adjusted = {value: max(steps[: i + 1]) for i, value in enumerate(ranked)}
    assert holm(p) == pytest.approx([adjusted[value] for value in p])


def test_holm_by_hand_ignores_missing_values() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    with_gap = holm([0.01, math.nan, 0.04, 0.03])
    assert math.isnan(with_gap[1])
    assert [with_gap[i] for i in (0, 2, 3)] == pytest.approx([0.03, 0.06, 0.06])


def test_effect_sizes_by_hand() -> None:
    # mean 2, standard deviation 1, two degrees of freedom: the exact correction is Gamma(1) / Gamma(1/2) = 1 / sqrt(pi)
    assert hedges_g([1.0, 2.0, 3.0]) == pytest.approx(2 / math.sqrt(math.pi))
    # of six pairs four are won, one is lost, one is even
    assert cliffs_delta([1, 2, 3], [0, 2]) == 0.5
    assert cliffs_delta([5, 6], [1, 2]) == 1
    assert cliffs_delta([1, 2], [1, 2]) == 0


def test_cliffs_delta_is_the_u_statistic() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 9, 12), rng.integers(0, 9, 7)
    u = stats.mannwhitneyu(a, b).statistic
    assert cliffs_delta(a, b) == pytest.approx(2 * u / (12 * 7) - 1)


def test_ranks_of_demsars_example() -> None:
    """Demsar 2006, table 6 and section 3.2.2: four methods on fourteen data sets, mean ranks and critical difference."""
    table = [
        *([0.763, 0.768, 0.771, 0.798], [0.599, 0.591, 0.590, 0.569], [0.954, 0.971, 0.968, 0.967]),
        *([0.628, 0.661, 0.654, 0.657], [0.882, 0.888, 0.886, 0.898], [0.936, 0.931, 0.916, 0.931]),
        *([0.661, 0.668, 0.609, 0.685], [0.583, 0.583, 0.563, 0.625], [0.775, 0.838, 0.866, 0.875]),
        *([1.000, 1.000, 1.000, 1.000], [0.940, 0.962, 0.965, 0.962], [0.619, 0.666, 0.614, 0.669]),
        *([0.972, 0.981, 0.9751, 0.975], [0.957, 0.978, 0.946, 0.970]),
    ]
    ranks = rank_methods(np.array(table))
    assert ranks.mean == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=0.001)
    assert ranks.critical_difference == pytest.approx(1.25, abs=0.005)
    # 1.25 would be needed between the best and the worst, and there is 1.18
    assert ranks.cliques() == [(3, 1, 2, 0)]


def test_friedmans_test_is_scipys_and_few_methods_have_none() -> None:
    scores = np.random.default_rng(6).random((7, 4))
    assert rank_methods(scores).p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)
    two = rank_methods(scores[:, :2])
    assert math.isnan(two.p)
    assert two.cliques() == []
    with pytest.raises(BadInput, match="every method needs a score on every data set"):
        rank_methods(np.array([[0.1, math.nan, 0.2]]))


def test_different_methods_share_no_clique() -> None:
    scores = np.tile([0.9, 0.8, 0.7, 0.6], (30, 1))
    ranks = rank_methods(scores)
    assert ranks.mean.tolist() == [1, 2, 3, 4]
    assert ranks.critical_difference < 1
    assert ranks.cliques() == []


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_intervals_equal_scipys(n):
    values = np.random.default_rng(n).standard_normal(n) * 3 + 1
    mean, half = mean_interval(values.tolist())
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((expected.low, expected.high))


def test_one_value_has_a_mean_and_no_interval():
    assert mean_interval([3.5]) == pytest.approx((3.5, math.nan), nan_ok=True)
    assert np.isnan(mean_interval([])).all()


def verdict(differences):
    return decided(paired_p(differences), float(np.mean(differences)))


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0, 1.1, 0.9], "higher"),
        ([0.1, 0.2, 0.3], "undecided"),  # Student's interval is 0.2 +- 0.248
        ([0.2, 0.2, 0.3], "higher"),  # 0.233 +- 0.143
        ([-1.0, -1.1, -0.9], "lower"),
        ([1.0, -1.1, 0.2], "undecided"),
        ([5.0, 0.1], "undecided"),
        ([7.0], "undecided"),
        ([0.0, 0.0, 0.0], "undecided"),
        ([0.1, 0.1, 0.1], "undecided"),
        ([0.1] * 6, "higher"),
        ([1.0, float("nan"), 1.0], "undecided"),
        ([1.0, float("inf"), 1.0], "undecided"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_verdicts_by_hand(differences, expected):
    assert verdict(differences) == expected


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_a_verdict_is_a_t_test_at_five_per_cent(differences):
    if np.std(differences) < 1e-6:
        return
    found = stats.ttest_1samp(differences, 0)
    if abs(found.pvalue - 0.05) < 1e-9:
        return
    expected = "undecided" if found.pvalue > 0.05 else "higher" if np.mean(differences) > 0 else "lower"
    assert verdict(differences) == expected


def test_six_equal_differences_decide() -> None:
    for level in (0.05, 0.05 / 3, 0.5, 0.49):
        seeds = equal_seeds_to_decide(level)
        assert paired_p([0.1] * seeds) < level <= paired_p([0.1] * (seeds - 1))
    assert equal_seeds_to_decide(0.05) == 6


def test_few_rows_show_no_equivalence() -> None:
    equal = np.zeros((5, 20)).mean(1).tolist()
    # with a true difference of a point, no row of 20 differs with probability 0.99^20
    assert equivalence_p(equal, 0.01, rows=20) == pytest.approx(0.99**20)
    assert equivalence_p(equal, 0.01, rows=298) > 0.05 > equivalence_p(equal, 0.01, rows=299)
    # one row of 200 differs on each seed
    assert equivalence_p([1 / 200] * 8, 0.03, rows=200) == pytest.approx(stats.binom.cdf(1, 200, 0.03))
    # not only with equal differences
    assert equivalence_p([0.0, 0.001, 0.0, 0.0, 0.0], 0.01, rows=20) > 0.8
    assert equivalence_p([1.0, 1.0], 0.5, rows=4) == 1


def test_equal_numbers_that_are_no_shares_show_no_equivalence() -> None:
    assert equivalence_p([0.0] * 9, 0.01) == 1
    assert equivalence_p([0.0, 0.001, 0.0, 0.0, 0.0], 0.01) < 0.05

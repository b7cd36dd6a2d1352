from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from fedskew.measure.statistics import (
    Crossed,
    equivalence_p,
    mean_interval,
    over_clients,
    over_common_rows,
    over_seeds_and_rows,
    over_splits,
)
from fedskew.tasks.classification import Classification
from fedskew.tasks.survival import Survival
from tests.measure.verdicts import LINES, SETTINGS, Setting, line

SEED_NOISE = 0.01
"""Standard deviation of a method's true accuracy over seeds."""


def test_hand_worked_example() -> None:
    # seeds' means 2 and 4, rows' means 1, 3, 5; no residual: a = 2, b = 4, c = 0
    values = np.array([[0.0, 2.0, 4.0], [2.0, 4.0, 6.0]])
    found = over_seeds_and_rows(values)
    squared = 2 / 2 + 4 / 3
    freedom = squared**2 / ((2 / 2) ** 2 / 1 + (4 / 3) ** 2 / 2) / 2  # half of Satterthwaite's
    assert found.mean == 3
    assert found.errors()[0] == pytest.approx((squared**0.5, freedom))
    # over two seeds alone: 3 +- 12.7 x 1, which is wider
    assert found.half() == pytest.approx(stats.t.ppf(0.975, 1))
    assert found.p() == pytest.approx(2 * stats.t.sf(3 / squared**0.5, freedom))


def test_degrees_of_freedom_of_a_small_and_a_large_share_of_the_seeds() -> None:
    for of_seeds, of_rows, freedom in (
        (0.1, 0.9, 0.5 / (0.01 / 4 + 0.81 / 2999)),
        (0.8, 0.2, 1 / (0.8 / 4 + 0.2 / 2999)),
    ):
        found = Crossed(1.0, seeds=5, rows=3000, by_seed=5 * of_seeds, by_row=3000 * of_rows, residual=0.0)
        assert found.errors()[0] == pytest.approx((1.0, freedom))


@pytest.mark.parametrize("axis", [0, 1], ids=["equal seeds", "equal rows"])
def test_without_differences_along_an_axis_it_is_students_interval(axis: int) -> None:
    values = [0.2, 0.5, 0.9, 1.0, 0.0]
    found = over_seeds_and_rows(np.stack([np.array(values)] * 7, axis))
    assert (found.mean, found.half()) == pytest.approx(mean_interval(values))


def test_equal_values_have_no_interval() -> None:
    found = over_seeds_and_rows(np.full((3, 4), 0.1))
    assert found.half() == 0
    assert np.isnan(found.p())


def test_equivalence_without_differences_between_rows_is_over_the_seeds() -> None:
    by_seed = np.array([-0.2, 0.1, 0.3, 0.2])
    found = over_seeds_and_rows(np.repeat(by_seed[:, None], 7, 1))
    assert found.p_within(0.5) == pytest.approx(equivalence_p(by_seed.tolist(), 0.5))
    assert over_seeds_and_rows(by_seed[:, None] + np.array([-1.0, 1.0])).p_within(0.5) > found.p_within(0.5)


def test_redrawn_test_rows_by_hand() -> None:
    # variance 1 over three splits with half as many test as training rows: 1 / 3 + 1 / 2
    found = over_splits([1.0, 2.0, 3.0], 0.5)
    assert found.errors() == [pytest.approx(((5 / 6) ** 0.5, 2.0))]
    assert found.half() == pytest.approx(stats.t.ppf(0.975, 2) * (5 / 6) ** 0.5)
    assert found.p() == pytest.approx(2 * stats.t.sf(2 / (5 / 6) ** 0.5, 2))
    # more splits of the same rows never make the interval narrower than the rows allow
    assert found.with_seeds(10_000).errors()[0][0] > 0.5**0.5
    assert over_splits([0.25] * 4, 0.5).half() == 0


def test_common_test_rows_by_hand() -> None:
    none = np.nan
    # means 2, 4 and 6; the first two splits have row 1 in common, below and above their means by 1
    found = over_common_rows(np.array([[1.0, 3.0, none, none], [5.0, none, 3.0, none], [none, none, none, 6.0]]), 0.6)
    shared = 2 * (-0.5 * 0.5) / 6  # one of three pairs, each in two orders
    assert (found.mean, found.by_split, found.shared) == pytest.approx((4, 4, shared))
    # a negative covariance does not make the interval narrower; 0.6 test rows for each training row
    own = 4 * (1 / 3 + 0.1)
    freedom = own**2 / (own**2 / 2 + shared**2 / 2)
    assert found.errors() == [pytest.approx((own**0.5, freedom)), pytest.approx(((4 / 3) ** 0.5, 2))]
    assert found.half() == pytest.approx(own**0.5 * stats.t.ppf(0.975, freedom))
    alike = over_common_rows(np.array([[1.0, 3.0, none], [1.0, none, 3.0]]), 0.0)
    assert alike.shared == 0.25
    assert alike.errors()[0][0] == 0.5
    # more splits do not remove what the test rows add
    assert alike.with_seeds(100).errors()[0][0] == 0.5
    assert over_common_rows(np.full((3, 5), 0.25), 0.5).half() == 0


def test_common_test_rows_give_students_interval_where_no_rows_are_common() -> None:
    values = np.where(np.arange(12) % 4 == np.arange(4)[:, None], np.random.default_rng(0).normal(size=12), np.nan)
    found = over_common_rows(values, 0.0)
    assert (found.mean, found.half()) == pytest.approx(mean_interval(np.nanmean(values, axis=1).tolist()))


def test_folds_of_clients_by_hand() -> None:
    none = np.nan
    # two repetitions of two folds of four clients, whose own means are 1, 2, 3 and 6
    values = np.array([[0.0, 2.0, none, none], [none, none, 4, 5], [2.0, none, 2, none], [none, 2.0, none, 7]])
    found, variance = over_clients(values, 2), (4 + 1 + 0 + 9) / 3
    assert found.mean == 3
    assert found.errors() == [pytest.approx(((variance / 4 * (1 + 2 / 2)) ** 0.5, 3))]
    assert found.seeds_to_decide() == 0  # no new clients


def test_seeds_that_decide() -> None:
    # between the seeds only: the interval of S seeds is t(S - 1) / sqrt(S)
    by_seed = Crossed(mean=0.5, seeds=3, rows=10, by_seed=1.0, by_row=0.0, residual=0.0)
    needed = by_seed.seeds_to_decide()
    assert by_seed.with_seeds(needed).half() < 0.5 <= by_seed.with_seeds(needed - 1).half()
    assert needed == 18
    # between the rows only: seeds do not help
    assert Crossed(mean=0.5, seeds=3, rows=10, by_seed=0.0, by_row=1.0, residual=0.0).seeds_to_decide() == 0


def differences(rng: np.random.Generator, seeds: int, true: float, effect: Callable[[float], np.ndarray]) -> np.ndarray:
    """Right minus right (-1, 0, 1) of two methods with accuracies 80 % and ``true`` more, (seeds, rows).

    Rows are easy or hard for both methods, and some for one of them on every seed, by ``effect(deviation)`` (rows,). Each seed
    moves each method's accuracy, and half of what is its own on a row.
    """
    hard, right = effect(0.8), []
    for accuracy in (0.8, 0.8 + true):
        threshold = stats.norm.ppf(accuracy + SEED_NOISE * rng.normal(size=(seeds, 1)))
        own = effect(0.42) + 0.43 * rng.normal(size=(seeds, len(hard)))
        right.append((hard + own < threshold).astype(float))
    return right[1] - right[0]


def decisions(rows: int, true: float, repeats: int, seeds: int = 5) -> tuple[float, float, float, float]:
    """Of ``repeats`` comparisons the share of intervals that cover the true difference, and of those that leave out 0.

    First over seeds and test rows, then over seeds alone.
    """
    rng, counts = np.random.default_rng(rows), np.zeros(4)
    for _ in range(repeats):
        values = differences(rng, seeds, true, lambda deviation: deviation * rng.normal(size=rows))
        mean, alone = mean_interval(values.mean(1).tolist())
        for at, half in ((0, over_seeds_and_rows(values).half()), (2, alone)):
            counts[at : at + 2] += abs(mean - true) <= half, abs(mean) > half
    return tuple((counts / repeats).tolist())


def test_intervals_cover_the_planted_difference() -> None:
    covered, false, before, _ = decisions(rows=100, true=0.0, repeats=400)
    assert covered > 0.93
    assert false < 0.07
    assert before < 0.9  # over seeds alone: too narrow


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("residual", [0.0, 0.1])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_no_share_of_the_seeds_makes_false_verdicts_frequent(seeds: int, residual: float, share: float) -> None:
    # with 3,000 rows only the seeds' mean square varies; the level is its exact mean over 200 quantiles
    rows, of_seeds, of_rows = 3000, share * (1 - residual), (1 - share) * (1 - residual)
    false = []
    for ratio in stats.chi2.ppf((np.arange(200) + 0.5) / 200, seeds - 1) / (seeds - 1):
        squares = (seeds * ratio * (of_seeds + residual), rows * (of_rows + residual), seeds * rows * residual)
        false.append(2 * stats.norm.sf(Crossed(0.0, seeds, rows, *squares).half()))
    assert np.mean(false) <= 0.0505


@pytest.mark.slow
@pytest.mark.parametrize("rows", [100, 1000, 10_000])
@pytest.mark.parametrize("true", [0.0, 0.01, 0.03])
def test_coverage_by_simulation(rows: int, true: float) -> None:
    covered, decided, _, _ = decisions(rows, true, repeats=1000)
    assert 0.93 <= covered <= 0.975
    assert true or decided <= 0.065  # 5 % and two standard errors of 1,000 comparisons


STRENGTHS = (1.0, 1.2)
"""How closely the outputs of two methods follow the truth, in standard deviations of their errors."""


def pooled_values(rng: np.random.Generator, metric: str, seeds: int, rows: int) -> np.ndarray:
    """The rows' values (2, seeds, rows) of AUC or the C-index, of two methods with these `STRENGTHS`."""
    truth = (rng.random(rows) < 0.3).astype(float) if metric == "auc" else rng.normal(size=rows)
    came, censored = rng.exponential(np.exp(-truth)), rng.exponential(2.0, rows)
    task, y = Survival(), torch.tensor(np.stack([np.minimum(came, censored), came < censored], 1))
    if metric == "auc":
        task, y = Classification(), torch.tensor(truth).long()
    hard, found = 0.8 * rng.normal(size=rows), np.empty((2, seeds, rows))
    for method, strength in enumerate(STRENGTHS):
        own = 0.42 * rng.normal(size=rows)
        for seed in range(seeds):
            error = hard + own + 0.43 * rng.normal(size=rows)
            score = torch.tensor((strength + 0.05 * rng.normal()) * truth + error)[:, None]
            outputs = torch.cat([-score, score], 1) if metric == "auc" else score
            whole = task.pooled(outputs, y)[metric]
            found[method, seed] = rows * whole - (rows - 1) * task.pooled_without(metric, outputs, y)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rows", [100, 1000])
@pytest.mark.parametrize("metric", ["auc", "c_index"])
def test_coverage_of_pooled_metrics_by_simulation(metric: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    truth = np.mean([np.subtract(*pooled_values(rng, metric, 1, 20_000)[::-1]).mean() for _ in range(100)])
    covered, alone = 0, 0
    for _ in range(1000):
        values = np.subtract(*pooled_values(rng, metric, 5, rows)[::-1])
        covered += abs(values.mean() - truth) <= over_seeds_and_rows(values).half()
        alone += abs(values.mean() - truth) <= mean_interval(values.mean(1).tolist())[1]
    print(f"{metric}, {rows} rows: {covered / 10:.1f} % covered, over seeds alone {alone / 10:.1f} %")
    assert 930 <= covered <= 975
    assert alone < 930


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "methods"), LINES)
def test_verdicts_are_rarely_false(setting: Setting, methods: str) -> None:
    found = line(setting, methods, 1000)
    assert found.false <= 0.07  # 5 %, and three standard errors of 1,000 comparisons
    assert found.equivalent <= 0.07


def test_few_rows_are_rarely_called_equivalent_or_different() -> None:
    small = next(setting for setting in SETTINGS if setting.kind == "redrawn")
    found = line(small, "learners", 150)
    assert found.false <= 0.11
    assert found.equivalent <= 0.11
    assert found.equivalent_before > 0.5


if __name__ == "__main__":
    print("rows  difference  covered  decided  covered, seeds alone  decided, seeds alone")
    for rows in (100, 1000, 10_000):
        for true in (0.0, 0.01, 0.03):
            print(rows, true, *(f"{100 * share:.1f} %" for share in decisions(rows, true, 1000)), sep="  ")

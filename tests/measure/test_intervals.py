import numpy as np
import pytest
import torch
from scipy import stats

from fedskew.measure.intervals import Crossed, mean_interval, over_seeds_and_rows, over_splits
from fedskew.measure.statistics import equivalence_p
from fedskew.tasks.classification import Classification
from fedskew.tasks.survival import Survival

SEED_NOISE = 0.01
"""Standard deviation of a method's true accuracy over seeds."""


def test_hand_worked_example() -> None:
    # seeds' means 2 and 4, rows' means 1, 3, 5; no residual: a = 2, b = 4, c = 0
    values = np.array([[0.0, 2.0, 4.0], [2.0, 4.0, 6.0]])
    found = over_seeds_and_rows(values)
    freedom = (2 / 2 + 4 / 3) ** 2 / ((2 / 2) ** 2 / 1 + (4 / 3) ** 2 / 2)
    assert found.mean == 3
    assert found.errors()[0] == pytest.approx(((2 / 2 + 4 / 3) ** 0.5, freedom))
    # over two seeds alone: 3 +- 12.7 x 1, which is wider
    assert found.half() == pytest.approx(stats.t.ppf(0.975, 1))
    assert found.p() == pytest.approx(2 * stats.t.sf(3, 1))


def test_without_differences_between_rows_it_is_students_interval() -> None:
    by_seed = np.array([0.2, 0.5, 0.9, 1.0])
    found = over_seeds_and_rows(np.repeat(by_seed[:, None], 7, 1))
    assert (found.mean, found.half()) == pytest.approx(mean_interval(by_seed.tolist()))


def test_without_differences_between_seeds_it_is_the_rows_interval() -> None:
    by_row = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    found = over_seeds_and_rows(np.repeat(by_row[None], 3, 0))
    assert (found.mean, found.half()) == pytest.approx(mean_interval(by_row.tolist()))


def test_equal_values_have_no_interval() -> None:
    found = over_seeds_and_rows(np.full((3, 4), 0.1))
    assert found.half() == 0
    assert np.isnan(found.p())


def test_fewer_test_rows_give_wider_intervals() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 1000)) + rng.normal(size=1000)
    assert over_seeds_and_rows(values[:, :100]).half() > 2.5 * over_seeds_and_rows(values).half()


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


def test_seeds_that_decide() -> None:
    # between the seeds only: the interval of S seeds is t(S - 1) / sqrt(S)
    by_seed = Crossed(mean=0.5, seeds=3, rows=10, by_seed=1.0, by_row=0.0, residual=0.0)
    needed = by_seed.seeds_to_decide()
    assert by_seed.with_seeds(needed).half() < 0.5 <= by_seed.with_seeds(needed - 1).half()
    assert needed == 18
    # between the rows only: seeds do not help
    assert Crossed(mean=0.5, seeds=3, rows=10, by_seed=0.0, by_row=1.0, residual=0.0).seeds_to_decide() == 0


def differences(rng: np.random.Generator, seeds: int, rows: int, true: float, training: bool = True) -> np.ndarray:
    """Right minus right (-1, 0, 1) of two methods with accuracies 80 % and ``true`` more, (seeds, rows).

    Rows are easy or hard for both methods, and some for one of them on every seed. With ``training`` each seed moves each method's
    accuracy, and half of what is its own on a row; without, all seeds train the same models.
    """
    hard = 0.8 * rng.normal(size=rows)
    right = []
    for accuracy in (0.8, 0.8 + true):
        threshold = stats.norm.ppf(accuracy + training * SEED_NOISE * rng.normal(size=(seeds, 1)))
        always = 0.42 if training else 0.6
        own = always * rng.normal(size=rows) + training * 0.43 * rng.normal(size=(seeds, rows))
        right.append((hard + own < threshold).astype(float))
    return right[1] - right[0]


SHARE = 0.2
"""The share of all rows that each seed draws as its test rows."""


def decisions(
    rows: int, true: float, repeats: int, seeds: int = 5, redrawn: bool = False, training: bool = True
) -> tuple[float, float, float, float]:
    """Of ``repeats`` comparisons the share of intervals that cover the true difference, and of those that leave out 0.

    First by the rule of the tables, over seeds and test rows or redrawn test rows, then over seeds alone.
    """
    rng, counts = np.random.default_rng(rows), np.zeros(4)
    for _ in range(repeats):
        values = differences(rng, seeds, round(rows / SHARE) if redrawn else rows, true, training)
        if redrawn:
            values = np.stack([rng.choice(own, rows, replace=False) for own in values])
            rule = over_splits(values.mean(1).tolist(), SHARE / (1 - SHARE))
        else:
            rule = over_seeds_and_rows(values)
        mean, alone = mean_interval(values.mean(1).tolist())
        for at, half in ((0, rule.half()), (2, alone)):
            counts[at : at + 2] += abs(mean - true) <= half, abs(mean) > half
    return tuple((counts / repeats).tolist())


def test_intervals_cover_the_planted_difference() -> None:
    covered, false, before, _ = decisions(rows=100, true=0.0, repeats=400)
    assert covered > 0.93
    assert false < 0.07
    assert before < 0.9  # over seeds alone: too narrow


@pytest.mark.slow
@pytest.mark.parametrize("rows", [100, 1000, 10_000])
def test_a_difference_of_the_margin_is_rarely_called_equivalent(rows: int) -> None:
    rng, margin = np.random.default_rng(rows), 0.03
    found = [over_seeds_and_rows(differences(rng, 5, rows, margin)).p_within(margin) < 0.05 for _ in range(1000)]
    same = [over_seeds_and_rows(differences(rng, 5, rows, 0.0)).p_within(margin) < 0.05 for _ in range(200)]
    print(f"{rows} rows: {np.mean(found):.1%} equivalent at the margin, {np.mean(same):.1%} of equal methods")
    assert np.mean(found) <= 0.065  # 5 % and two standard errors


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
@pytest.mark.parametrize("rows", [100, 1000, 10_000])
@pytest.mark.parametrize("true", [0.0, 0.01, 0.03])
def test_coverage_of_redrawn_test_rows_by_simulation(rows: int, true: float) -> None:
    covered, decided, _, _ = decisions(rows, true, repeats=1000, redrawn=True)
    assert covered >= 0.93
    assert true or decided <= 0.065


@pytest.mark.slow
@pytest.mark.parametrize("rows", [100, 1000])
@pytest.mark.parametrize("true", [0.0, 0.01, 0.03])
def test_redrawn_intervals_are_exact_where_methods_differ_by_test_rows_only(rows: int, true: float) -> None:
    covered, _, alone, _ = decisions(rows, true, repeats=1000, redrawn=True, training=False)
    assert 0.93 <= covered <= 0.97
    assert alone < 0.9


FEATURES, TRAINING_NOISE, CLIENT_SHIFT = 10, 0.05, 1.0
"""Of the learners below: numbers of features, the standard deviations of the seeds' noise, and of a client's class means."""


def of_learners(
    rng: np.random.Generator, rows: int, folds: int, gap: float, clients: int = 0, repetitions: int = 1
) -> tuple[np.ndarray, float]:
    """The differences (repetitions x folds,) of two learners on the folds of one data set, and the true one.

    Each learner sees features of its own. Their means differ by class, for the second learner ``1 + gap`` times as much. It learns
    the means from the other folds. Each of ``clients`` shifts the means of its rows; folds are then of clients, and the true
    difference is that on a new client.
    """
    y, owner = rng.choice([-1.0, 1.0], rows), np.arange(rows) % (clients or rows)
    means = np.array([1.0, 1.0 + gap])[:, None] * np.full((2, FEATURES), FEATURES**-0.5)
    shift = CLIENT_SHIFT * FEATURES**-0.5 * bool(clients)
    x = rng.normal(size=(2, rows, FEATURES))
    x += (means[:, None] + shift * rng.normal(size=(2, clients or rows, FEATURES))[:, owner]) * y[:, None]
    found, true = [], []
    for _ in range(repetitions):
        fold = (rng.permutation(clients or rows) % folds)[owner]
        for tested in (fold == k for k in range(folds)):
            weights = (x * y[:, None])[:, ~tested].mean(1) + TRAINING_NOISE * rng.normal(size=means.shape)
            right = (x[:, tested] @ weights[:, :, None])[..., 0] * y[tested] > 0
            exact = stats.norm.cdf((weights * means).sum(1) / np.linalg.norm(weights, axis=1) / (1 + shift**2) ** 0.5)
            found.append(np.diff(right.mean(1))[0])
            true.append(np.diff(exact)[0])
    return np.array(found), float(np.mean(true))


def decisions_over_folds(
    rows: int, folds: int, gap: float, repeats: int, clients: int = 0, repetitions: int = 1
) -> tuple[float, float, float, float, float]:
    """The true difference, then as `decisions`: by the rule of the tables, and by Student's interval over the folds alone."""
    rng, counts = np.random.default_rng(rows + folds), np.zeros(4)
    drawn = [of_learners(rng, rows, folds, gap, clients, repetitions) for _ in range(repeats)]
    true = float(np.mean([exact for _, exact in drawn])) if gap else 0.0
    for values, _ in drawn:
        rule = over_splits(values.tolist(), 1 / (folds - 1), folds - 1 if clients else np.inf)
        mean, alone = mean_interval(values.tolist())
        for at, half in ((0, rule.half()), (2, alone)):
            counts[at : at + 2] += abs(mean - true) <= half, abs(mean) > half
    return true, *(counts / repeats).tolist()


def test_the_interval_over_folds_rarely_decides_without_a_difference() -> None:
    _, covered, false, *_ = decisions_over_folds(100, 5, 0.0, repeats=300)
    assert covered >= 0.95
    assert false <= 0.05


FOLDS_OF_ROWS = [(rows, folds, gap, 0, 1) for rows in (100, 500, 2500) for folds in (5, 10) for gap in (0.0, 0.2)]
FOLDS_OF_ROWS += [(500, folds, gap, 0, 5) for folds in (5, 10) for gap in (0.0, 0.2)]
FOLDS_OF_CLIENTS = [
    (50 * clients, folds, gap, clients, repetitions)
    for clients, folds in ((4, 4), (5, 5), (20, 5), (20, 10))
    for repetitions in (1, 5)
    for gap in (0.0, 0.5)
]
"""Rows, folds, gap, clients and repetitions of the simulations."""


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "folds", "gap", "clients", "repetitions"), [*FOLDS_OF_ROWS, *FOLDS_OF_CLIENTS])
def test_coverage_of_folds_by_simulation(rows: int, folds: int, gap: float, clients: int, repetitions: int) -> None:
    _, covered, decided, *_ = decisions_over_folds(rows, folds, gap, 1000, clients, repetitions)
    assert covered >= 0.93
    assert gap or decided <= 0.065


if __name__ == "__main__":
    for redrawn, training in ((False, True), (True, True), (True, False)):
        print("redrawn test rows" if redrawn else "the same test rows", "" if training else "and the same models")
        print("rows  difference  covered  decided  covered, seeds alone  decided, seeds alone")
        for rows in (100, 1000, 10_000):
            for true in (0.0, 0.01, 0.03):
                found = decisions(rows, true, 1000, redrawn=redrawn, training=training)
                print(rows, true, *(f"{100 * share:.1f} %" for share in found), sep="  ")
    for name, simulated in (("folds of rows", FOLDS_OF_ROWS), ("folds of clients", FOLDS_OF_CLIENTS)):
        print(name)
        print(
            "rows  folds  clients  repetitions  difference  covered  decided  covered, folds alone  decided, folds alone"
        )
        for rows, folds, gap, clients, repetitions in simulated:
            true, *found = decisions_over_folds(rows, folds, gap, 1000, clients, repetitions)
            print(
                rows, folds, clients, repetitions, f"{true:.3f}", *(f"{100 * share:.1f} %" for share in found), sep="  "
            )

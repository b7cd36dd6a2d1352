"""Measures: drift against plain numpy and its identities, label distance against theory and simulation, intervals."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from torch import nn

from fedskew.core import vectors
from fedskew.core.task import Classification
from fedskew.core.vectors import ParameterSpace
from fedskew.loop import evaluate as evaluation
from fedskew.loop.evaluate import evaluate, evaluate_clients, per_row
from fedskew.measure.drift import drift
from fedskew.measure.heterogeneity import label_distance, label_distance_by_chance
from fedskew.measure.intervals import mean_interval
from fedskew.measure.statistics import paired_p
from fedskew.report.tables import decided
from tests.small import RAGGED, TASK, X0, partition_of

torch.set_num_threads(1)

QUICK = settings(
    max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
NAMES = {"divergence", "drift", "relative_drift", "update_norm", "distance", "alignment"}

# drift


def plain(models: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """The measures written as the documents write them, one client at a time."""
    clients, p = range(len(models)), sizes / sizes.sum()
    uniform = sum(models[k] for k in clients) / len(models)
    weighted = sum(p[k] * models[k] for k in clients)
    norm = [math.sqrt(sum(v * v for v in models[k])) for k in clients]
    distance = [float(np.linalg.norm(models[k] - weighted)) for k in clients]
    spread, length = sum(p[k] * distance[k] ** 2 for k in clients), sum(p[k] * norm[k] ** 2 for k in clients)
    return {
        "divergence": np.mean([np.linalg.norm(models[k] - uniform) for k in clients]),
        "drift": np.mean(distance),
        "relative_drift": spread / length if length else 0.0,
        "update_norm": np.array(norm),
        "distance": np.array(distance),
        "alignment": np.array([models[k] @ weighted / (norm[k] * np.linalg.norm(weighted) or 1) for k in clients]),
    }


def measured(models: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in drift(torch.tensor(models), torch.tensor(sizes)).items()}


def cohort(clients: int, parameters: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((clients, parameters)) + 3, rng.integers(1, 100, clients).astype(float)


@pytest.mark.parametrize(("clients", "parameters"), [(1, 1), (1, 50), (2, 3), (7, 40), (30, 200)])
@pytest.mark.parametrize("seed", range(3))
def test_drift_equals_plain_numpy(clients, parameters, seed):
    models, sizes = cohort(clients, parameters, seed)
    got, expected = measured(models, sizes), plain(models, sizes)
    assert set(got) == NAMES
    for name in NAMES:
        assert got[name].dtype == np.float64
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-12, atol=1e-13, err_msg=name)


def test_drift_on_numbers_by_hand():
    """Models (0, 0) and (6, 8) of 3 and 1 rows: the weighted mean is (1.5, 2), at distances 2.5 and 7.5."""
    got = measured(np.array([[0.0, 0.0], [6.0, 8.0]]), np.array([3.0, 1.0]))
    assert got["divergence"] == pytest.approx(5)
    assert got["drift"] == pytest.approx(5)
    assert got["distance"].tolist() == pytest.approx([2.5, 7.5])
    assert got["update_norm"].tolist() == pytest.approx([0, 10])
    assert got["alignment"].tolist() == pytest.approx([0, 1])
    assert got["relative_drift"] == pytest.approx((0.75 * 2.5**2 + 0.25 * 7.5**2) / (0.25 * 100))


@pytest.mark.parametrize("columns", [1, 7, 64])
def test_drift_over_several_chunks_of_columns(monkeypatch, columns):
    models, sizes = cohort(5, 200)
    monkeypatch.setattr(vectors, "CHUNK", columns * len(models))
    got, expected = measured(models, sizes), plain(models, sizes)
    for name in NAMES:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-12, err_msg=name)


def test_drift_of_a_model_larger_than_one_chunk():
    parameters = vectors.CHUNK // 3 * 2 + 17
    models = np.random.default_rng(1).standard_normal((3, parameters))
    sizes = np.array([1.0, 2.0, 5.0])
    got, p = measured(models, sizes), sizes / 8
    to_weighted = np.linalg.norm(models - p @ models, axis=1)
    np.testing.assert_allclose(got["update_norm"], np.linalg.norm(models, axis=1), rtol=1e-12)
    np.testing.assert_allclose(got["distance"], to_weighted, rtol=1e-12)
    np.testing.assert_allclose(got["divergence"], np.linalg.norm(models - models.mean(0), axis=1).mean(), rtol=1e-12)


def test_weighted_sum_over_several_chunks(monkeypatch):
    rows, weights = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)), torch.tensor([0.1, 0.2, 0.3, 0.4])
    exact = sum(float(w) * r.double() for w, r in zip(weights, rows, strict=True))
    for columns in (1, 33, 100, 1000):
        monkeypatch.setattr(vectors, "CHUNK", columns * 4)
        summed = vectors.weighted_sum(weights, rows)
        assert summed.dtype == torch.float32
        torch.testing.assert_close(summed, exact.float(), rtol=0, atol=0)
    cube = rows.view(4, 10, 10)
    torch.testing.assert_close(vectors.weighted_sum(weights, cube), exact.float().view(10, 10), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("at", [0, 13, 4999])
def test_one_number_that_is_not_finite_is_found(dtype, bad, at):
    values = torch.full((50, 100), torch.finfo(dtype).max, dtype=dtype)
    values.view(-1)[1::2] *= -1
    assert vectors.all_finite(values)
    assert vectors.all_finite(values[:0])
    values.view(-1)[at] = bad
    assert not vectors.all_finite(values)


@QUICK
@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=st.floats(-1e3, 1e3, width=32)),
    st.lists(st.integers(1, 1000), min_size=6, max_size=6),
)
def test_identities_of_drift(models, sizes):
    sizes = np.array(sizes[: len(models)], dtype=float)
    p, got = sizes / sizes.sum(), measured(models, sizes)
    scale = 1 + (models**2).sum()
    spread = (p * got["distance"] ** 2).sum()
    # sum p ||w - mean||^2 = sum p ||d||^2 - ||mean d||^2
    assert spread == pytest.approx((p * got["update_norm"] ** 2).sum() - ((p @ models) ** 2).sum(), abs=1e-12 * scale)
    # bounds
    assert -1e-15 <= got["relative_drift"] <= 1 + 1e-12
    assert got["divergence"] >= 0
    assert got["drift"] >= 0
    uniform = ((models - models.mean(0)) ** 2).sum(1)
    # of models far from zero that nearly agree, differences are known to the rounding of the models themselves
    assert got["divergence"] <= math.sqrt(uniform.mean()) * (1 + 1e-12) + 1e-14 * math.sqrt(scale)
    # sum over pairs ||w_j - w_k||^2 = m sum ||w_k - mean||^2
    pairs = sum(((models[j] - models[k]) ** 2).sum() for k in range(len(models)) for j in range(k))
    equal = measured(models, np.ones(len(models)))
    assert pairs == pytest.approx(len(models) * (equal["distance"] ** 2).sum(), abs=1e-11 * scale * len(models))


@QUICK
@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 1000), st.floats(-100, 100))
def test_only_differences_between_models_count(clients, parameters, seed, shift):
    models, sizes = cohort(clients, parameters, seed)
    one, two = measured(models, sizes), measured(models + shift * np.arange(1, parameters + 1), sizes)
    for name in ("divergence", "drift", "distance"):
        np.testing.assert_allclose(one[name], two[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_divergence_equals_drift_where_sizes_are_equal_and_not_otherwise(seed):
    models, sizes = cohort(6, 10, seed)
    equal = measured(models, np.full(6, 17.0))
    assert equal["divergence"] == pytest.approx(equal["drift"], rel=1e-13)
    ragged = measured(models, sizes)
    assert abs(ragged["divergence"] - ragged["drift"]) > 1e-6


def test_alignment_by_hand():
    """Updates along x, against it, across it and none at all, their mean along x; two that cancel have no mean to follow."""
    got = measured(np.array([[4.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0], [0.0, 0.0]]), np.ones(5))
    assert got["alignment"].tolist() == pytest.approx([1, -1, 0, 0, 0], abs=1e-15)
    assert measured(np.array([[3.0], [-3.0]]), np.ones(2))["alignment"].tolist() == [0, 0]
    almost = measured(np.array([[3.0, 1e-6], [-3.0, 1e-6]]), np.ones(2))["alignment"]
    np.testing.assert_allclose(almost, 1e-6 / np.hypot(3, 1e-6), atol=1e-9)


def test_the_alignment_of_an_update_beside_a_far_longer_one():
    """Of float32 updates: the mean's length is that of the mean in float64, not of the rounded one."""
    across = np.random.default_rng(0).standard_normal(4000)
    long, short = 1e4 * across / np.linalg.norm(across), np.random.default_rng(1).standard_normal(4000)
    short *= 2.2e-4 / np.linalg.norm(short)
    updates = torch.tensor(np.stack([long, short + 1e-8 * long]), dtype=torch.float32)
    exact = updates.double().numpy()
    mean = exact.mean(0)
    cosines = exact @ mean / np.linalg.norm(exact, axis=1) / np.linalg.norm(mean)
    got = drift(updates, torch.ones(2))["alignment"].numpy()
    np.testing.assert_allclose(got, cosines, atol=1e-6)


def test_one_client_has_no_drift():
    got = measured(np.array([[3.0, 4.0]]), np.array([11.0]))
    assert got["divergence"] == got["drift"] == got["relative_drift"] == got["distance"][0] == 0
    assert got["update_norm"][0] == 5


def test_identical_updates_have_no_drift_and_opposite_ones_have_all():
    same = measured(np.tile([1.0, -2.0, 0.5], (4, 1)), np.array([1.0, 2.0, 3.0, 4.0]))
    assert max(same["divergence"], same["drift"], same["relative_drift"]) < 1e-15
    opposite = measured(np.array([[1.0, 2.0], [-1.0, -2.0]]), np.ones(2))
    assert opposite["relative_drift"] == pytest.approx(1)


def test_no_update_at_all_is_not_a_division_by_zero():
    got = measured(np.zeros((3, 4)), np.ones(3))
    assert all((value == 0).all() for value in got.values())


def test_relative_drift_has_no_unit():
    models, sizes = cohort(4, 6)
    for scale in (1e-12, 1e-3, 1e6):
        got = measured(models * scale, sizes)
        assert got["relative_drift"] == pytest.approx(measured(models, sizes)["relative_drift"], rel=1e-10)
        assert got["drift"] == pytest.approx(scale * measured(models, sizes)["drift"], rel=1e-10)


def test_float32_updates_are_measured_in_float64():
    """A spread of 1e-3 around 1e4, where float32 sums would lose it."""
    models = torch.full((2, 5000), 1e4)
    models[1] += 2**-9
    got = drift(models, torch.ones(2))
    assert got["divergence"].dtype == torch.float64
    assert float(got["divergence"]) == pytest.approx(2**-10 * math.sqrt(5000), rel=1e-12)


def test_linear_losses_part_as_the_gradients_do():
    """T-L: updates -lr steps g_k give divergence lr steps mean ||g_k - mean g||."""
    g = np.random.default_rng(4).standard_normal((5, 8))
    expected = 0.1 * 7 * np.linalg.norm(g - g.mean(0), axis=1).mean()
    assert measured(-0.1 * 7 * g, np.ones(5))["divergence"] == pytest.approx(expected)


# label distance

COUNTS = hnp.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(0, 50))


@QUICK
@given(COUNTS)
def test_label_distance_is_bounded_and_equals_its_definition(counts):
    if not counts.sum():
        return
    n = counts.sum()
    expected = 0.0
    for row in counts:
        if row.sum():
            tv = 0.5 * sum(abs(row[c] / row.sum() - counts[:, c].sum() / n) for c in range(counts.shape[1]))
            expected += row.sum() / n * tv
    got = label_distance(counts)
    assert got == pytest.approx(expected, abs=1e-12)
    assert 0 <= got <= 1 - 1 / min(counts.shape) + 1e-12


@QUICK
@given(COUNTS)
def test_label_distance_is_zero_exactly_when_clients_are_identical(counts):
    held = counts[counts.sum(1) > 0]
    if not len(held):
        return
    # identical proportions: every pair of rows is proportional, in whole numbers
    identical = all((np.outer(a, b) == np.outer(b, a)).all() for a in held for b in held)
    assert (label_distance(counts) < 1e-12) == identical


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_one_class_a_client(classes):
    assert label_distance(np.eye(classes, dtype=np.int64) * 40) == pytest.approx(1 - 1 / classes)


def test_label_distance_weighs_clients_by_their_rows():
    """(30, 0) and (0, 10): p = (3/4, 1/4), distances 1/4 and 3/4, weighted 3/4 x 1/4 + 1/4 x 3/4."""
    assert label_distance(np.array([[30, 0], [0, 10]])) == pytest.approx(0.375)


def test_a_client_without_rows_counts_for_nothing():
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
    ],
    ids=["K2", "K2-ragged", "K5", "K5-ragged", "K20"],
)
def test_label_distance_by_chance_is_what_chance_gives(sizes, classes, tolerance):
    rng, labels = np.random.default_rng(8), np.repeat(np.arange(len(classes)), classes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    found = []
    for _ in range(1500):
        flat = np.bincount(owner * len(classes) + rng.permutation(labels), minlength=len(sizes) * len(classes))
        counts = flat.reshape(len(sizes), len(classes))
        found.append(label_distance(counts))
    assert np.std(found) / np.mean(found) / math.sqrt(1500) < 0.015, "the simulation is sharp enough to tell"
    assert label_distance_by_chance(counts) == pytest.approx(np.mean(found), rel=tolerance)


def test_one_client_is_at_no_distance_by_chance():
    assert label_distance_by_chance(np.array([[20, 30]])) == 0


# intervals


@pytest.mark.parametrize("n", [2, 3, 5, 30])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_intervals_equal_scipys(n, confidence):
    values = np.random.default_rng(n).standard_normal(n) * 3 + 1
    mean, half = mean_interval(values.tolist(), confidence)
    expected = stats.ttest_1samp(values, 0).confidence_interval(confidence)
    assert (mean - half, mean + half) == pytest.approx((expected.low, expected.high))


def test_the_interval_of_paired_differences_equals_scipys():
    rng = np.random.default_rng(0)
    common = rng.standard_normal(6) * 5
    a, b = common + 0.4 + 0.1 * rng.standard_normal(6), common + 0.1 * rng.standard_normal(6)
    mean, half = mean_interval(a - b)
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("n", [2, 5])
def test_the_interval_covers_the_truth_as_often_as_it_says(n):
    samples = np.random.default_rng(n).normal(2.0, 0.7, (1500, n))
    covered = np.mean([abs(mean - 2.0) <= half for mean, half in map(mean_interval, samples)])
    assert 0.93 <= covered <= 0.97


def test_one_value_has_a_mean_and_no_interval():
    mean, half = mean_interval([3.5])
    assert mean == 3.5
    assert math.isnan(half)


def verdict(differences):
    return decided(paired_p(differences), float(np.mean(differences)))


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0, 1.1, 0.9], "higher"),
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
def test_verdicts(differences, expected):
    assert verdict(differences) == expected


@QUICK
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_a_verdict_is_a_t_test_at_five_per_cent(differences):
    if np.std(differences) < 1e-6:
        return
    found = stats.ttest_1samp(differences, 0)
    if abs(found.pvalue - 0.05) < 1e-9:
        return
    expected = "undecided" if found.pvalue > 0.05 else "higher" if np.mean(differences) > 0 else "lower"
    assert verdict(differences) == expected


# the model on the clients' data


def data(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(6)
    return torch.tensor(rng.standard_normal((rows, 6))), torch.tensor(rng.integers(0, 3, rows))


def by_hand(x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Loss and accuracy one row at a time."""
    logits = [TASK.logits(X0, row[None])[0] for row in x]
    losses = [float(torch.logsumexp(z, 0) - z[k]) for z, k in zip(logits, y, strict=True)]
    right = [float(int(z.argmax()) == int(k)) for z, k in zip(logits, y, strict=True)]
    return {"loss": float(np.mean(losses)), "accuracy": float(np.mean(right))}


def held_out_of(sizes: list[int], aside: list[int]):
    """Clients of ``sizes`` rows with ``aside`` measured rows each, which follow the training rows in the pool."""
    part = partition_of(sizes)
    start = sum(sizes)
    return dataclasses.replace(
        part, held_out=(np.arange(start, start + sum(aside)), np.cumsum([0, *aside]).astype(np.int64))
    )


@pytest.mark.parametrize("chunk", [1, 3, 1024])
def test_evaluate_is_the_mean_over_rows(monkeypatch, chunk):
    monkeypatch.setattr(evaluation, "CHUNK", chunk)
    x, y = data(50)
    assert evaluate(TASK, X0, x, y) == pytest.approx(by_hand(x, y), rel=1e-12)
    rows = per_row(TASK, X0, x, y)
    assert {name: tuple(v.shape) for name, v in rows.items()} == {"loss": (50,), "accuracy": (50,)}


@pytest.mark.parametrize("chunk", [1, 2, 1024])
@pytest.mark.parametrize("clients", [[0, 1, 2, 3, 4, 5, 6], [2], [6, 0, 4]], ids=str)
def test_clients_are_measured_as_one_by_one(monkeypatch, chunk, clients):
    monkeypatch.setattr(evaluation, "CHUNK", chunk)
    x, y = data(sum(RAGGED))
    part = partition_of(RAGGED)
    got = evaluate_clients(TASK, X0, x, y, part, np.array(clients))
    for i, k in enumerate(clients):
        expected = by_hand(x[part.rows(k)], y[part.rows(k)])
        assert {name: float(values[i]) for name, values in got.items()} == pytest.approx(expected, rel=1e-12)


def test_clients_are_measured_on_their_held_out_rows():
    x, y = data(60)
    part = held_out_of([10, 20, 10], [4, 0, 16])
    got = evaluate_clients(TASK, X0, x, y, part, np.arange(3))
    assert [float(got["loss"][k]) for k in (0, 2)] == pytest.approx(
        [by_hand(x[40:44], y[40:44])["loss"], by_hand(x[44:60], y[44:60])["loss"]]
    )
    assert got["loss"][1].isnan()
    assert got["accuracy"][1].isnan()


def test_clients_none_of_whom_has_a_measured_row():
    x, y = data(40)
    got = evaluate_clients(TASK, X0, x, y, held_out_of([10, 20, 10], [0, 0, 0]), np.arange(3))
    assert set(got) == {"loss", "accuracy"}
    assert all(values.shape == (3,) and values.isnan().all() for values in got.values())


def test_images_are_evaluated_in_channels_last_format():
    seen = []

    class Looks(nn.Module):
        def forward(self, x):
            seen.append(x.stride())
            return x.flatten(1), x.flatten(1)[:, :4]

    task = Classification(Looks(), ParameterSpace(nn.Linear(1, 1)), 4)
    images, labels = torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.zeros(5, dtype=torch.long)
    scores = evaluate(task, torch.zeros(2, dtype=torch.float64), images, labels)
    assert seen == [(192, 1, 24, 3)]
    assert scores["accuracy"] == float((images.flatten(1)[:, :4].argmax(1) == 0).double().mean())

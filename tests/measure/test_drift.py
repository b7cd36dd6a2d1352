"""Drift and its relatives against plain NumPy, identities and numbers by hand; sums and finiteness of updates."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedskew.core import trees as vectors
from fedskew.measure.updates import drift

QUICK = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])


NAMES = {"divergence", "drift", "relative_drift", "update_norm", "distance", "alignment"}


def plain(models: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """The measures written as the documents write them, one client at a time."""
    clients, p = range(len(models)), sizes / sizes.sum()
    uniform = sum(models[k] for k in clients) / len(models)
    weighted = sum(p[k] * models[k] for k in clients)
    norm = [math.sqrt(sum(v * v for v in models[k])) for k in clients]
    distance = [float(np.linalg.norm(models[k] - weighted)) for k in clients]
    squared_distance, length = sum(p[k] * distance[k] ** 2 for k in clients), sum(p[k] * norm[k] ** 2 for k in clients)
    return {
        "divergence": np.mean([np.linalg.norm(models[k] - uniform) for k in clients]),
        "drift": np.mean(distance),
        "relative_drift": squared_distance / length if length else 0.0,
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
    squared_distance = (p * got["distance"] ** 2).sum()
    # sum p ||w - mean||^2 = sum p ||d||^2 - ||mean d||^2
    assert squared_distance == pytest.approx(
        (p * got["update_norm"] ** 2).sum() - ((p @ models) ** 2).sum(), abs=1e-12 * scale
    )
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


def test_alignment_of_a_short_update_beside_a_long_one():
    """The length of the mean of float32 updates is computed from the mean in float64, not from the rounded mean."""
    across = np.random.default_rng(0).standard_normal(4000)
    long, short = 1e4 * across / np.linalg.norm(across), np.random.default_rng(1).standard_normal(4000)
    short *= 2.2e-4 / np.linalg.norm(short)
    updates = torch.tensor(np.stack([long, short + 1e-8 * long]), dtype=torch.float32)
    exact = updates.double().numpy()
    mean = exact.mean(0)
    cosines = exact @ mean / np.linalg.norm(exact, axis=1) / np.linalg.norm(mean)
    got = drift(updates, torch.ones(2))["alignment"].numpy()
    np.testing.assert_allclose(got, cosines, atol=1e-6)


def test_limits_of_drift():
    """One client, equal updates, opposite ones, and none at all."""
    one = measured(np.array([[3.0, 4.0]]), np.array([11.0]))
    assert one["divergence"] == one["drift"] == one["relative_drift"] == one["distance"][0] == 0
    assert one["update_norm"][0] == 5
    same = measured(np.tile([1.0, -2.0, 0.5], (4, 1)), np.array([1.0, 2.0, 3.0, 4.0]))
    assert max(same["divergence"], same["drift"], same["relative_drift"]) < 1e-15
    assert measured(np.array([[1.0, 2.0], [-1.0, -2.0]]), np.ones(2))["relative_drift"] == pytest.approx(1)
    assert all((value == 0).all() for value in measured(np.zeros((3, 4)), np.ones(3)).values())


def test_relative_drift_has_no_unit():
    models, sizes = cohort(4, 6)
    for scale in (1e-12, 1e-3, 1e6):
        got = measured(models * scale, sizes)
        assert got["relative_drift"] == pytest.approx(measured(models, sizes)["relative_drift"], rel=1e-10)
        assert got["drift"] == pytest.approx(scale * measured(models, sizes)["drift"], rel=1e-10)


def test_float32_updates_are_measured_in_float64():
    """A squared_distance of 1e-3 around 1e4, where float32 sums would lose it."""
    models = torch.full((2, 5000), 1e4)
    models[1] += 2**-9
    got = drift(models, torch.ones(2))
    assert got["divergence"].dtype == torch.float64
    assert float(got["divergence"]) == pytest.approx(2**-10 * math.sqrt(5000), rel=1e-12)


def test_divergence_of_linear_losses_equals_their_gradients_divergence():
    """T-L: updates -lr steps g_k give divergence lr steps mean ||g_k - mean g||."""
    g = np.random.default_rng(4).standard_normal((5, 8))
    expected = 0.1 * 7 * np.linalg.norm(g - g.mean(0), axis=1).mean()
    assert measured(-0.1 * 7 * g, np.ones(5))["divergence"] == pytest.approx(expected)

"""Drift and its relatives against plain NumPy, identities and numbers by hand; sums and finiteness of updates."""

import math

import numpy as np
import pytest
import torch

from fedskew.core import trees as vectors
from tests.drifts import drift

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
@pytest.mark.parametrize("columns_at_a_time", [1, 7, 10_000])
def test_drift_equals_plain_numpy(clients, parameters, columns_at_a_time, monkeypatch):
    monkeypatch.setattr(vectors, "CHUNK", columns_at_a_time * clients)
    seed = columns_at_a_time
    models, sizes = cohort(clients, parameters, seed)
    got, expected = measured(models, sizes), plain(models, sizes)
    assert set(got) == NAMES
    for name in NAMES:
        assert got[name].dtype == np.float64
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-12, atol=1e-13, err_msg=name)


def test_a_weighted_sum_keeps_the_shape_of_its_rows():
    rows, weights = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)), torch.tensor([0.1, 0.2, 0.3, 0.4])
    cube = vectors.weighted_sum(weights, rows.view(4, 10, 10))
    torch.testing.assert_close(cube, vectors.weighted_sum(weights, rows).view(10, 10), rtol=0, atol=0)


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


def test_alignment_by_hand():
    """Updates along x, against it, across it and zero; their mean is along x. Two opposite updates have no mean direction."""
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


def test_drift_of_extreme_updates():
    """Drift of one client, of equal updates, of opposite updates, and of updates that are zero."""
    one = measured(np.array([[3.0, 4.0]]), np.array([11.0]))
    assert one["divergence"] == one["drift"] == one["relative_drift"] == one["distance"][0] == 0
    assert one["update_norm"][0] == 5
    same = measured(np.tile([1.0, -2.0, 0.5], (4, 1)), np.array([1.0, 2.0, 3.0, 4.0]))
    assert max(same["divergence"], same["drift"], same["relative_drift"]) < 1e-15
    assert measured(np.array([[1.0, 2.0], [-1.0, -2.0]]), np.ones(2))["relative_drift"] == pytest.approx(1)
    assert all((value == 0).all() for value in measured(np.zeros((3, 4)), np.ones(3)).values())

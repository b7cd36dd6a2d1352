"""Sums over a cohort's updates against plain NumPy in float64, and how often a round computes them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from fedskew.api.functions import run
from fedskew.core import records, trees as vectors
from fedskew.core.records import Cohort, Info, Upload
from fedskew.core.trees import Dispersion, dispersion, weighted_sum
from fedskew.experiment.config import Experiment
from tests.drifts import drift

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
NUMBERS = st.floats(-1e3, 1e3, width=32) | st.sampled_from([0.0, 1e30, -1e30, 1e-38, 2.0**-149])
ROWS = hnp.arrays(np.float32, st.tuples(st.integers(1, 19), st.integers(1, 40)), elements=NUMBERS)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks of few columns, so that small matrices have several blocks."""
    monkeypatch.setattr(vectors, "CHUNK", 1000)


def whole_numbers(clients: int, columns: int) -> Tensor:
    """Return small whole numbers. float64 adds them without rounding, in any order."""
    return torch.tensor(np.random.default_rng(0).integers(-60, 61, (clients, columns)), dtype=torch.float32)


@QUICK
@given(ROWS, st.lists(st.floats(0.01, 10), min_size=19, max_size=19), st.integers(1, 30))
def test_sums_equal_plain_numpy(rows: np.ndarray, weights: list[float], times: int) -> None:
    rows, w = np.tile(rows, times), np.array(weights[: len(rows)])
    x, large = rows.astype(np.float64), float(np.abs(rows).max(initial=0))
    seen = dispersion(torch.from_numpy(w), torch.from_numpy(rows))
    for total in (seen.total, weighted_sum(torch.from_numpy(w), torch.from_numpy(rows))):
        assert total.dtype == torch.float32
        np.testing.assert_allclose(total, w @ x, rtol=1e-7, atol=1e-13 * large + 1e-44)
    mean = w @ x / w.sum()
    expected = {
        "squares": (x**2).sum(1),
        "to_weighted": ((x - mean) ** 2).sum(1),
        "to_uniform": ((x - x.mean(0)) ** 2).sum(1),
        "of_mean": (mean**2).sum(),
    }
    for name, value in expected.items():
        got = getattr(seen, name)
        assert got.dtype == torch.float64
        np.testing.assert_allclose(got, value, rtol=1e-11, atol=1e-14 * large**2 * x.shape[1], err_msg=name)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_stays_in_its_row_and_column(wrong: float) -> None:
    rows = whole_numbers(5, 600)
    rows[3, 411] = wrong
    seen = dispersion(torch.full((5,), 0.2), rows)
    assert seen.squares.isfinite().tolist() == [True, True, True, False, True]
    assert torch.nonzero(~seen.total.isfinite()).flatten().tolist() == [411]
    summed = weighted_sum(torch.full((5,), 0.2), rows)
    torch.testing.assert_close(summed[411], torch.tensor(wrong), equal_nan=True)
    assert not seen.to_weighted.isfinite().any()


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_sums_have_the_type_of_the_rows(kind: torch.dtype) -> None:
    rows, weights = whole_numbers(4, 300).to(kind), torch.full((4,), 0.25)
    assert weighted_sum(weights, rows).dtype == dispersion(weights, rows).total.dtype == kind


def test_updates_that_differ_only_in_their_last_digits() -> None:
    """Two clients at 1e4 and one unit in the last place above it, where float32 sums would lose the difference."""
    models = torch.full((2, 5000), 1e4)
    models[1] += 2**-10
    got = drift(models, torch.ones(2))
    assert float(got["divergence"]) == pytest.approx(2**-11 * 5000**0.5, rel=1e-12)
    same = drift(models[:1].expand(3, -1), torch.tensor([1.0, 2.0, 4.0]))
    assert float(same["relative_drift"]) < 1e-30


@pytest.mark.parametrize("size", [1e-30, 1e-16, 1.0, 1e20, 1e30])
@pytest.mark.parametrize("clients", [5, 12])
def test_distances_of_numbers_with_squares_beyond_float32(size: float, clients: int) -> None:
    drawn = np.random.default_rng(clients)
    rows = torch.tensor(drawn.standard_normal((clients, 2100)) * size, dtype=torch.float32)
    weights = torch.tensor(drawn.random(clients) + 0.1)
    seen, x = dispersion(weights, rows), rows.double()
    for got, mean in ((seen.to_weighted, weights @ x / weights.sum()), (seen.to_uniform, x.mean(0))):
        torch.testing.assert_close(got, (x - mean).square().sum(1), rtol=1e-10, atol=0)


# a round adds up once


def cohort(deltas: Tensor, seen: Dispersion | None) -> Cohort:
    n = torch.ones(len(deltas))
    return Cohort(Info(n.long(), n, n[:, None], n), Upload(deltas, {}, {}), seen)


def test_a_known_sum_is_taken_for_its_own_rows_and_weights_only() -> None:
    rows, weights = whole_numbers(4, 50), torch.tensor([0.5, 0.25, 0.125, 0.125])
    seen = dispersion(weights, rows)
    assert cohort(rows, seen).sum(weights) is seen.total
    others = torch.full((4,), 0.25)
    torch.testing.assert_close(cohort(rows, seen).sum(others), rows.mean(0), rtol=0, atol=0)
    torch.testing.assert_close(cohort(2 * rows, seen).sum(weights), 2 * seen.total, rtol=0, atol=0)
    assert torch.equal(cohort(rows, None).sum(weights), seen.total)


@pytest.mark.parametrize(("codec", "times"), [("none", 0), ("int8", 2)])
def test_updates_are_summed_once_a_round(
    codec: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring the updates also gives their mean. Only if a codec changed the updates, they are summed again."""
    calls = []

    def counted(weights: Tensor, rows: Tensor) -> Tensor:
        calls.append(rows)
        return weighted_sum(weights, rows)

    monkeypatch.setattr(records, "weighted_sum", counted)
    experiment = Experiment(training={"rounds": 2}, codec=codec)
    run(experiment, runs=tmp_path)
    assert len(calls) == times

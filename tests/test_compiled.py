"""Compiled sums over a cohort against plain numpy in float64 and against PyTorch's, and who gets them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from fedskew.core import compiled, records, vectors
from fedskew.core.records import Cohort, Info, Upload
from fedskew.core.vectors import Spread, fast, spread, weighted_sum
from fedskew.experiment.config import Experiment
from fedskew.experiment.results import run
from fedskew.measure.drift import drift

sums = pytest.importorskip("fedskew.core.compiled.sums")
BLOCK = sums.BLOCK
QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
NUMBERS = st.floats(-1e3, 1e3, width=32) | st.sampled_from([0.0, 1e30, -1e30, 1e-38, 2.0**-149])
ROWS = hnp.arrays(np.float32, st.tuples(st.integers(1, 19), st.integers(1, 40)), elements=NUMBERS)


@pytest.fixture(autouse=True)
def for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiled sums whatever the size."""
    monkeypatch.setattr(vectors, "LARGE", 1)
    compiled.compiled.cache_clear()
    yield
    compiled.compiled.cache_clear()


def plain(weights: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    x, w = rows.astype(np.float64), weights.astype(np.float64)
    to_weighted, to_uniform = x - w @ x / w.sum(), x - x.mean(0)
    parts = {"squares": x, "to_weighted": to_weighted, "to_uniform": to_uniform}
    of_mean = ((w @ x / w.sum()) ** 2).sum()
    return {"total": w @ x, "of_mean": of_mean, **{name: (part**2).sum(1) for name, part in parts.items()}}


def assert_plain(seen: Spread, weights: np.ndarray, rows: np.ndarray) -> None:
    expected, large = plain(weights, rows), float(np.abs(rows).max(initial=0))
    assert seen.total.dtype == torch.float32
    np.testing.assert_allclose(seen.total, expected["total"], rtol=1e-7, atol=1e-13 * large + 1e-44)
    for name in ("squares", "to_weighted", "to_uniform", "of_mean"):
        got = getattr(seen, name)
        assert got.dtype == torch.float64
        # distances are float32's within a block, and tell a row from the mean where float64 would
        rtol = 1e-6 if name.startswith("to_") else 1e-11
        np.testing.assert_allclose(got, expected[name], rtol=rtol, atol=1e-14 * large**2 * rows.shape[1], err_msg=name)


def whole_numbers(clients: int, columns: int, seed: int = 0) -> Tensor:
    """Small whole numbers: float64 adds them up without rounding in any order."""
    drawn = np.random.default_rng(seed).integers(-60, 61, (clients, columns))
    return torch.tensor(drawn, dtype=torch.float32)


def by_pytorch(weights: Tensor, rows: Tensor) -> Spread:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "LARGE", sys.maxsize)
        assert fast(rows) is None
        return spread(weights, rows)


def assert_same(one: Spread, two: Spread) -> None:
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@QUICK
@given(ROWS, st.lists(st.floats(0.01, 10), min_size=19, max_size=19), st.integers(1, 30))
def test_compiled_sums_are_those_of_plain_numpy(rows: np.ndarray, weights: list[float], times: int) -> None:
    """Repeated columns reach over several blocks and stripes, whose width divides nothing here."""
    rows, w = np.tile(rows, times), np.array(weights[: len(rows)])
    matrix = torch.from_numpy(rows)
    assert fast(matrix) is sums
    seen = spread(torch.from_numpy(w), matrix)
    assert_plain(seen, w, rows)
    total = weighted_sum(torch.from_numpy(w), matrix)
    np.testing.assert_allclose(
        total, plain(w, rows)["total"], rtol=1e-7, atol=1e-13 * float(np.abs(rows).max()) + 1e-44
    )


@pytest.mark.parametrize("columns", [1, BLOCK - 1, BLOCK, 16 * BLOCK + 1, 200 * BLOCK])
@pytest.mark.parametrize("clients", [1, 2, 4, 8, 16])
def test_whole_numbers_come_out_exactly(clients: int, columns: int) -> None:
    """Weights and numbers of clients are powers of two: no rounding on any path, so that all must agree to the last bit."""
    rows = whole_numbers(clients, columns)
    unlike = [2.0**-k for k in range(1, clients)] + [2.0 ** (1 - clients)]
    weights = torch.tensor(unlike if clients <= 8 else [1 / clients] * clients)
    seen, x = spread(weights, rows), rows.double()
    for ours, theirs in zip(seen, by_pytorch(weights, rows), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6 if ours.shape == (clients,) else 0, atol=0)
    torch.testing.assert_close(seen.squares, x.square().sum(1), rtol=0, atol=0)
    torch.testing.assert_close(seen.to_weighted, (x - weights.double() @ x).square().sum(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(weighted_sum(weights, rows), (weights.double() @ x).float(), rtol=0, atol=0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so_and_is_found(wrong: float) -> None:
    rows = whole_numbers(5, 600)
    rows[3, 411] = wrong
    seen = spread(torch.full((5,), 0.2), rows)
    assert seen.squares.isfinite().tolist() == [True, True, True, False, True]
    assert torch.nonzero(~seen.total.isfinite()).flatten().tolist() == [411]
    summed = weighted_sum(torch.full((5,), 0.2), rows)
    torch.testing.assert_close(summed[411], torch.tensor(wrong), equal_nan=True)
    assert not seen.to_weighted.isfinite().any()


def test_parts_of_a_sum_keep_the_digits_of_float64() -> None:
    """As several processes add them up further."""
    rows, weights = whole_numbers(5, 300), torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    part = weighted_sum(weights, rows, torch.float64)
    torch.testing.assert_close(part, weights @ rows.double(), rtol=1e-14, atol=1e-14)


def test_views_are_summed_where_they_lie() -> None:
    whole, weights = whole_numbers(8, 1000), torch.tensor([0.25, 0.25, 0.25, 0.25])
    for rows in (whole[:4, 3:770], whole[::2], whole[1::2, 500:], whole[2:3].expand(4, 1000), whole[3:7]):
        assert fast(rows) is sums
        assert_same(spread(weights, rows), spread(weights, rows.clone()))
        assert_plain(spread(weights, rows), weights.numpy(), rows.numpy())
    assert fast(whole[:, ::2]) is None
    assert fast(whole.T) is None
    assert_plain(spread(weights, whole[:4, ::2]), weights.numpy(), whole[:4, ::2].numpy())


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_numbers_of_another_type_are_pytorchs(kind: torch.dtype) -> None:
    rows, weights = whole_numbers(4, 300).to(kind), torch.full((4,), 0.25)
    assert fast(rows) is None
    assert weighted_sum(weights, rows).dtype == spread(weights, rows).total.dtype == kind


def test_the_number_of_threads_changes_no_bit() -> None:
    drawn = np.random.default_rng(3)
    rows, weights = drawn.standard_normal((6, 20_000)).astype(np.float32), drawn.random(6)
    first, again, one, other = np.empty((4, rows.shape[1]), dtype=np.float32)
    found = sums.spread(weights, rows, first, 1)
    sums.weighted_sum(weights, rows, one, 1)
    for threads in (2, 3, 5):
        assert (sums.spread(weights, rows, again, threads) == found).all()
        assert (first == again).all()
        sums.weighted_sum(weights, rows, other, threads)
        assert (one == other).all()


def test_updates_that_agree_but_for_their_last_digits() -> None:
    """Two clients at 1e4 and one unit in the last place above it, where float32 sums would lose the difference."""
    models = torch.full((2, 5000), 1e4)
    models[1] += 2**-10
    got = drift(models, torch.ones(2))
    assert float(got["divergence"]) == pytest.approx(2**-11 * 5000**0.5, rel=1e-12)
    same = drift(models[:1].expand(3, -1), torch.tensor([1.0, 2.0, 4.0]))
    assert float(same["relative_drift"]) < 1e-30


def assert_distances(rows: Tensor, weights: Tensor, rel: float) -> None:
    """Every row's, for itself: none is small beside another's."""
    seen, x, w = spread(weights, rows), rows.double(), weights.double()
    for got, mean in ((seen.to_weighted, w @ x / w.sum()), (seen.to_uniform, x.mean(0))):
        torch.testing.assert_close(got, (x - mean).square().sum(1), rtol=rel, atol=0)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e-16, 1e-14, 1e-4, 1.0, 1e17, 1e20, 1e30])
@pytest.mark.parametrize("clients", [1, 5, 12, 20])
def test_distances_of_numbers_whose_squares_float32_cannot_hold(size: float, clients: int) -> None:
    drawn = np.random.default_rng(clients)
    rows = torch.tensor(drawn.standard_normal((clients, 2 * BLOCK + 50)) * size, dtype=torch.float32)
    rows[0] *= 1 + 1e-4
    assert_distances(rows, torch.tensor(drawn.random(clients) + 0.1), 1e-6 if clients > 1 else np.inf)


@pytest.mark.parametrize("near", [0.0, 1e-6, 1e-3, 0.03, 0.1, 0.3])
def test_a_row_near_the_plain_mean_and_far_from_the_weighted_one(near: float) -> None:
    """Its distance is what is left of numbers that are far larger."""
    drawn = np.random.default_rng(7)
    one, other = drawn.standard_normal((2, 3 * BLOCK))
    middle = (one + other) / 2 + near * drawn.standard_normal(3 * BLOCK)
    rows = torch.tensor(np.stack([one, other, middle]), dtype=torch.float32)
    assert_distances(rows, torch.tensor([0.9, 0.05, 0.05]), 1e-5)


def test_a_row_near_the_weighted_mean_and_very_far_from_the_plain_one() -> None:
    """Only the product of the two ways is too large for float32."""
    rows = torch.zeros(3, BLOCK)
    rows[1:] = -3e20
    assert_distances(rows, torch.tensor([0.9998, 0.0001, 0.0001]), 1e-6)


def test_rows_that_differ_in_their_last_digits_keep_their_distances() -> None:
    """Half a unit in the last place from the mean, which float32 cannot tell."""
    rows = torch.full((9, 2 * BLOCK), 3.0)
    rows[::2] = torch.nextafter(rows[::2], torch.tensor(4.0))
    assert_distances(rows, torch.arange(1.0, 10.0), 1e-6)


@pytest.mark.parametrize("reason", [ImportError, RuntimeError])
def test_without_numba_pytorch_does_it(reason: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise reason(name)

    rows, weights = whole_numbers(4, 3000), torch.tensor([0.5, 0.25, 0.125, 0.125])
    expected = spread(weights, rows)
    monkeypatch.setattr(compiled, "import_module", refuse)
    compiled.compiled.cache_clear()
    assert fast(rows) is None
    torch.testing.assert_close(spread(weights, rows), expected, rtol=1e-15, atol=0)
    torch.testing.assert_close(weighted_sum(weights, rows), expected.total, rtol=0, atol=0)


def test_small_cohorts_load_no_compiler(tmp_path: Path) -> None:
    code = (
        "import sys, fedskew\n"
        "fedskew.run(fedskew.Experiment(training={'rounds': 1}), folder=sys.argv[1])\n"
        "print('torch' in sys.modules, 'numba' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, tmp_path], check=True, capture_output=True, text=True, timeout=100
    ).stdout
    assert said.split() == ["True", "False"]


def test_other_instructions_are_compiled_anew(tmp_path: Path) -> None:
    """A newer fedskew may bring some without a change in the files of the loops, whose compiled code lies there."""
    code = (
        "import numpy as np\n"
        "from mine import add, sums\n"
        "total = np.zeros(16, np.float32)\n"
        "sums.weighted_sum(np.ones(2), np.ones((2, 16), np.float32), total, 1)\n"
        "print(total[0], sum(add.add_up.stats.cache_hits.values()))"
    )
    folder = tmp_path / "mine"
    shutil.copytree(Path(sums.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in folder.glob("*.py"):
        file.write_text(file.read_text().replace("fedskew.core.compiled", "mine"))

    def told() -> list[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=tmp_path, timeout=100
        ).stdout.split()

    assert told() == ["2.0", "0"]
    assert told() == ["2.0", "1"]
    instructions = folder / "instructions.py"
    widened = "self.builder.fpext(found, DOUBLES)"
    instructions.write_text(instructions.read_text().replace(widened, f"self.builder.fneg({widened})"))
    assert told() == ["-2.0", "0"]


# a round adds up once


def cohort(deltas: Tensor, seen: Spread | None) -> Cohort:
    n = torch.ones(len(deltas))
    return Cohort(Info(n.long(), n, n[:, None], n), Upload(deltas, {}, {}), seen)


def test_a_known_sum_is_taken_for_its_own_rows_and_weights_only() -> None:
    rows, weights = whole_numbers(4, 50), torch.tensor([0.5, 0.25, 0.125, 0.125])
    seen = spread(weights, rows)
    assert cohort(rows, seen).sum(weights) is seen.total
    others = torch.full((4,), 0.25)
    torch.testing.assert_close(cohort(rows, seen).sum(others), rows.mean(0), rtol=0, atol=0)
    torch.testing.assert_close(cohort(2 * rows, seen).sum(weights), 2 * seen.total, rtol=0, atol=0)
    assert torch.equal(cohort(rows, None).sum(weights), seen.total)


@pytest.mark.parametrize(("codec", "times"), [("none", 0), ("int8", 2)])
def test_a_round_adds_up_its_updates_once(
    codec: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measures' look at the updates tells their mean, too; of what a codec made of them it does not."""
    asked = []

    def heard(weights: Tensor, rows: Tensor) -> Tensor:
        asked.append(rows)
        return weighted_sum(weights, rows)

    monkeypatch.setattr(records, "weighted_sum", heard)
    experiment = Experiment(training={"rounds": 2}, codec=codec)
    run(experiment, folder=tmp_path)
    assert len(asked) == times

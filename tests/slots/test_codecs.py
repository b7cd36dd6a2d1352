"""Compression of updates: what is decoded, what is remembered, what it costs."""

from math import ceil, log2, sqrt

import pytest
import torch
from torch import Tensor

from fedskew.core.component import build
from fedskew.slots import CODECS, Clip, Int8, Qsgd, TopK
from fedskew.slots.codecs import encode
from tests.reference import apart, assert_close, f64
from tests.small import TASK, X0

SPECS = {
    "none": ["none"],
    "top-k": ["top-k:share=0.1", "top-k:share=0.1,scope=layer", "top-k:share=0.1,error_feedback=false"],
    "qsgd": ["qsgd:levels=3,bucket=16", "qsgd:levels=1,bucket=all,error_feedback=true"],
    "int8": ["int8", "int8:rounding=stochastic,error_feedback=true"],
    "clip": ["clip:norm=0.05"],
}
ALL = [spec for specs in SPECS.values() for spec in specs]
LOSSY = [spec for spec in ALL if spec != "none"]
G = torch.Generator().manual_seed(5)
ROWS = torch.randn(6, TASK.space.size, generator=G, dtype=torch.float64)
DRAWS = torch.rand(6, TASK.space.size, generator=G, dtype=torch.float64)


def codec(spec: str):
    return build("codec", CODECS, spec)


def decoded(made, rows, draws=None) -> Tensor:
    """Return the updates that the server decodes if clients have no memory."""
    rows = f64(rows)
    memory = {name: torch.zeros_like(rows) for name in made.init(rows[0])}
    draws = DRAWS[:, : rows.shape[1]] if draws is None else f64(draws)
    return encode(made, rows, memory, draws if made.random else None, TASK).received


def test_every_codec_is_tested() -> None:
    assert set(SPECS) == set(CODECS)
    for name, specs in SPECS.items():
        assert all(type(codec(spec)) is CODECS[name] for spec in specs)


# top-k


def test_top_k_by_hand() -> None:
    made = TopK(share=0.4)
    rows = f64([[3.0, -5.0, 1.0, 5.0, 0.5], [0.0, 0.0, 0.0, 0.1, 0.0]])
    _, sent, memory, _ = encode(made, rows, {"error": torch.zeros_like(rows)}, None, TASK)
    assert_close(sent, [[0, -5, 0, 5, 0], [0, 0, 0, 0.1, 0]], 0.0)
    assert_close(memory["error"], [[3, 0, 1, 0, 0.5], [0, 0, 0, 0, 0]], 0.0)
    # 3 - 1, 1 + 2.5, 0.5 + 2
    _, sent, memory, _ = encode(made, f64([[-1.0, 0.0, 2.5, 1.0, 2.0], [0.0] * 5]), memory, None, TASK)
    assert_close(sent[0], [0, 0, 3.5, 0, 2.5], 0.0)
    assert_close(memory["error"][0], [2, 0, 0, 1, 0], 0.0)


def test_top_k_keeps_the_first_of_equal_entries() -> None:
    rows = [[1.0, -1.0, 1.0, -1.0, 1.0], [-2.0, 1.0, 1.0, 3.0, -1.0], [0.0] * 5]
    assert_close(decoded(TopK(share=0.6), rows), [[1, -1, 1, 0, 0], [-2, 1, 0, 3, 0], [0.0] * 5], 0.0)


def test_top_k_keeps_the_floor_of_the_written_share() -> None:
    rows = torch.randn(1, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert [int((decoded(TopK(share=i / 100), rows) != 0).sum()) for i in range(1, 101)] == list(range(1, 101))


def test_each_layer_keeps_its_own_share() -> None:
    scaled = ROWS.clone()
    scaled[:, :56] *= 1e-3  # the first layer, 6 x 8 and 8; the second has 8 x 3 and 3
    of_model, of_layer = (decoded(TopK(share=0.25, scope=scope), scaled) for scope in ("model", "layer"))
    assert ((of_model[:, :56] != 0).sum(1) == 0).all()
    assert ((of_layer[:, :56] != 0).sum(1) == 14).all()
    assert ((of_layer[:, 56:] != 0).sum(1) == 6).all()
    assert_close(of_layer[:, 56:], decoded(TopK(share=6 / 27), scaled[:, 56:]), 0.0)


@pytest.mark.parametrize(
    ("share", "d", "k"), [(0.01, 83, 1), (0.1, 83, 8), (0.5, 83, 41), (1.0, 83, 83), (0.01, 10000, 100)]
)
def test_places_cost_indices_or_a_bitmap(share: float, d: int, k: int) -> None:
    rows = torch.ones(2, d)
    size = encode(TopK(share=share), rows, {}, None, TASK).size
    places = 0 if k == d else min(k * ceil(log2(d)), d)
    assert size == ceil((32 * k + places) / 8)
    assert k == d or size <= 8 * k


# quantisation


def test_qsgd_by_hand() -> None:
    # length 5, two levels: |v| s / 5 = 1.2 and 1.6, so up with probability 0.2 and 0.6
    rows = [[3.0, -4.0]] * 2
    draws = [[0.19, 0.61], [0.21, 0.59]]
    assert_close(decoded(Qsgd(levels=2), rows, draws), [[5, -2.5], [2.5, -5]])
    # in buckets of one number each has its own length, and nothing is lost
    assert_close(decoded(Qsgd(levels=2, bucket=1), rows, draws), rows)


@pytest.mark.parametrize("levels", [1, 3, 15, 127, 255])
@pytest.mark.parametrize("bucket", ["all", 16, 512])
def test_qsgd_is_unbiased_with_a_bounded_variance(levels: int, bucket) -> None:
    """By enumeration: each number takes two values; the lower one from the draw on at which it gives up the upper one."""
    made = Qsgd(levels=levels, bucket=bucket)
    width = min(83, bucket) if bucket != "all" else 83
    parts = ROWS.split(width, dim=1)
    length = torch.cat([part.square().sum(1, keepdim=True).sqrt().expand_as(part) for part in parts], dim=1)
    a = ROWS.abs() * levels / length
    p = a - a.floor()
    upper, lower = decoded(made, ROWS, p - 1e-9), decoded(made, ROWS, p + 1e-9)
    assert_close(upper.abs() - lower.abs(), length / levels, 1e-9)
    assert_close(p * upper + (1 - p) * lower, ROWS, 1e-12)
    variance = p * (upper - ROWS).square() + (1 - p) * (lower - ROWS).square()
    for part, v in zip(variance.split(width, 1), parts, strict=True):
        d = part.shape[1]
        bound = min(d / levels**2, sqrt(d) / levels) * v.square().sum(1)
        assert (part.sum(1) <= bound).all()


def test_qsgd_with_many_levels_is_the_identity_and_keeps_signs_and_zeros() -> None:
    assert_close(decoded(Qsgd(levels=2**45), ROWS), ROWS, 1e-12)
    coarse = decoded(Qsgd(levels=3), ROWS)
    assert (coarse * ROWS >= 0).all()
    assert (coarse == 0).any()
    assert (decoded(Qsgd(bucket=16), 0 * ROWS) == 0).all()
    holes = ROWS.clone()
    holes[:, 16:32] = 0
    assert (decoded(Qsgd(bucket=16), holes)[:, 16:32] == 0).all()
    alone = torch.zeros(1, 20, dtype=torch.float64)
    alone[0, 7] = -0.3
    assert_close(decoded(Qsgd(levels=7), alone, 0.999 * torch.ones(1, 20)), alone)


TENSORS = TASK.space.sizes


def scales(rows: Tensor) -> Tensor:
    """Return for each number max |w| / 127 over its parameter tensor."""
    return torch.cat([(p.abs().amax(1, keepdim=True) / 127).expand_as(p) for p in rows.split(TENSORS, dim=1)], dim=1)


def test_int8_by_hand() -> None:
    assert TENSORS == [48, 8, 24, 3]
    row = torch.zeros(1, 83, dtype=torch.float64)
    # scale 1: 127 stays, 0.4 -> 0, 0.6 -> 1, -2.5 -> -2 (halves to even), 3.5 -> 4
    row[0, :5] = f64([127, 0.4, 0.6, -2.5, 3.5])
    # scale 0.01 in the last tensor
    row[0, 80:] = f64([-1.27, 0.024, 0.006])
    expected = torch.zeros(83, dtype=torch.float64)
    expected[:5], expected[80:] = f64([127, 0, 1, -2, 4]), f64([-1.27, 0.02, 0.01])
    assert_close(decoded(Int8(), row)[0], expected)
    # floor(v + u)
    draws = torch.zeros(1, 83)
    draws[0, :5] = f64([0.9, 0.59, 0.61, 0.51, 0.49])
    expected[:5], expected[81:] = f64([127, 0, 1, -2, 3]), f64([0.02, 0.0])
    assert_close(decoded(Int8(rounding="stochastic"), row, draws)[0], expected)


def test_stochastic_int8_is_unbiased() -> None:
    made, a = Int8(rounding="stochastic"), ROWS / scales(ROWS)
    p = a - a.floor()
    inner = ROWS.abs() < 126.99 * scales(ROWS)  # the largest number itself stays where it is
    upper, lower = decoded(made, ROWS, 1 - p + 1e-9), decoded(made, ROWS, 1 - p - 1e-9)
    assert_close((p * upper + (1 - p) * lower)[inner], ROWS[inner], 1e-12)
    assert_close((upper - lower)[inner], scales(ROWS)[inner], 1e-9)
    for draws in (0 * DRAWS, DRAWS, 0 * DRAWS + 1 - 2**-53):
        sent = decoded(made, ROWS, draws)
        assert ((sent - ROWS).abs() <= scales(ROWS) * (1 + 1e-12)).all()
        assert (sent.abs() / scales(ROWS)).max() <= 127 + 1e-9


# clipping


def test_clip_shortens_updates_above_the_norm() -> None:
    rows = [[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [1.0, 0.0]]
    _, sent, memory, size = encode(Clip(norm=1.0), f64(rows), {}, None, TASK)
    assert_close(sent, [[0.6, 0.8], *rows[1:]])
    assert memory == {}
    assert size == 16


# error feedback


@pytest.mark.parametrize("spec", [spec for spec in LOSSY if codec(spec).init(X0)])
def test_residuals_are_sent_later_and_none_is_lost(spec: str) -> None:
    """The decoded updates plus the stored residual equal the sum of the updates: sum c + e."""
    made = codec(spec)
    memory, total = {"error": torch.zeros_like(ROWS)}, torch.zeros_like(ROWS)
    for t in range(5):
        rows, draws = ROWS.roll(t, 0) / (t + 1), DRAWS.roll(t, 1)
        _, sent, memory, _ = encode(made, rows, memory, draws if made.random else None, TASK)
        total += sent
    assert apart(memory["error"], torch.zeros_like(ROWS))
    assert_close(total + memory["error"], sum(ROWS.roll(t, 0) / (t + 1) for t in range(5)))


def test_half_a_million_numbers_keep_their_type() -> None:
    rows = torch.randn(3, 500_000, generator=torch.Generator().manual_seed(0))
    _, sent, memory, size = encode(TopK(share=0.01), rows, {"error": torch.zeros_like(rows)}, None, TASK)
    assert sent.dtype == memory["error"].dtype == torch.float32
    assert ((sent != 0).sum(1) == 5000).all()
    assert size == 5000 * (32 + 19) / 8

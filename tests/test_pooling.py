"""Poolings of bfloat16 by lanes: PyTorch's numbers to the bit, whatever they are, and who gets them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.core import compiled
from fedskew.core.task import Classification
from fedskew.core.vectors import ParameterSpace
from fedskew.engine import rewrite, sequential
from fedskew.engine.sequential import traced
from fedskew.loop.federation import Federation
from fedskew.models.cnn import Cnn
from tests.test_recorded import Poolings, federation, two_rounds

pooling = pytest.importorskip("fedskew.core.compiled.pooling")
aten = torch.ops.aten
PAIRS = ([2, 2], [2, 2], [0, 0], [1, 1])
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 2.0**-133])


def by_pytorch(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    largest, places = aten.max_pool2d_with_indices(x, *PAIRS)
    return largest, aten.max_pool2d_with_indices_backward(gradient, x, *PAIRS, False, places)


@pytest.mark.parametrize("shape", [(1, 16, 2, 2), (3, 48, 6, 10), (2, 32, 8, 4)])
@pytest.mark.parametrize("kind", ["drawn", "alike", "special", "negative"])
def test_numbers_are_pytorchs(shape: tuple[int, ...], kind: str) -> None:
    torch.manual_seed(0)
    x = {
        "drawn": torch.randn(shape),
        "alike": torch.randint(0, 2, shape).float(),
        "special": SPECIAL[torch.randint(0, len(SPECIAL), shape)],
        "negative": -torch.rand(shape) - 1,
    }[kind]
    x = x.bfloat16().contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(*shape[:2], shape[2] // 2, shape[3] // 2).bfloat16()
    largest, which = pooling.largest(x)
    back = pooling.handed_back(gradient, which)
    assert largest.is_contiguous(memory_format=torch.channels_last)
    assert back.is_contiguous(memory_format=torch.channels_last)
    for ours, theirs in zip((largest, back), by_pytorch(x, gradient), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_of_several_alike_it_is_the_first_and_what_is_no_number_is_the_largest() -> None:
    nan = float("nan")
    pixels = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0], [1.0, nan, 7.0, nan], [-2.0, -3.0, -4.0, -1.0]])
    x = pixels.bfloat16().view(4, 1, 2, 2).expand(4, 16, 2, 2).contiguous(memory_format=torch.channels_last)
    which = pooling.largest(x)[1]
    assert which.shape == (4, 1, 1, 16)
    assert which[:, 0, 0, 0].tolist() == [1, 0, 3, 3]


@pytest.mark.parametrize("shape", [(2, 17, 4, 4), (2, 16, 5, 4), (2, 16, 4, 5), (16, 4, 4)])
def test_other_shapes_are_pytorchs(shape: tuple[int, ...]) -> None:
    assert not pooling.fits(torch.Size(shape))
    assert pooling.fits(torch.Size((2, 16, 4, 4)))


def images(bf16: bool) -> Federation:
    fed = federation(Cnn(hidden=16).build((3, 8, 8), 4, torch.Generator().manual_seed(0)), bf16)
    return replace(fed, x=fed.x.repeat(1, 3, 1, 1))


def calls_of_pytorch(monkeypatch: pytest.MonkeyPatch, bf16: bool, threads: int) -> tuple[Tensor, int]:
    """The model after two rounds from records, and how many of their poolings PyTorch computed the derivative of."""
    before = torch.get_num_threads()
    fed = images(bf16)
    try:
        torch.set_num_threads(threads)
        two_rounds(fed, monkeypatch, 0)
        assert traced(fed.program).graphs
        with Poolings() as poolings:
            return two_rounds(fed, monkeypatch, 0), len(poolings.seen)
    finally:
        torch.set_num_threads(before)


ALL = 2 * 2 * 18
"""Rounds, poolings, steps of all clients."""


def test_steps_in_half_precision_take_it_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, calls = calls_of_pytorch(monkeypatch, bf16=True, threads=1)
    assert calls == 0
    sequential.traced.cache_clear()
    monkeypatch.setattr(rewrite, "compiled", lambda name: None)
    theirs, calls = calls_of_pytorch(monkeypatch, bf16=True, threads=1)
    assert calls == ALL
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("bf16", "threads"), [(False, 1), (True, 2)])
def test_others_do_not(monkeypatch: pytest.MonkeyPatch, bf16: bool, threads: int) -> None:
    assert calls_of_pytorch(monkeypatch, bf16, threads)[1] == ALL


def test_a_record_is_made_for_a_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = images(bf16=True)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            two_rounds(fed, monkeypatch, 0)
    finally:
        torch.set_num_threads(before)
    shapes = [key[1:] for key in traced(fed.program).graphs]
    assert [key[0] for key in traced(fed.program).graphs] == [1] * (len(shapes) // 2) + [2] * (len(shapes) // 2)


class Pooled(nn.Module):
    """One convolution and a pooling of some kind, whose places it may use."""

    stacks = True

    def __init__(self, places: bool = False, **window: int) -> None:
        super().__init__()
        self.places, self.window = places, window
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.out = nn.LazyLinear(4)
        self.forward(torch.zeros(1, 3, 8, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, places = F.max_pool2d_with_indices(self.conv(x), **self.window)
        z = z.flatten(1) + (0.01 * places.flatten(1) if self.places else 0)
        return z, self.out(z)


@pytest.mark.parametrize(
    ("window", "ours"),
    [
        ({"kernel_size": 2}, True),
        ({"kernel_size": 2, "stride": 2, "ceil_mode": True}, True),
        ({"kernel_size": 3, "stride": 2}, False),
        ({"kernel_size": 2, "stride": 1}, False),
        ({"kernel_size": 2, "padding": 1}, False),
        ({"kernel_size": 2, "dilation": 2}, False),
        ({"kernel_size": 2, "places": True}, False),
    ],
)
def test_pairs_of_pixels_take_it_and_no_other_window(
    monkeypatch: pytest.MonkeyPatch, window: dict[str, int], ours: bool
) -> None:
    torch.manual_seed(0)
    fed = replace(images(bf16=True), task=Classification(net := Pooled(**window), ParameterSpace(net), 4, bf16=True))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first = two_rounds(fed, monkeypatch, 0)
        with Poolings() as poolings:
            assert torch.equal(two_rounds(fed, monkeypatch, 0), first)
        assert bool(poolings.seen) is not ours
        sequential.traced.cache_clear()
        monkeypatch.setattr(rewrite, "compiled", lambda name: None)
        assert torch.equal(two_rounds(fed, monkeypatch, 0), first)
    finally:
        torch.set_num_threads(before)


def test_without_numba_it_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(compiled, "import_module", refuse)
    compiled.compiled.cache_clear()
    try:
        assert calls_of_pytorch(monkeypatch, bf16=True, threads=1)[1] == ALL
    finally:
        compiled.compiled.cache_clear()

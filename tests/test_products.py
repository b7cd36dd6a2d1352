"""Large products of float32 matrices take the library that is faster here, in a record or not, and are the same products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedskew.core.products import MODEL, ByOnednn, chosen, onednn_is_faster
from fedskew.core.task import Classification
from fedskew.core.vectors import ParameterSpace
from fedskew.engine.rewrite import rewritten
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.engine.trace import recorded
from fedskew.loop.evaluate import evaluate
from fedskew.loop.round import play_round, start
from tests.test_recorded import federation

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch lacks oneDNN")


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Seen(TorchDispatchMode):
    """Counts what a mode inside it hands on."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.others = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func is torch.ops.mkldnn._linear_pointwise.default
        self.others += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def faster(monkeypatch):
    monkeypatch.setattr("fedskew.core.products.onednn_is_faster", lambda: True)


PRODUCTS = {
    "product": (lambda a, b: a @ b, (128, 256), (256, 96), True),
    "transposed": (lambda a, b: a @ b.t(), (128, 256), (96, 256), True),
    "both transposed": (lambda a, b: a.t() @ b.t(), (256, 128), (96, 256), True),
    "linear": (lambda a, b: F.linear(a, b, b.view(-1)[:96]), (128, 256), (96, 256), True),
    "linear, its vector with gaps": (lambda a, b: F.linear(a, b, b[:, 0]), (128, 256), (96, 256), False),
    "small": (lambda a, b: a @ b, (16, 16), (16, 16), False),
    "one row": (lambda a, b: a @ b, (1, 2048), (2048, 2048), False),
    "with gaps": (lambda a, b: a[:, ::2] @ b, (128, 512), (256, 96), False),
    "with gaps, transposed": (lambda a, b: a[:, :256].t() @ b, (256, 512), (256, 96), False),
    "with gaps in the second": (lambda a, b: a @ b[:, :96], (128, 256), (256, 200), False),
    "a matrix added": (lambda a, b: torch.addmm(a[:, :128], a, b), (128, 256), (256, 128), False),
    "scaled": (lambda a, b: torch.addmm(b[0], a, b, alpha=2), (128, 256), (256, 128), False),
}


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_products_take_the_faster_library(monkeypatch, kind, dtype):
    """Where it is asked for, in float32; and the product is the same."""
    multiply, a, b, wanted = PRODUCTS[kind]
    a, b = numbers(*a).to(dtype), numbers(*b, seed=1).to(dtype)
    for faster in (True, False):
        monkeypatch.setattr("fedskew.core.products.onednn_is_faster", lambda faster=faster: faster)
        step = rewritten(recorded(lambda a, b: [multiply(a, b)], (a, b)), 0, 1)
        assert ("_linear_pointwise" in step.each.__self__.code) == (faster and wanted and dtype == torch.float32)
        close = {torch.float32: 1e-3, torch.float64: 1e-11}[dtype]
        ours = step.each(*step.once(a), a, b)[0].double()
        torch.testing.assert_close(ours, multiply(a.double(), b.double()), rtol=0, atol=close)
        with Seen() as seen, ByOnednn():
            ours = multiply(a, b).double()
        assert seen.products == (faster and wanted and dtype == torch.float32)
        torch.testing.assert_close(ours, multiply(a.double(), b.double()), rtol=0, atol=close)


@pytest.mark.parametrize("said", ["vendor_id : GenuineIntel", "vendor_id : AuthenticAMD"])
def test_intels_own_library_stays_on_intels_processors(monkeypatch, said):
    monkeypatch.setattr("fedskew.core.products.vendor", lambda: said)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert onednn_is_faster.__wrapped__() == ("Intel" not in said and torch.backends.mkl.is_available())
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not onednn_is_faster.__wrapped__()


def test_a_small_model_or_one_in_float64_keeps_its_calls_short(monkeypatch, faster):
    large = torch.zeros(MODEL)
    assert isinstance(chosen(large), ByOnednn)
    assert isinstance(chosen(large[:1], large[1:]), ByOnednn)
    assert not isinstance(chosen(large[1:]), ByOnednn)
    assert not isinstance(chosen(large.double()), ByOnednn)
    monkeypatch.setattr("fedskew.core.products.onednn_is_faster", lambda: False)
    assert not isinstance(chosen(large), ByOnednn)


class Wide(nn.Module):
    """A module that cannot be stacked: it reads values."""

    stacks = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 1024), nn.Linear(1024, 512)
        self.out = nn.Linear(512, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.relu(self.second(torch.relu(self.first(x.flatten(1)))))
        return z, self.out(z * float(z.isfinite().all()))


def test_images_are_evaluated_as_convolutions_are_fastest():
    """A pixel's channels side by side: the same numbers in half the time."""
    seen = []

    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(x.stride())
            return x.flatten(1), x.flatten(1)[:, :4]

    task = Classification(Looks(), ParameterSpace(nn.Linear(1, 1)), 4)
    images, labels = numbers(5, 3, 8, 8), torch.zeros(5, dtype=torch.long)
    told = evaluate(task, numbers(2), images, labels)
    assert seen == [(192, 1, 24, 3)]
    assert told["accuracy"] == float((images.flatten(1)[:, :4].argmax(1) == 0).double().mean())


def test_what_cannot_be_recorded_takes_it_too_forward_and_backward(faster):
    """Ten rows through 1024 x 512 are worth it, and both their gradients; ten through 64 x 1024 are not."""
    torch.manual_seed(0)
    net = Wide()
    fed = federation(net)
    server, states = start(fed, ParameterSpace(net).flatten(net)), ClientStates()
    with Seen() as seen:
        play_round(fed, Sequential(), server, states)
    scored = 3  # each local model once, on its rows
    assert seen.products == 3 * 18 + scored
    with Seen() as seen:
        evaluate(Classification(net, ParameterSpace(net), 4), server.x, fed.x, fed.y)
    assert seen.products == 2
    assert seen.others == 1

"""Large products of float32 matrices, by the library that is the fastest on this processor."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

PRODUCTS = (aten.mm.default, aten.addmm.default)
"""Of two matrices, and with a sum: a linear layer, forward and backward, is made of these."""

LARGE, FEW = 1 << 21, 2
"""Multiplications from which a product is worth oneDNN's longer way to its kernel, and rows below which it is a vector's."""

MODEL = 1 << 16
"""Parameters from which a model's passes are made of such products: what a smaller one costs is calls."""


def chosen(*weights: Tensor) -> AbstractContextManager[object]:
    """Within it, a model with these weights takes the faster library for its large products, forward and backward."""
    on_cpu = all(w.device.type == "cpu" and w.dtype is torch.float32 for w in weights)
    worth = on_cpu and sum(w.numel() for w in weights) >= MODEL and onednn_is_faster()
    return ByOnednn() if worth else nullcontext()


class ByOnednn(TorchDispatchMode):
    """Hands large products to oneDNN; every call costs some microseconds more."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether to guard against the compiler; the guard imports it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS and not kwargs:
            *bias, a, b = args
            vectors = all(c.shape == b.shape[1:] for c in bias)
            if vectors and all(map(dense, args)) and suits(a.shape, b.shape, a.dtype, a.device):
                return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias[0] if bias else None, "none", [], "")
        return func(*args, **(kwargs or {}))


def dense(value: Tensor) -> bool:
    """Whether a vector, a matrix or its transpose lies in memory in one piece.

    Matrices with gaps may take oneDNN hundreds of times as long, and of a vector with gaps it reads the wrong numbers.
    """
    return value.is_contiguous() or (value.dim() == 2 and value.t().is_contiguous())


def suits(a: torch.Size, b: torch.Size, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN is faster at a product of matrices of these shapes."""
    (m, k), n = a, b[1]
    return dtype is torch.float32 and device.type == "cpu" and m >= FEW and m * k * n >= LARGE and onednn_is_faster()


@cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies float32 matrices faster than the library that PyTorch calls, on this processor.

    That is MKL, which uses the 512-bit vectors of Intel's processors only: on others oneDNN is about twice as fast
    (`benchmarks/products.py`). A rule and no trial, so that a run that goes on repeats the same digits.
    """
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and "GenuineIntel" not in vendor()
    )


def vendor() -> str:
    """What the system says of the processor."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()

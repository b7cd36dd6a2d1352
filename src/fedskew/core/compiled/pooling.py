"""The largest of 2 x 2 pixels, and its derivative, for images of bfloat16 whose channels lie side by side, on one thread.

PyTorch keeps the place of the largest as a number of 64 bits, four times what it belongs to, and goes over images of bfloat16 a
number at a time. Here a place is a number from 0 to 3 in 8 bits, and 16 channels go through the processor together, which numba's
compiler does not find by itself (`benchmarks/pooling.py`). The numbers that come out are the same, also of infinities and what is
not a number. A step with images of float32 gained nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

LANES = 16
"""Channels that are handled together."""

BYTE, HALF, WORD, REAL = (
    ir.VectorType(kind, LANES) for kind in (ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType())
)
"""So many places; so many channels, of which numba, which does not know bfloat16, is handed the bits; the same as float32."""

native: Callable[..., Any] = njit(nogil=True, cache=True, error_model="numpy")


def address(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    """Where the channels from ``place`` lie."""
    data = context.make_array(kind)(context, builder, array).data
    lanes = BYTE if kind.dtype.bitwidth == 8 else HALF
    return builder.bitcast(builder.gep(data, [place]), lanes.as_pointer())


def load(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    return builder.load(address(context, builder, kind, array, place), align=kind.dtype.bitwidth // 8)


def store(context: Any, builder: Any, kind: Any, array: Any, place: Any, value: Any) -> None:
    builder.store(value, address(context, builder, kind, array, place), align=kind.dtype.bitwidth // 8)


def all_lanes(kind: Any, number: int) -> Any:
    return ir.Constant(kind, [number] * LANES)


def as_float32(builder: Any, channels: Any) -> Any:
    """bfloat16 is the upper half of a float32."""
    return builder.bitcast(builder.shl(builder.zext(channels, WORD), all_lanes(WORD, 16)), REAL)


@intrinsic  # type: ignore[untyped-decorator]
def take(typing: Any, x: Any, a: Any, b: Any, c: Any, d: Any, y: Any, which: Any, to: Any) -> Any:
    """``y[to]`` becomes the largest of ``x[a]``, ``x[b]``, ``x[c]``, ``x[d]``, and ``which[to]`` says which, for `LANES` channels.

    Of several that are alike it is the first; what is not a number is the largest.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        images, largest, places = signature.args[0], signature.args[5], signature.args[6]
        found = load(context, builder, images, arguments[0], arguments[1])
        value, place = as_float32(builder, found), all_lanes(BYTE, 0)
        for i in (1, 2, 3):
            other = load(context, builder, images, arguments[0], arguments[1 + i])
            number = as_float32(builder, other)
            better = builder.or_(
                builder.fcmp_ordered(">", number, value), builder.fcmp_unordered("uno", number, number)
            )
            found, value = builder.select(better, other, found), builder.select(better, number, value)
            place = builder.select(better, all_lanes(BYTE, i), place)
        store(context, builder, largest, arguments[5], arguments[7], found)
        store(context, builder, places, arguments[6], arguments[7], place)
        return context.get_dummy_value()

    at = types.intp
    return types.void(x, at, at, at, at, y, which, at), emit


@intrinsic  # type: ignore[untyped-decorator]
def hand_back(typing: Any, x: Any, a: Any, b: Any, c: Any, d: Any, y: Any, which: Any, to: Any) -> Any:
    """``x`` becomes ``y[to]`` at the one of its four places that ``which[to]`` names, and 0 at the others."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        images, largest, places = signature.args[0], signature.args[5], signature.args[6]
        value = load(context, builder, largest, arguments[5], arguments[7])
        place = load(context, builder, places, arguments[6], arguments[7])
        for i in range(4):
            here = builder.icmp_unsigned("==", place, all_lanes(BYTE, i))
            part = builder.select(here, value, all_lanes(HALF, 0))
            store(context, builder, images, arguments[0], arguments[1 + i], part)
        return context.get_dummy_value()

    at = types.intp
    return types.void(x, at, at, at, at, y, which, at), emit


@native
def take_all(x: Any, y: Any, which: Any, rows: int, width: int, channels: int) -> None:
    """All rows of pairs of pixels; arrays are flat, and a pixel's channels lie side by side."""
    step = width * channels
    for row in range(rows):
        for column in range(width // 2):
            a, to = 2 * row * step + 2 * column * channels, (row * (width // 2) + column) * channels
            for c in range(0, channels, LANES):
                take(x, a + c, a + channels + c, a + step + c, a + step + channels + c, y, which, to + c)


@native
def hand_all_back(x: Any, y: Any, which: Any, rows: int, width: int, channels: int) -> None:
    step = width * channels
    for row in range(rows):
        for column in range(width // 2):
            a, to = 2 * row * step + 2 * column * channels, (row * (width // 2) + column) * channels
            for c in range(0, channels, LANES):
                hand_back(x, a + c, a + channels + c, a + step + c, a + step + channels + c, y, which, to + c)


def fits(shape: torch.Size) -> bool:
    """Whether images of this shape (B, C, H, W) are handled here."""
    return len(shape) == 4 and shape[1] % LANES == shape[2] % 2 == shape[3] % 2 == 0


def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each 2 x 2 pixels of images (B, C, H, W), as (B, C, H/2, W/2), and which one it is, in 8 bits."""
    b, c, h, w = x.shape
    y = x.new_empty(b, h // 2, w // 2, c)
    which = y.new_empty(y.shape, dtype=torch.uint8)
    take_all(bits(channels_inside(x)), bits(y), which.numpy().reshape(-1), b * h // 2, w, c)
    return y.permute(0, 3, 1, 2), which


def handed_back(gradient: Tensor, which: Tensor) -> Tensor:
    """The derivative by the images, from that by their `largest` (B, C, H/2, W/2)."""
    b, h, w, c = which.shape
    x = gradient.new_empty(b, 2 * h, 2 * w, c)
    hand_all_back(bits(x), bits(channels_inside(gradient)), which.numpy().reshape(-1), b * h, 2 * w, c)
    return x.permute(0, 3, 1, 2)


def channels_inside(images: Tensor) -> Tensor:
    """Images (B, C, H, W) as (B, H, W, C), copied only where they lie otherwise."""
    return images.permute(0, 2, 3, 1).contiguous()


def bits(values: Tensor) -> NDArray[np.uint16]:
    """Numbers of bfloat16 one after the other, where they lie."""
    numbers: NDArray[np.uint16] = values.view(torch.uint16).numpy().reshape(-1)
    return numbers

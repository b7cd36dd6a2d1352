"""One look at rows of float32: their weighted sum, square lengths and square distances to the mean, added up in float64.

Only `fedskew.core.compiled.sums` asks for it.

Distances need the mean, so that a block of columns is looked at twice, the second time from cache. Two things take the time, and
both are done by hand here. Numbers become float64 eight at a time, four rows side by side, so that what belongs to a column is
read and written once for four rows. And while one pair of blocks is worked on, memory is asked for the next pair, a whole row of
it at a time: by themselves, processors look ahead along one row only, and a row of a block is short (`benchmarks/aggregation.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

F = TypeVar("F", bound=Callable[..., Any])

BLOCK = 1024
"""Columns between two looks at the same rows: of 100 clients 0.4 megabytes, so that two blocks stay in the second cache."""
LINE = 16
"""Numbers of float32 that memory hands over at once."""
LANES = 8
"""Numbers of float64 that go through the processor together."""

INDEX, DOUBLES, SINGLES = ir.IntType(32), ir.VectorType(ir.DoubleType(), LANES), ir.VectorType(ir.FloatType(), LANES)

# additions in another order, so that they go side by side; what is not finite is kept
native: Callable[[F], F] = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


# numbers side by side, which numba has no type for


class Lanes(types.Type):  # type: ignore[misc]
    """`LANES` numbers of float64."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = Lanes()


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, DOUBLES)


def defined(operation: Callable[..., Any], instruction: str) -> None:
    """Let an operation between lanes be one instruction."""

    @infer_global(operation)
    class Typed(AbstractTemplate):  # type: ignore[misc]
        def generic(self, arguments: Any, named: Any) -> Any:
            return signature(lanes, lanes, lanes) if tuple(arguments) == (lanes, lanes) else None

    @lower_builtin(operation, lanes, lanes)  # type: ignore[untyped-decorator]
    def lowered(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments)


for operation, instruction in (
    (operator.add, "fadd"),
    (operator.iadd, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
):
    defined(operation, instruction)


def address(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [place])


@intrinsic  # type: ignore[untyped-decorator]
def load(typing: Any, numbers: Any, place: Any) -> Any:
    """``numbers[place : place + LANES]``, from float32 or float64."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = signature.args[0].dtype.bitwidth
        kind = SINGLES if bits == 32 else DOUBLES
        at = builder.bitcast(address(context, builder, signature.args[0], *arguments), kind.as_pointer())
        found = builder.load(at, align=bits // 8)
        return builder.fpext(found, DOUBLES) if bits == 32 else found

    return lanes(numbers, types.intp), emit


@intrinsic  # type: ignore[untyped-decorator]
def store(typing: Any, numbers: Any, place: Any, value: Any) -> Any:
    """``numbers[place : place + LANES] = value``, of float64."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = address(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], builder.bitcast(at, DOUBLES.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(numbers, types.intp, lanes), emit


@intrinsic  # type: ignore[untyped-decorator]
def everywhere(typing: Any, number: Any) -> Any:
    """The same number in all lanes."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        empty = ir.Constant(DOUBLES, ir.Undefined)
        one = builder.insert_element(empty, arguments[0], INDEX(0))
        return builder.shuffle_vector(one, empty, ir.Constant(ir.VectorType(INDEX, LANES), [0] * LANES))

    return lanes(types.float64), emit


@intrinsic  # type: ignore[untyped-decorator]
def together(typing: Any, value: Any) -> Any:
    """The sum of the lanes."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        parts = [builder.extract_element(arguments[0], INDEX(i)) for i in range(LANES)]
        while len(parts) > 1:
            parts = [builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    return types.float64(lanes), emit


@intrinsic  # type: ignore[untyped-decorator]
def fetch(typing: Any, numbers: Any, place: Any) -> Any:
    """Ask memory for the line that holds ``numbers[place]``, without waiting for it; it may lie behind the end."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = builder.bitcast(address(context, builder, signature.args[0], *arguments), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [at.type, INDEX, INDEX, INDEX])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # to read; to be kept in all caches; data
        builder.call(call, [at, INDEX(0), INDEX(3), INDEX(1)])
        return context.get_dummy_value()

    return types.void(numbers, types.intp), emit


# the first look: sums of a column and squares of a row; the second: distances of a row


@native
def first_of_four(numbers: Any, at: int, step: int, c: int, weights: Any, ahead: int, block: Any, found: Any) -> None:
    """Rows ``c`` to ``c + 3``, whose columns begin at ``at``, ``at + step``, ...; ``ahead`` lies the row that is asked for."""
    mean, between = block
    p, q = everywhere(weights[c]), everywhere(weights[c + 1])
    r, s = everywhere(weights[c + 2]), everywhere(weights[c + 3])
    a2, b2, c2, d2 = everywhere(0.0), everywhere(0.0), everywhere(0.0), everywhere(0.0)
    for j in range(0, len(mean), LINE):
        fetch(numbers, ahead + 2 * j)
        fetch(numbers, ahead + 2 * j + LINE)
        for i in range(j, j + LINE, LANES):
            w, x = load(numbers, at + i), load(numbers, at + step + i)
            y, z = load(numbers, at + 2 * step + i), load(numbers, at + 3 * step + i)
            store(mean, i, load(mean, i) + p * w + q * x + r * y + s * z)
            store(between, i, load(between, i) + ((w + x) + (y + z)))
            a2 += w * w
            b2 += x * x
            c2 += y * y
            d2 += z * z
    found[0, c] += together(a2)
    found[0, c + 1] += together(b2)
    found[0, c + 2] += together(c2)
    found[0, c + 3] += together(d2)


@native
def second_of_four(numbers: Any, at: int, step: int, c: int, apart: float, ahead: int, block: Any, found: Any) -> None:
    mean, between = block
    a2, b2, c2, d2 = everywhere(0.0), everywhere(0.0), everywhere(0.0), everywhere(0.0)
    ae, be, ce, de = everywhere(0.0), everywhere(0.0), everywhere(0.0), everywhere(0.0)
    for j in range(0, len(mean), LINE):
        fetch(numbers, ahead + 2 * j)
        fetch(numbers, ahead + 2 * j + LINE)
        for i in range(j, j + LINE, LANES):
            m, e = load(mean, i), load(between, i)
            w, x = load(numbers, at + i) - m, load(numbers, at + step + i) - m
            y, z = load(numbers, at + 2 * step + i) - m, load(numbers, at + 3 * step + i) - m
            a2 += w * w
            b2 += x * x
            c2 += y * y
            d2 += z * z
            ae += w * e
            be += x * e
            ce += y * e
            de += z * e
    distances(found, c, together(a2), together(ae), apart)
    distances(found, c + 1, together(b2), together(be), apart)
    distances(found, c + 2, together(c2), together(ce), apart)
    distances(found, c + 3, together(d2), together(de), apart)


@native
def distances(found: Any, c: int, square: float, along: float, apart: float) -> None:
    """To the weighted mean, and from there to the plain one, which lies ``between`` away, whose square length is ``apart``."""
    found[1, c] += square
    found[2, c] += square - 2 * along + apart


@native
def first_of_one(part: Any, c: int, weight: float, block: Any, found: Any) -> None:
    (mean, between), square = block, 0.0
    for j in range(len(mean)):
        x = np.float64(part[j])
        mean[j] += weight * x
        between[j] += x
        square += x * x
    found[0, c] += square


@native
def second_of_one(part: Any, c: int, apart: float, block: Any, found: Any) -> None:
    (mean, between), square, along = block, 0.0, 0.0
    for j in range(len(mean)):
        x = np.float64(part[j]) - mean[j]
        square += x * x
        along += x * between[j]
    distances(found, c, square, along, apart)


@native
def look(numbers: Any, step: int, weights: Any, first: int, total: Any, found: Any) -> None:
    """The weighted sum of the columns from ``first``, and adds to ``found`` (3, C + 1) what they add to a `Spread`.

    Row ``c`` begins at ``numbers[c * step]``. ``found`` tells each row's square length and its square distances to the weighted
    and the plain mean; its last column begins with the square length of the weighted mean.
    """
    room, whole = np.empty((2, BLOCK)), weights.sum()
    ahead = first
    for start in range(0, len(total), BLOCK):
        width = min(BLOCK, len(total) - start)
        block = room[0, :width], room[1, :width]
        mean, between = block
        mean[:] = 0
        between[:] = 0
        at = first + start
        fours = len(weights) // 4 * 4 if width % LINE == 0 else 0
        if start % (2 * BLOCK) == 0:
            ahead = at + 2 * BLOCK
        for c in range(0, fours, 4):
            first_of_four(numbers, at + c * step, step, c, weights, ahead, block, found)
            ahead += step
        for c in range(fours, len(weights)):
            first_of_one(numbers[at + c * step : at + c * step + width], c, weights[c], block, found)
        apart, length = 0.0, 0.0
        for j in range(width):
            total[start + j] = mean[j]
            mean[j] /= whole
            length += mean[j] * mean[j]
            between[j] = between[j] / len(weights) - mean[j]
            apart += between[j] * between[j]
        found[0, len(weights)] += length
        for c in range(0, fours, 4):
            second_of_four(numbers, at + c * step, step, c, apart, ahead, block, found)
            ahead += step
        for c in range(fours, len(weights)):
            second_of_one(numbers[at + c * step : at + c * step + width], c, apart, block, found)

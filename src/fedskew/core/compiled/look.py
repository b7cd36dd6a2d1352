"""Looks at rows of float32: their weighted sum, square lengths and square distances to the mean, added up in float64.

Only `fedskew.core.compiled.sums` asks for them.

Distances need the mean, and so a second look at a block of columns, which finds it in cache. Three things take the time, and all
are done by hand here, in the instructions that numba's compiler gets. Numbers become float64 eight at a time, eight rows side by
side, so that what belongs to a column is read and written once for all of them. Memory is asked for the numbers of each row well
before their turn: by itself, a processor follows few rows. And the second look at a block goes along with the first look at the
next one, so that there is arithmetic to do while memory is waited for (`benchmarks/aggregation.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

BLOCK = 1024
"""Columns between two looks at the same rows: of 100 clients 0.4 megabytes, so that two blocks stay in the second cache."""
WIDE = 4 * BLOCK
"""Columns of a sum without a second look, whose sums of float64 stay in the first cache."""
LINE = 16
"""Numbers of float32 that memory hands over at once."""
AHEAD = 16 * LINE
"""Numbers of a row that memory is asked for before their turn."""
LANES = 8
"""Numbers of float64 that go through the processor together."""
ROWS, FEWER = 8, 2
"""Rows that are looked at together, and of those that are left: sums of more rows would not fit into a processor's registers."""

INDEX, DOUBLES, SINGLES = ir.IntType(32), ir.VectorType(ir.DoubleType(), LANES), ir.VectorType(ir.FloatType(), LANES)

# additions in another order, so that they go side by side; what is not finite is kept
native: Callable[[F], F] = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


class Arrays(NamedTuple):
    """Instructions for arrays of numbers, and for `LANES` of them at a time."""

    builder: Any

    def load(self, data: Any, place: Any) -> Any:
        """``data[place : place + LANES]`` as float64, from float32 or float64."""
        single = isinstance(data.type.pointee, ir.FloatType)
        at = self.builder.bitcast(self.builder.gep(data, [place]), (SINGLES if single else DOUBLES).as_pointer())
        found = self.builder.load(at, align=4 if single else 8)
        return self.builder.fpext(found, DOUBLES) if single else found

    def store(self, data: Any, place: Any, value: Any) -> None:
        at = self.builder.bitcast(self.builder.gep(data, [place]), DOUBLES.as_pointer())
        self.builder.store(value, at, align=8)

    def ask(self, data: Any, place: Any) -> None:
        """Memory for the line that holds ``data[place]``, without waiting for it; it may lie behind the end."""
        at = self.builder.bitcast(self.builder.gep(data, [place]), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [at.type, INDEX, INDEX, INDEX])
        call = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        # to read; to be kept in all caches; data
        self.builder.call(call, [at, INDEX(0), INDEX(3), INDEX(1)])

    def everywhere(self, data: Any, place: Any) -> Any:
        """``data[place]`` in all lanes."""
        number = self.builder.load(self.builder.gep(data, [place]))
        empty = ir.Constant(DOUBLES, ir.Undefined)
        one = self.builder.insert_element(empty, number, INDEX(0))
        return self.builder.shuffle_vector(one, empty, ir.Constant(ir.VectorType(INDEX, LANES), [0] * LANES))

    def together(self, value: Any) -> Any:
        """The sum of the lanes."""
        parts = [self.builder.extract_element(value, INDEX(i)) for i in range(LANES)]
        while len(parts) > 1:
            parts = [self.builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def nothing(self) -> Any:
        """Room for lanes, all 0."""
        room = cgutils.alloca_once(self.builder, DOUBLES)
        self.builder.store(ir.Constant(DOUBLES, None), room)
        return room

    def add(self, room: Any, value: Any) -> None:
        self.builder.store(self.builder.fadd(self.builder.load(room), value), room)

    @contextmanager
    def lines(self, width: Any, rows: list[Any]) -> Iterator[list[Any]]:
        """The columns of one line after the other, by their first of `LANES`; memory is asked for what follows in the rows."""
        count = self.builder.udiv(width, width.type(LINE))
        with cgutils.for_range(self.builder, count) as loop:
            first = self.builder.mul(loop.index, loop.index.type(LINE))
            for row in rows:
                self.ask(row, self.builder.add(first, first.type(AHEAD)))
            yield [self.builder.add(first, first.type(i)) for i in range(0, LINE, LANES)]


def rows_of(builder: Any, data: Any, at: Any, step: Any, rows: int) -> list[Any]:
    """Where each of some rows begins, the first of them at ``at``."""
    return [builder.gep(data, [builder.add(at, builder.mul(step, step.type(k)))]) for k in range(rows)]


def data_of(context: Any, builder: Any, kinds: Any, values: Any) -> list[Any]:
    """Arrays as what they point to, anything else as it is."""
    return [
        context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
        for kind, value in zip(kinds, values, strict=True)
    ]


def sum_of(rows: int) -> Any:
    """How so many rows are added up: ``(numbers, at, step, weights, width, sums)``.

    The first row begins at ``numbers[at]``, the next one ``step`` behind; the first weight is its own. Their weighted sum is
    added to ``sums`` (W,). The width divides into lines.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def added(typing: Any, numbers: Any, at: Any, step: Any, weights: Any, width: Any, sums: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data, at, step, weighing, width, sums = data_of(context, builder, signature.args, arguments)
            go, x = Arrays(builder), rows_of(builder, data, at, step, rows)
            with go.lines(width, x) as line:
                for i in line:
                    total = go.load(sums, i)
                    for k in range(rows):
                        total = builder.fadd(
                            total, builder.fmul(go.everywhere(weighing, step.type(k)), go.load(x[k], i))
                        )
                    go.store(sums, i, total)
            return context.get_dummy_value()

        return types.void(numbers, types.intp, types.intp, weights, types.intp, sums), emit

    return added


def look_twice(rows: int) -> Any:
    """How so many rows are looked at: ``(numbers, at, before, step, weights, width, now, then, found)``.

    The first look is at the block that begins at ``numbers[at]``, the second at that from ``before``. The first adds to ``now``
    (2, BLOCK) the weighted and the plain sum. The second is told by ``then`` (2, BLOCK) the weighted mean and how far from it the
    plain one lies. ``found`` (3, ROWS) becomes the first look's squares, the second's square distances to the mean, and the
    distances' products with the way to the plain mean.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def looked(
        typing: Any,
        numbers: Any,
        at: Any,
        before: Any,
        step: Any,
        weights: Any,
        width: Any,
        now: Any,
        then: Any,
        found: Any,
    ) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data, at, before, step, weighing, width, now, then, found = data_of(
                context, builder, signature.args, arguments
            )
            go = Arrays(builder)
            x, back = rows_of(builder, data, at, step, rows), builder.sub(before, at)
            sums, equal = now, builder.gep(now, [step.type(BLOCK)])
            mean, between = then, builder.gep(then, [step.type(BLOCK)])
            told = [[go.nothing() for _ in range(rows)] for _ in range(3)]
            with go.lines(width, x) as line:
                for i in line:
                    j = builder.add(i, back)
                    total, plain, m, e = go.load(sums, i), go.load(equal, i), go.load(mean, i), go.load(between, i)
                    for k in range(rows):
                        a = go.load(x[k], i)
                        total = builder.fadd(total, builder.fmul(go.everywhere(weighing, step.type(k)), a))
                        plain = builder.fadd(plain, a)
                        d = builder.fsub(go.load(x[k], j), m)
                        for room, one, other in zip(told, (a, d, d), (a, d, e), strict=True):
                            go.add(room[k], builder.fmul(one, other))
                    go.store(sums, i, total)
                    go.store(equal, i, plain)
            for i, room in enumerate(told):
                for k in range(rows):
                    builder.store(go.together(builder.load(room[k])), builder.gep(found, [step.type(i * ROWS + k)]))
            return context.get_dummy_value()

        place = types.intp
        return types.void(numbers, place, place, place, weights, place, now, then, found), emit

    return looked


add_many, add_one = sum_of(ROWS), sum_of(1)
look_at_many, look_at_fewer, look_at_one = look_twice(ROWS), look_twice(FEWER), look_twice(1)


@native
def room(count: int) -> Any:
    """Numbers of float64 at the beginning of a line of memory: of `LANES` that lie in two lines, both are read and written."""
    made = np.empty(count + LANES)
    skip = -made.ctypes.data % (LANES * made.itemsize) // made.itemsize
    return made[skip : skip + count]


@native
def add_block(numbers: Any, at: int, step: int, weights: Any, width: int, sums: Any) -> None:
    """Add to ``sums`` (W,) the weighted sum of a block of all rows, whose width divides into lines."""
    c = 0
    while c < len(weights):
        if len(weights) - c >= ROWS:
            add_many(numbers, at + c * step, step, weights[c:], width, sums)
            c += ROWS
        else:
            add_one(numbers, at + c * step, step, weights[c:], width, sums)
            c += 1


@native
def look_at_block(
    numbers: Any,
    at: int,
    before: int,
    step: int,
    weights: Any,
    width: int,
    now: Any,
    then: Any,
    apart: float,
    squares: Any,
    distances: Any,
) -> None:
    """`look_twice` at all rows: adds to ``squares`` (C,), and to ``distances`` (2, C) to the weighted and to the plain mean.

    Both blocks are ``width`` wide, which divides into lines. ``apart`` is the square distance of the two means of the block before.
    """
    told, c = np.empty((3, ROWS)), 0
    while c < len(weights):
        rows = ROWS
        if len(weights) - c >= ROWS:
            look_at_many(numbers, at + c * step, before + c * step, step, weights[c:], width, now, then, told)
        elif len(weights) - c >= FEWER:
            rows = FEWER
            look_at_fewer(numbers, at + c * step, before + c * step, step, weights[c:], width, now, then, told)
        else:
            rows = 1
            look_at_one(numbers, at + c * step, before + c * step, step, weights[c:], width, now, then, told)
        for k in range(rows):
            squares[c + k] += told[0, k]
            distances[0, c + k] += told[1, k]
            distances[1, c + k] += told[1, k] - 2 * told[2, k] + apart
        c += rows


@native
def look_at_blocks(numbers: Any, step: int, weights: Any, first: int, width: int, total: Any, found: Any) -> None:
    """`look` at columns that divide into blocks of a width that divides into lines."""
    clients, whole, apart = len(weights), weights.sum(), 0.0
    squares, distances, nowhere = found[0], found[1:], np.empty((2, clients))
    now, then = room(2 * BLOCK).reshape((2, BLOCK)), room(2 * BLOCK).reshape((2, BLOCK))
    then[:] = 0
    before = first
    for at in range(first, first + len(total), width):
        now[:] = 0
        # there is no block before the first one
        look_at_block(
            numbers, at, before, step, weights, width, now, then, apart, squares, distances if at > first else nowhere
        )
        apart, length = 0.0, 0.0
        for j in range(width):
            total[at - first + j] = now[0, j]
            mean = now[0, j] / whole
            between = now[1, j] / clients - mean
            length += mean * mean
            apart += between * between
            then[0, j], then[1, j] = mean, between
        squares[clients] += length
        before = at
    # and none behind the last
    look_at_block(numbers, before, before, step, weights, width, now, then, apart, nowhere[0], distances)


@native
def padded(numbers: Any, step: int, clients: int, first: int, width: int) -> Any:
    """Columns that do not fill a line, and 0 behind them, which changes no sum."""
    room = np.zeros((clients, LINE), np.float32)
    for c in range(clients):
        room[c, :width] = numbers[c * step + first : c * step + first + width]
    return room.ravel()


@native
def look(numbers: Any, step: int, weights: Any, first: int, total: Any, found: Any) -> None:
    """The weighted sum of the columns from ``first``, and adds to ``found`` (3, C + 1) what they add to a `Spread`.

    Row ``c`` begins at ``numbers[c * step]``. ``found`` tells each row's square length and its square distances to the weighted
    and the plain mean; its last column begins with the square length of the weighted mean.
    """
    blocks, lines = len(total) // BLOCK * BLOCK, len(total) // LINE * LINE
    if blocks:
        look_at_blocks(numbers, step, weights, first, BLOCK, total[:blocks], found)
    if lines > blocks:
        look_at_blocks(numbers, step, weights, first + blocks, lines - blocks, total[blocks:lines], found)
    if len(total) > lines:
        rest, sums = padded(numbers, step, len(weights), first + lines, len(total) - lines), np.empty(LINE, total.dtype)
        look_at_blocks(rest, LINE, weights, 0, LINE, sums, found)
        total[lines:] = sums[: len(total) - lines]


@native
def add_up(numbers: Any, step: int, weights: Any, first: int, total: Any) -> None:
    """The weighted sum of the columns from ``first``."""
    sums, lines = room(WIDE), len(total) // LINE * LINE
    for start in range(0, lines, WIDE):
        width = min(WIDE, lines - start)
        sums[:] = 0
        add_block(numbers, first + start, step, weights, width, sums)
        total[start : start + width] = sums[:width]
    if len(total) > lines:
        sums[:] = 0
        add_block(padded(numbers, step, len(weights), first + lines, len(total) - lines), 0, LINE, weights, LINE, sums)
        total[lines:] = sums[: len(total) - lines]

"""Instructions for numbers in rows, as numba's compiler gets them, and what the loops over rows need besides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])

LINE = 16
"""Numbers of float32 that memory hands over at once."""
AHEAD = 32 * LINE
"""Numbers of a row that memory is asked for before their turn."""
LANES = 8
"""Numbers of float64 that go through the processor together, and half of those of float32: a line."""
ROWS = 8
"""Rows that are looked at together: sums of more would not fit into a processor's registers."""

INDEX, DOUBLES, SINGLES = ir.IntType(32), ir.VectorType(ir.DoubleType(), LANES), ir.VectorType(ir.FloatType(), LINE)

INSTRUCTIONS = sha256(Path(__file__).read_bytes()).hexdigest()


class Kept(FunctionCache):  # type: ignore[misc]
    """Compiled loops, for as long as these instructions are the same: numba itself looks only at the file that a loop is in."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return *super()._index_key(sig, codegen), INSTRUCTIONS


def loops(fastmath: set[str]) -> Callable[[F], F]:
    def compiled(function: F) -> F:
        made: Any = njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)
        made._cache = Kept(function)
        return made

    return compiled


# additions in another order, so that they go side by side; what is not finite is kept
native = loops({"reassoc", "contract"})
# in the order that is written, which a mean in two numbers needs: together, the second would be lost in the first
in_order = loops({"contract"})


class Arrays(NamedTuple):
    """Instructions for arrays of numbers, and for a vector of them at a time: `DOUBLES` or `SINGLES`."""

    builder: Any

    def vector(self, data: Any, place: Any, kind: Any) -> Any:
        """What is in an array from a place on; it may lie anywhere in memory."""
        at = self.builder.bitcast(self.builder.gep(data, [place]), kind.as_pointer())
        return self.builder.load(at, align=4 if kind.element == SINGLES.element else 8)

    def load(self, data: Any, place: Any) -> Any:
        """``data[place : place + LANES]`` as float64, from float32 or float64."""
        found = self.vector(data, place, ir.VectorType(data.type.pointee, LANES))
        return found if found.type == DOUBLES else self.builder.fpext(found, DOUBLES)

    def store(self, data: Any, place: Any, value: Any) -> None:
        at = self.builder.bitcast(self.builder.gep(data, [place]), value.type.as_pointer())
        self.builder.store(value, at, align=4)

    def ask(self, data: Any, place: Any) -> None:
        """Memory for the line that holds ``data[place]``, without waiting for it; it may lie behind the end."""
        at = self.builder.bitcast(self.builder.gep(data, [place]), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [at.type, INDEX, INDEX, INDEX])
        call = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        # to read; to be kept in all caches but the first, which has no room for so many rows; data
        self.builder.call(call, [at, INDEX(0), INDEX(2), INDEX(1)])

    def everywhere(self, data: Any) -> Any:
        """A float64 in all lanes. It is read where it is needed: to keep one of every row would take too many registers."""
        number = self.builder.load(data)
        empty = ir.Constant(DOUBLES, ir.Undefined)
        one = self.builder.insert_element(empty, number, INDEX(0))
        return self.builder.shuffle_vector(one, empty, ir.Constant(ir.VectorType(INDEX, LANES), [0] * LANES))

    def room(self, kind: Any) -> Any:
        """A vector that changes, and begins as 0."""
        room = cgutils.alloca_once(self.builder, kind)
        self.builder.store(kind(None), room)
        return room

    def add_product(self, room: Any, one: Any, other: Any) -> None:
        self.builder.store(self.builder.fadd(self.builder.load(room), self.builder.fmul(one, other)), room)

    def sum(self, room: Any) -> Any:
        """The sum of a vector's numbers in float64: one after the other, each addition would wait for the one before."""
        found = self.builder.load(room)
        wide = ir.VectorType(DOUBLES.element, found.type.count)
        found = found if found.type == wide else self.builder.fpext(found, wide)
        kind = ir.FunctionType(wide.element, [wide.element, wide])
        name = f"llvm.vector.reduce.fadd.v{wide.count}f64"
        call = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(call, [wide.element(0), found], fastmath=("reassoc",))

    @contextmanager
    def lines(self, width: Any, rows: list[Any]) -> Iterator[Any]:
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


@contextmanager
def kernel(context: Any, builder: Any, kinds: Any, values: Any) -> Iterator[Any]:
    """A function of its own: its builder, and what ``values`` are in it. The compiler then has all registers for its loop."""
    given = data_of(context, builder, kinds, values)
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
    made = ir.Function(builder.module, kind, builder.module.get_unique_name("fedskew.look"))
    made.linkage = "internal"
    made.attributes.add("noinline")
    builder.call(made, given)
    inside = ir.IRBuilder(made.append_basic_block())
    yield inside, made.args
    inside.ret_void()


@native
def room(count: int) -> Any:
    """Numbers of float64 at the beginning of a line of memory: of `LANES` that lie in two lines, both are read and written."""
    made = np.empty(count + LANES)
    skip = -made.ctypes.data % (LANES * made.itemsize) // made.itemsize
    return made[skip : skip + count]


@native
def padded(numbers: Any, step: int, clients: int, first: int, width: int) -> Any:
    """Columns that do not fill a line, and 0 behind them, which changes no sum."""
    room = np.zeros((clients, LINE), np.float32)
    for c in range(clients):
        room[c, :width] = numbers[c * step + first : c * step + first + width]
    return room.ravel()

"""Exact sums of floating-point numbers. Rows split over sites in any way give the same mean and deviation, to the last bit."""

import math
from collections.abc import Iterable
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SPLIT = 2.0**27 + 1
"""Veltkamp's factor: it halves the digits of a number, so that products of the halves are exact."""

MOST_POWER, MOST_PARTS = 1100, 10_000
"""Limits of `Moments`: no floating-point numbers have a larger power, or need more parts."""

BLOCK = 1 << 14
"""Numbers that are added at a time: they stay in the processor's cache."""


class Moments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What mean and deviation need of ``rows`` numbers: exact sums of the numbers and of their squares, divided by 2^``power``.

    An exact sum is a list of numbers that add up to it. ``low`` and ``high`` are the smallest and the largest number.
    """

    rows: int = 0
    power: int = 0
    sum: tuple[float, ...] = ()
    squares: tuple[float, ...] = ()
    low: float = math.inf
    high: float = -math.inf

    def __post_init__(self) -> None:
        """Refuse what no numbers give, in a message of another machine: it could take all memory or overflow."""
        if (
            not 0 <= self.rows < 1 << 50
            or abs(self.power) > MOST_POWER
            or max(len(self.sum), len(self.squares)) > MOST_PARTS
        ):
            raise ValueError("moments of no numbers")
        total, squares = math.fsum(self.sum), math.fsum(self.squares)
        if not (abs(total) <= self.rows and -1e-9 <= squares <= self.rows and (not self.rows or self.low <= self.high)):
            raise ValueError("moments of no numbers")
        if self.rows and not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError("moments of no numbers")


def moments(values: Floats) -> Moments:
    """The moments of finite numbers (n,)."""
    if not len(values):
        return Moments()
    low, high = float(values.min()), float(values.max())
    # divide by a power of two, which changes no digit: squares of large numbers would overflow
    power = int(np.frexp(max(-low, high))[1])
    scaled = np.ldexp(values, -power)
    a = SPLIT * scaled
    a = a - (a - scaled)
    b = scaled - a
    return Moments(
        rows=len(values),
        power=power,
        sum=exact_sum(scaled),
        squares=tuple(part for product in (a * a, 2 * a * b, b * b) for part in exact_sum(product)),
        low=low,
        high=high,
    )


def exact_sum(values: Floats) -> tuple[float, ...]:
    """A few numbers that add up to exactly the sum of these, which are at most 1 in size (Rump, Ogita and Oishi 2008).

    Each pass takes the leading digits of all numbers, on a grid on which their sum has no rounding error.
    """
    if len(values) > BLOCK:
        blocks = np.split(values, range(BLOCK, len(values), BLOCK))
        return exact_sum(np.array([part for block in blocks for part in exact_sum(block)]))
    found = []
    while len(values) and (largest := float(np.abs(values).max())):
        grid = math.ldexp(1, math.frexp(largest * (len(values) + 2))[1])
        leading = (grid + values) - grid
        found.append(float(leading.sum()))
        values = values - leading
    return tuple(found)


def mean_and_deviation(parts: Iterable[Moments]) -> tuple[float, float]:
    """Mean and standard deviation of the numbers of all parts together; the order of the parts does not matter."""
    held = [part for part in parts if part.rows]
    rows, power = sum(part.rows for part in held), max(part.power for part in held)
    total = sum((exact(part.sum, part.power - power) for part in held), Fraction())
    squares = sum((exact(part.squares, 2 * (part.power - power)) for part in held), Fraction())
    mean = total / rows
    variance = max(squares / rows - mean * mean, Fraction())
    return math.ldexp(float(mean), power), math.ldexp(root(variance), power)


def exact(parts: Iterable[float], power: int) -> Fraction:
    """The sum of the parts times 2^power."""
    return sum(map(Fraction, parts), Fraction()) * Fraction(2) ** power


def root(square: Fraction) -> float:
    """The square root of a number that may be too small for floating point."""
    if not square:
        return 0.0
    half = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(square / Fraction(4) ** half), half)

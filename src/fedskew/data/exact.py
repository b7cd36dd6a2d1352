"""Exact sums of floating-point numbers. Mean and deviation are bit-identical however rows are split over sites."""

import math
from collections.abc import Iterable
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SPLIT = 2.0**27 + 1
"""Veltkamp's factor. It splits a number into two halves of its digits; products of halves are exact."""

MOST_POWER, MOST_PARTS = 1100, 10_000
"""Limits of `Moments`. No valid moments have a larger power or more parts."""

BLOCK = 1 << 14
"""Number of values that are added at a time, so that they fit into the processor's cache."""


class Moments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The moments of ``rows`` numbers, from which mean and deviation follow.

    ``sum`` and ``squares`` are exact sums of the numbers and of their squares, after division of the numbers by 2^``power``.
    Each is a list of numbers that add up to the sum. ``low`` and ``high`` are the smallest and the largest number.
    """

    rows: int = 0
    power: int = 0
    sum: tuple[float, ...] = ()
    squares: tuple[float, ...] = ()
    low: float = math.inf
    high: float = -math.inf

    def __post_init__(self) -> None:
        """Raise `ValueError` for impossible moments, which another machine might send to use up memory or cause overflow."""
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
    """Return the moments of finite numbers (n,)."""
    if not len(values):
        return Moments()
    low, high = float(values.min()), float(values.max())
    # squares of large numbers would overflow; division by a power of two is exact
    power = int(np.frexp(max(-low, high))[1])
    scaled = np.ldexp(values, -power)
    a = SPLIT * scaled
    a = a - (a - scaled)
    b = scaled - a
    total = exact(exact_sum(scaled), power)
    squares = sum((exact(exact_sum(product), 2 * power) for product in (a * a, 2 * a * b, b * b)), Fraction())
    # a power and parts that follow from the sums alone: the power of the largest number would tell that number
    power = math.frexp(root(squares / len(values)))[1]
    scale = Fraction(2) ** power
    return Moments(
        rows=len(values),
        power=power,
        sum=parts_of(total / scale),
        squares=parts_of(squares / scale**2),
        low=low,
        high=high,
    )


def parts_of(number: Fraction) -> tuple[float, ...]:
    """Return floating-point numbers, the largest first, that add up to ``number`` exactly. It must be a sum of powers of 2."""
    found = []
    # a rest too small for floating point is left out
    while part := float(number):
        found.append(part)
        number -= Fraction(part)
    return tuple(found)


def exact_sum(values: Floats) -> tuple[float, ...]:
    """Return a few numbers whose exact sum is the exact sum of ``values`` (Rump, Ogita and Oishi 2008).

    Absolute values must be at most 1. Each pass takes the leading digits of all numbers, which add up without rounding error.
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
    """Return mean and standard deviation of the numbers of all parts together, in any order of the parts."""
    held = [part for part in parts if part.rows]
    rows, power = sum(part.rows for part in held), max(part.power for part in held)
    total = sum((exact(part.sum, part.power - power) for part in held), Fraction())
    squares = sum((exact(part.squares, 2 * (part.power - power)) for part in held), Fraction())
    mean = total / rows
    variance = max(squares / rows - mean * mean, Fraction())
    return math.ldexp(float(mean), power), math.ldexp(root(variance), power)


def exact(parts: Iterable[float], power: int) -> Fraction:
    """Return the sum of the parts times 2^power."""
    return sum(map(Fraction, parts), Fraction()) * Fraction(2) ** power


def root(square: Fraction) -> float:
    """Return the square root of a fraction, which may be too small for floating point."""
    if not square:
        return 0.0
    half = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(square / Fraction(4) ** half), half)

"""Which columns differ between clients, for whom, and by how much."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.stats import norm

from fedskew.measure.heterogeneity.rows import Floats, Ints

LEVEL = 0.01
"""Probability that chance puts any column into the list, about: the level of all tests together (Bonferroni)."""

SMALL = 0.2
"""Smallest effect that is listed, in standard deviations of all rows (Cohen's "small")."""

MOST = 5
"""Number of listed columns."""


Kind: TypeAlias = Literal["mean", "share", "missing"]
Fact: TypeAlias = tuple[str, Kind, str, Floats]
"""Of each row: a column's number, or 1 if the column holds a word, or 1 if its value is missing; NaN where it is not known."""


@dataclass(frozen=True)
class Difference:
    """A column's mean, or share of rows, of one client and of all other clients. ``effect``: in standard deviations of all rows.

    ``each`` holds the effect of every client that is beyond chance, and 0 of the others.
    """

    column: str
    kind: Kind
    word: str
    client: str
    here: float
    elsewhere: float
    effect: float
    each: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        """As a sentence."""
        if self.kind == "mean":
            way = "higher" if self.effect > 0 else "lower"
            return (
                f"{self.column} is {way} in {self.client}: mean {self.here:,.4g}, elsewhere {self.elsewhere:,.4g} "
                f"({abs(self.effect):.1f} standard deviations)"
            )
        fact = "is missing" if self.kind == "missing" else f"is {self.word}"
        return f"{self.column} {fact} in {percent(self.here)} of {self.client}'s rows, elsewhere in {percent(self.elsewhere)}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def differences(facts: Iterable[Fact], client: Ints, names: Sequence[str]) -> list[Difference]:
    """The columns that differ most, with the client that is farthest from all others. Client numbers are below ``len(names)``.

    A column is listed once, if its difference is beyond chance and not `SMALL`.
    """
    found: dict[str, Difference] = {}
    tests = 0
    for column, kind, word, all_values in facts:
        known = np.isfinite(all_values)
        values, owner = all_values[known], client[known]
        rows = np.bincount(owner, minlength=len(names))
        deviation = float(values.std()) if len(values) else 0.0
        tests += len(names)
        if not deviation or not math.isfinite(deviation):
            continue
        total = np.bincount(owner, weights=values, minlength=len(names))
        others = len(values) - rows
        with np.errstate(divide="ignore", invalid="ignore"):
            here, elsewhere = total / rows, (values.sum() - total) / others
            # chance is unknown for clients with one row, and with all rows but one
            z = np.abs(here - elsewhere) / deviation / np.sqrt(1 / rows + 1 / others)
            effect = np.where((rows > 1) & (others > 1), (here - elsewhere) / deviation, 0.0)
        effect = np.where(z > norm.isf(LEVEL / 2 / tests), effect, 0.0)
        far = int(np.argmax(np.abs(effect)))
        before = found.get(column)
        if abs(effect[far]) >= SMALL and (before is None or abs(before.effect) < abs(effect[far])):
            numbers = (float(here[far]), float(elsewhere[far]), float(effect[far]))
            found[column] = Difference(column, kind, word, names[far], *numbers, tuple(effect.tolist()))
    return sorted(found.values(), key=lambda one: -abs(one.effect))[:MOST]

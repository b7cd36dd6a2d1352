"""A claim: a statistic of several arms of an experiment, computed for each seed, and the region in which it must lie."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedskew.claims.quantities import Measured, counted, curve, quantity
from fedskew.core.errors import BadInput, require, suggestion
from fedskew.measure.statistics import LEVEL, Floats, alike, mean_interval, paired_p

Verdict = Literal["holds", "fails", "undecided", "not run"]
Arms = Sequence[float]


@dataclass(frozen=True)
class Region:
    """The region in which the statistic must lie. Open ends are infinite."""

    low: float
    high: float

    @classmethod
    def read(cls, text: str) -> Region:
        """Parse ``> 0``, ``< 0.03`` or ``0.5..2``."""
        number = r"\s*(-?[0-9.]+(?:e-?[0-9]+)?)\s*"
        if found := re.fullmatch(rf"([<>]){number}", text):
            value = float(found[2])
            return cls(value, math.inf) if found[1] == ">" else cls(-math.inf, value)
        found = re.fullmatch(rf"{number[:-3]}\.\.{number}", text)
        if not found or not float(found[1]) < float(found[2]):
            raise BadInput(f"claim: cannot read {text!r}; write '> 0', '< 0.03' or '0.5..2'")
        return cls(float(found[1]), float(found[2]))

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"> {self.low:g}"
        return f"< {self.high:g}" if math.isinf(self.low) else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Evidence:
    """The numbers behind a verdict.

    values: one a seed; ``mean`` and ``half`` are their mean and the half-width of its 95 % interval.
    inside: whether the mean lies in the claimed region.
    p: of the test that the true mean lies on this side of the region's ends. 0 for counted numbers, which have no chance; NaN
        for fewer than two seeds, and if a seed lacks the number.
    in_document: the statistic of the document's own numbers.
    """

    values: tuple[float, ...]
    mean: float
    half: float
    inside: bool
    p: float
    in_document: float | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A document's statement about the quantity ``of`` in some ``arms``. Its statistic must lie in the region ``expect``.

    ``kind`` names the statistic: one of `STATISTICS`, one of `OVER_ROUNDS` (for two curves), or ``correlation``.
    """

    name: str
    text: str
    where: str
    table: str
    kind: str
    of: str
    arms: tuple[str, ...]
    expect: str
    against: str = ""

    def __post_init__(self) -> None:
        kinds = [*STATISTICS, *OVER_ROUNDS, "correlation"]
        require(self.kind in kinds, f"claim {self.name}: unknown kind {self.kind!r}; {suggestion(self.kind, kinds)}")
        fewest = 2 if self.kind in OVER_ROUNDS else FEWEST.get(self.kind, 2)
        require(len(self.arms) >= fewest, f"claim {self.name}: {self.kind} needs at least {fewest} arms")
        require(
            bool(self.against) == (self.kind == "correlation"), f"claim {self.name}: `against` belongs to correlation"
        )
        Region.read(self.expect)

    @property
    def counted(self) -> bool:
        """True if the settings alone determine its number, without chance."""
        return {self.of, self.against or self.of} <= counted()

    def statistic(self, runs: Sequence[Measured]) -> float:
        """Compute the statistic of one seed from its run of each arm."""
        if self.kind in OVER_ROUNDS:
            return OVER_ROUNDS[self.kind](*(curve(self.of, run) for run in runs[:2]))
        own = [quantity(self.of, run) for run in runs]
        if self.kind == "correlation":
            return spearman(own, [quantity(self.against, run) for run in runs])
        return STATISTICS[self.kind](own)

    def described(self) -> str:
        """Describe the statistic: ``difference of accuracy (a; b)``."""
        of = f"{self.of} and {self.against}" if self.against else self.of
        arms = self.arms if len(self.arms) <= 4 else (self.arms[0], f"{len(self.arms) - 2} more", self.arms[-1])
        return f"{self.kind} of {of} ({'; '.join(arms)})"

    def printed(self, numbers: Mapping[str, Mapping[str, float]]) -> float | None:
        """Compute the statistic of the document's own numbers, by arm; None if it does not print all of them."""
        if self.kind in OVER_ROUNDS or any(self.of not in numbers.get(arm, {}) for arm in self.arms):
            return None
        own = [numbers[arm][self.of] for arm in self.arms]
        if self.kind != "correlation":
            return STATISTICS[self.kind](own)
        if any(self.against not in numbers[arm] for arm in self.arms):
            return None
        return spearman(own, [numbers[arm][self.against] for arm in self.arms])


def evidence_for(claim: Claim, values: Sequence[float], in_document: float | None = None) -> Evidence:
    """Test if the values (one for each seed) are inside or outside the claimed region.

    Each finite end is a paired test of its own, as in a table of methods. A mean inside the region needs all of them, so the
    largest p counts. Outside, the p of the end that it has crossed counts.
    """
    region = Region.read(claim.expect)
    mean, half = mean_interval(values) if values else (math.nan, math.nan)
    ends = {end: beyond(values, end) for end in (region.low, region.high) if math.isfinite(end)}
    crossed = [end for end, away in ends.items() if sum(away) * (1 if end == region.low else -1) < 0]
    p = max((paired_p(ends[end]) for end in crossed or ends), default=math.nan)
    if claim.counted and len(values) > 1 and alike(np.asarray(values)):
        crossed, p = [end for end, away in ends.items() if end in crossed or not any(away)], 0.0
    return Evidence(tuple(values), mean, half, not crossed, p, in_document)


def beyond(values: Sequence[float], end: float) -> list[float]:
    """Return the values minus an end of the region. A value that differs from the end only by rounding gives 0."""
    return [0.0 if math.isclose(value, end, rel_tol=1e-9) else value - end for value in values]


def judge(evidence: Evidence, p: float) -> Verdict:
    """Return ``undecided`` unless ``p``, corrected for all claims, is below 0.05; else ``holds`` or ``fails``."""
    if not evidence.values:
        return "not run"
    if not p < LEVEL:
        return "undecided"
    return "holds" if evidence.inside else "fails"


def spearman(a: Arms, b: Arms) -> float:
    from scipy import stats

    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return float(stats.spearmanr(a, b).statistic)


def kendall(values: Arms) -> float:
    """Return Kendall's tau of the values with their order: 1 if they always rise, -1 if they always fall."""
    signs = np.sign(np.asarray(values)[None, :] - np.asarray(values)[:, None])
    pairs = len(values) * (len(values) - 1) / 2
    return float(np.triu(signs, 1).sum() / pairs)


def over(a: float, b: float) -> float:
    return a / b if b else math.nan


STATISTICS: dict[str, Callable[[Arms], float]] = {
    "value": lambda q: q[0],
    "difference": lambda q: q[0] - q[1],
    "ratio": lambda q: over(q[0], q[1]),
    "interaction": lambda q: (q[0] - q[1]) - (q[2] - q[3]),
    "ratio of ratios": lambda q: over(over(q[0], q[1]), over(q[2], q[3])),
    "trend": kendall,
    "spread": lambda q: max(q) - min(q),
    "lead": lambda q: q[0] - max(q[1:]),
    "lag": lambda q: q[0] - min(q[1:]),
}
"""Statistics of the arms' quantities, in the order of the arms.

``interaction`` is (1st - 2nd) - (3rd - 4th). ``trend`` is Kendall's tau of the quantity along the arms. ``lead`` is the first minus
the largest of the others, ``lag`` the first minus the smallest. ``correlation``, which is not here, is Spearman's of two quantities
over the arms.
"""

FEWEST = {"value": 1, "interaction": 4, "ratio of ratios": 4, "trend": 3, "correlation": 3}


def together(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    rounds = min(len(a), len(b))
    require(rounds > 0, "claim: there are no rounds to compare")
    return a[:rounds], b[:rounds]


def share_above(a: Floats, b: Floats) -> float:
    a, b = together(a, b)
    return float((a > b).mean())


def largest_gap(a: Floats, b: Floats) -> float:
    a, b = together(a, b)
    return float(np.abs(a - b).max())


OVER_ROUNDS: dict[str, Callable[[Floats, Floats], float]] = {
    "share of rounds": share_above,
    "largest gap": largest_gap,
}
"""Statistics that compare the curves of two arms: the share of rounds in which the first is larger, and the largest gap."""

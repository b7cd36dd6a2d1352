"""A document's experiments and claims, as its TOML file describes them. A claim tests a statistic of several arms."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Literal, SupportsFloat

import msgspec
import numpy as np

from fedskew.claims.quantities import OF_CLIENTS, Measured, counted, curve, quantity, words_for
from fedskew.core.errors import BadInput, require, suggestion
from fedskew.measure.statistics import LEVEL, Floats, alike, flipped_p, mean_interval, paired_p

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
        if end := re.fullmatch(rf"([<>]){number}", text):
            value = float(end[2])
            return cls(value, math.inf) if end[1] == ">" else cls(-math.inf, value)
        ends = re.fullmatch(rf"{number[:-3]}\.\.{number}", text)
        if not ends or not float(ends[1]) < float(ends[2]):
            raise BadInput(f"claim: cannot read {text!r}; write '> 0', '< 0.03' or '0.5..2'")
        return cls(float(ends[1]), float(ends[2]))

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"> {self.low:g}"
        return f"< {self.high:g}" if math.isinf(self.low) else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Support:
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

    ``kind`` names the statistic: one of `STATISTICS`, or one of `OVER_ROUNDS` (for two curves).
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
        kinds = [*STATISTICS, *OVER_ROUNDS]
        require(self.kind in kinds, f"claim {self.name}: unknown kind {self.kind!r}; {suggestion(self.kind, kinds)}")
        fewest = 2 if self.kind in OVER_ROUNDS else FEWEST.get(self.kind, 2)
        require(len(self.arms) >= fewest, f"claim {self.name}: {self.kind} needs at least {fewest} arms")
        if bool(self.against) != (self.kind == "correlation"):
            raise BadInput(f"claim {self.name}: `against` belongs to correlation")
        Region.read(self.expect)

    @property
    def counted(self) -> bool:
        """True if the settings alone determine its number, without chance."""
        return {*self.quantities} <= counted()

    def statistic(self, runs: Sequence[Measured]) -> float:
        """Compute the statistic of one seed from its run of each arm."""
        if self.kind in OVER_ROUNDS:
            a, b = (curve(self.of, run)[1] for run in runs[:2])
            rounds = min(len(a), len(b))
            require(rounds > 0, "claim: there are no rounds to compare")
            return float(OVER_ROUNDS[self.kind](a[:rounds], b[:rounds]))
        return STATISTICS[self.kind](*([quantity(name, run) for run in runs] for name in self.quantities))

    @property
    def quantities(self) -> list[str]:
        """The quantities that the statistic needs of each arm."""
        return [name for name in (self.of, self.against) if name]

    def described(self) -> str:
        """Describe the statistic: ``difference of accuracy (a; b)``."""
        of = " and ".join(map(words_for, self.quantities))
        arms = self.arms if len(self.arms) <= 4 else (self.arms[0], f"{len(self.arms) - 2} more", self.arms[-1])
        return f"{self.kind} of {of} ({'; '.join(arms)})"

    def printed(self, numbers: Mapping[str, Mapping[str, float]]) -> float | None:
        """Compute the statistic of the document's own numbers, by arm; None if it does not print all of them."""
        if self.kind in OVER_ROUNDS or any(not {*self.quantities} <= {*numbers.get(arm, {})} for arm in self.arms):
            return None
        return STATISTICS[self.kind](*([numbers[arm][name] for arm in self.arms] for name in self.quantities))


def evidence_for(claim: Claim, values: Sequence[float], in_document: float | None = None) -> Support:
    """Test if the values (one for each seed) are inside or outside the claimed region.

    Each finite end is a paired test of its own, as in a table of methods. A mean inside the region needs all of them, so the
    largest p counts. Outside, the p of the end that it has crossed counts.
    """
    region = Region.read(claim.expect)
    mean, half = mean_interval(values)
    ends = {end: beyond(values, end) for end in (region.low, region.high) if math.isfinite(end)}
    crossed = [end for end, away in ends.items() if sum(away) * (1 if end == region.low else -1) < 0]
    test = flipped_p if len(values) in SIGNED else paired_p
    p = max((test(ends[end]) for end in crossed or ends), default=math.nan)
    if claim.counted and len(values) > 1 and alike(np.asarray(values)):
        crossed, p = [end for end, away in ends.items() if end in crossed or not any(away)], 0.0
    return Support(tuple(values), mean, half, not crossed, p, in_document)


SIGNED = range(11, 17)
"""Numbers of seeds for which p comes from all choices of signs. With fewer seeds not even agreement of all could decide one of
50 claims; with more, Student's t is as good and the choices are too many."""


def beyond(values: Sequence[float], end: float) -> list[float]:
    """Return the values minus an end of the region. A value that differs from the end only by rounding gives 0."""
    return [0.0 if math.isclose(value, end, rel_tol=1e-9) else value - end for value in values]


def judge(evidence: Support, p: float) -> Verdict:
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


STATISTICS: dict[str, Callable[..., float]] = {
    "value": lambda q: q[0],
    "difference": lambda q: q[0] - q[1],
    "ratio": lambda q: over(q[0], q[1]),
    "interaction": lambda q: (q[0] - q[1]) - (q[2] - q[3]),
    "ratio of ratios": lambda q: over(over(q[0], q[1]), over(q[2], q[3])),
    "trend": kendall,
    "spread": lambda q: max(q) - min(q),
    "lead": lambda q: q[0] - max(q[1:]),
    "lag": lambda q: q[0] - min(q[1:]),
    "correlation": spearman,
}
"""Statistics of the arms' quantities, in the order of the arms.

``interaction`` is (1st - 2nd) - (3rd - 4th). ``trend`` is Kendall's tau of the quantity along the arms. ``lead`` is the first minus
the largest of the others, ``lag`` the first minus the smallest. ``correlation`` is Spearman's of two quantities over the arms.
"""

FEWEST = {"value": 1, "interaction": 4, "ratio of ratios": 4, "trend": 3, "correlation": 3}


OVER_ROUNDS: dict[str, Callable[[Floats, Floats], SupportsFloat]] = {
    "share of rounds": lambda a, b: (a > b).mean(),
    "largest gap": lambda a, b: np.abs(a - b).max(),
}
"""Statistics that compare the curves of two arms over the rounds that both have: the share of rounds in which the first is larger,
and the largest gap."""


DOCUMENTS = ("drift-demo", "iid-to-noniid", "fedpbs", "failure-modes", "dualmetric", "contradictions")


Settings = dict[str, Any]
"""Values by SECTION.OPTION, as in TOML."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A scale of the experiments: the settings that all arms share (``base``), and the number of seeds.

    ``arms`` has changes for some arms at this scale. ``parts`` are changes for several arms; an arm names one as its ``part``.
    ``level`` is the test accuracy in claims about ``rounds-to:level``. ``seeded`` replaces the document's ``seeded``. ``surrogate``
    names the data that replace the document's data; its printed numbers are then not comparable.
    """

    seeds: int
    base: Settings
    arms: dict[str, Settings] = field(default_factory=dict)
    parts: dict[str, Settings] = field(default_factory=dict)
    seeded: tuple[str, ...] = ()
    first_seed: int = 0
    level: float = 0.0
    surrogate: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One drawing of a figure, of some arms of its table (by default all).

    ``kind`` is ``curves`` (``of`` over the rounds, a line for each arm), ``bars`` (``of`` by arm), ``clients`` (the measure ``of``
    over the rounds, a line for each client; one arm), ``layers`` (the measure ``of`` over the rounds, a figure for each layer, a
    line for each arm), or ``partition`` (rows by client and label; one arm). ``band`` is the 95 % interval over the seeds, or
    their range. ``lowest`` circles the lowest point of each line. ``first`` is the number of clients drawn (0: all).
    """

    kind: Literal["curves", "bars", "clients", "layers", "partition"]
    of: str = ""
    arms: tuple[str, ...] = ()
    title: str = ""
    band: Literal["interval", "range"] = "interval"
    lowest: bool = False
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class ClaimTable:
    """A table or figure of a document: arms (rows), quantities (columns), and the numbers that the document prints.

    A ``matrix`` has its first quantity only. Its rows are the names of the arms up to their last comma, and its columns the rest.
    With ``compare``, quantities are the rows and arms the columns; the last column is this statistic of the second and first.
    ``clients`` names the measures of each client or layer, as ``split/name``, that its quantities or panels need. ``panels`` are
    the drawings of its figures, ``extra`` a part that is drawn without runs. ``notes`` say what differs from the document here,
    and where the document contradicts itself. A table without arms may have ``words``: the titles of the columns after the first,
    then rows of texts, unless its ``extra`` computes the rows.
    """

    name: str
    title: str
    arms: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    printed: dict[str, dict[str, float]] = field(default_factory=dict)
    matrix: bool = False
    compare: Literal["", "difference", "ratio"] = ""
    clients: tuple[str, ...] = ()
    panels: tuple[Panel, ...] = ()
    extra: str = ""
    notes: tuple[str, ...] = ()
    words: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        whole = all(len(row) == len(self.words[0]) + 1 for row in self.words[1:])
        require(whole and not (self.words and self.measures), f"table {self.name}: words need a text for every column")
        known(f"table {self.name}: measures of clients", self.clients, OF_CLIENTS)
        for panel in self.panels:
            known(f"table {self.name}: panel {panel.of}", panel.arms, self.arms)
            alone, drawn = panel.kind in ("clients", "partition"), self.drawn(panel)
            if alone and len(drawn) != 1:
                raise BadInput(f"table {self.name}: a panel of {panel.kind} needs one arm; name it in arms")
            if panel.kind in ("clients", "layers"):
                known(f"table {self.name}: a panel of {panel.kind}", [panel.of], self.clients)

    def drawn(self, panel: Panel) -> tuple[str, ...]:
        """Return the arms that a panel draws."""
        return panel.arms or self.arms


@dataclass(frozen=True, kw_only=True)
class Document:
    """The experiments and claims of one document."""

    name: str
    title: str
    scales: dict[str, Scale]
    arms: dict[str, Settings]
    tables: tuple[ClaimTable, ...]
    claims: tuple[Claim, ...]
    seeded: tuple[str, ...] = ("training.seed", "clients.partition_seed")
    open: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [table.name for table in self.tables]
        parts = [arm["part"] for arm in self.arms.values() if "part" in arm]
        for scale in self.scales.values():
            known(f"document {self.name}: a scale", list(scale.arms), self.arms)
            known(f"document {self.name}: an arm's part", parts, scale.parts)
        for table in self.tables:
            known(f"document {self.name}: table {table.name}", [*table.arms, *table.printed], self.arms)
        for claim in self.claims:
            known(f"document {self.name}: claim {claim.name}", claim.arms, self.arms)
            known(f"document {self.name}: claim {claim.name}", [claim.table], names)
        if len({claim.name for claim in self.claims}) < len(self.claims):
            raise BadInput(f"document {self.name}: a claim appears twice")

    @property
    def extras(self) -> list[str]:
        """The parts that need no run store, by their names in `fedskew.claims.extras`."""
        return [table.extra for table in self.tables if table.extra]

    def scale(self, name: str) -> Scale:
        """Return the scale of this name. Raises `BadInput` if there is none."""
        scales = ", ".join(self.scales)
        require(name in self.scales, f"reproduce: {self.name} has no scale {name!r}; known are: {scales}")
        return self.scales[name]

    def at(self, scale: str) -> Document:
        """Return the document with ``rounds-to:level`` in its claims replaced by the scale's level."""
        of = f"rounds-to:{self.scale(scale).level:g}"
        claims = tuple(replace(c, of=of) if c.of == "rounds-to:level" else c for c in self.claims)
        return replace(self, claims=claims)

    def only(self, table: str) -> Document:
        """Return the document with only this table, the claims about it, and the arms that these need."""
        names = [t.name for t in self.tables]
        require(table in names, f"reproduce: {self.name} has no table {table!r}; {suggestion(table, names)}")
        tables = tuple(t for t in self.tables if t.name == table)
        claims = tuple(c for c in self.claims if c.table == table)
        needed = {arm for arms in [*(t.arms for t in tables), *(c.arms for c in claims)] for arm in arms}

        def of_needed(arms: dict[str, Settings]) -> dict[str, Settings]:
            return {name: settings for name, settings in arms.items() if name in needed}

        scales = {name: replace(scale, arms=of_needed(scale.arms)) for name, scale in self.scales.items()}
        return replace(self, scales=scales, arms=of_needed(self.arms), tables=tables, claims=claims)


def known(where: str, names: Iterable[str], catalogue: Container[str]) -> None:
    for name in names:
        require(name in catalogue, f"{where}: there is no {name!r}")


def load(name: str) -> Document:
    """Load a document by its name in `DOCUMENTS`. Raises `BadInput` for any other name."""
    require(name in DOCUMENTS, f"reproduce: unknown document {name!r}; {suggestion(name, DOCUMENTS)}")
    text = (files("fedskew.claims") / "documents" / f"{name}.toml").read_text(encoding="utf-8")
    return document_from(tomllib.loads(text), name)


def document_from(table: Mapping[str, object], where: str) -> Document:
    """Make a document from nested plain values. Raises `BadInput` if they are not valid."""
    try:
        return msgspec.convert(dict(table), Document)
    except msgspec.ValidationError as error:
        raise BadInput(f"document {where}: {error}") from None

"""Numbers as text for readers: percentages, intervals, differences, lists."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fedskew.core.groups import grouped
from fedskew.core.text import capital
from fedskew.measure.registry import Measure

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup


Row = dict[str, Any]
"""A row of the summary, by column."""

MISSING = "–"
EDGE = 1e-9
"""An interval may exceed its range by this rounding error."""


class Spread(NamedTuple):
    """A kind of spread: how much a number varies over seeds."""

    column: str  # ending of its columns in the summary
    title: str

    @property
    def unbroken(self) -> str:
        """The title with a no-break space before the percent sign."""
        return self.title.replace(" %", "\u00a0%")


SPREADS = {
    "ci95": Spread("half", "95 % interval"),
    "std": Spread("std", "standard deviation"),
    "sem": Spread("sem", "standard error"),
}


def within(measure: Measure, stated: float) -> str:
    """Format a margin with its unit: ``1 point``."""
    unit = ("point" if stated == 1 else "points") if measure.unit == "%" else measure.unit
    return f"{stated:g} {unit}".strip()


def share(value: float) -> str:
    """Format a share (0..1) as percent with one decimal, without the percent sign."""
    return f"{100 * value:.1f}" if math.isfinite(value) else MISSING


def breakable(name: str) -> Markup:
    """Return the name as HTML in which a line may break after a colon or comma."""
    from markupsafe import Markup

    return Markup(re.sub("([:,])", r"\1<wbr>", str(Markup.escape(name))))


def unbroken(text: str, names: Sequence[str]) -> Markup:
    """Return the text as HTML in which no line breaks within one of the ``names``, if there is room."""
    from markupsafe import Markup

    breakable_ones = sorted((name for name in names if not name.isalnum()), key=len, reverse=True)
    if not breakable_ones:
        return Markup.escape(text)
    parts = re.split(rf"(?<!\w)({'|'.join(map(re.escape, breakable_ones))})(?!\w)", text)
    return Markup("").join(
        Markup("<span class=name>{}</span>").format(part) if i % 2 else part for i, part in enumerate(parts)
    )


def interval(
    mean: float, half_width: float, show: Callable[[float], str] = share, low: float = 0.0, high: float = 1.0
) -> str:
    """Format a mean with its interval: ``92.5 ± 1.2``.

    An interval that leaves ``low``..``high`` is cut: ``57.7 (0 to 100)``. Without a finite half-width, only the mean is shown.
    """
    if not (math.isfinite(mean) and math.isfinite(half_width)):
        return show(mean)
    bottom, top = mean - half_width, mean + half_width
    if bottom < low - EDGE or top > high + EDGE:
        ends = (re.sub(r"\.0+$", "", show(end)) for end in (max(bottom, low), min(top, high)))
        return f"{show(mean)} ({' to '.join(ends)})"
    return f"{show(mean)} ± {half(show(half_width).lstrip('+'), half_width)}"


def cell_text(measure: Measure, row: Row, spread: str = "ci95") -> str:
    """Format a measure in a row of the summary with its spread: ``92.5 ± 1.2``; shares in percent, without the percent sign.

    A measure of rounds that is always zero counts as missing, such as the distance between models if there is one client. For a
    target that not all seeds reach, it is their number: ``never in 1 of 3``.
    """
    mean = row[measure.key]
    if never := row.get(f"{measure.key}_never", 0):
        return f"never in {never} of {row['seeds']}"
    if measure.split == "round" and mean == 0:
        return MISSING
    half_width = row.get(f"{measure.key}_{SPREADS[spread].column}", math.nan)
    show = share if measure.unit == "%" else partial(figures, like=mean)
    if spread != "ci95":
        return interval(mean, half_width, show, -math.inf, math.inf)
    return with_interval(measure, mean, half_width).removesuffix(measure.unit).rstrip()


def with_interval(measure: Measure, mean: float, half_width: float) -> str:
    """Format a value with interval and unit: ``92.5 ± 1.2 %``."""
    show = share if measure.unit == "%" else partial(figures, like=mean)
    return f"{interval(mean, half_width, show, measure.low, measure.high)}\u00a0{measure.unit}".strip()


def difference(measure: Measure, row: Row, show: Callable[[float], str] | None = None, spread: str = "ci95") -> str:
    """Format a method's difference from the first in the primary ``measure``, with its spread: ``+1.2 ± 0.4``.

    ``row`` is a row of the summary. ``show`` formats a difference of shares; by default in points with one decimal.
    """
    share_of_one, half_width = measure.unit == "%", row[f"difference_{SPREADS[spread].column}"]
    show = show or signed if share_of_one else partial(gap, measure)
    low, high = (-1.0, 1.0) if share_of_one and spread == "ci95" else (-math.inf, math.inf)
    return interval(row["difference"], half_width, show, low, high)


def heading(measure: Measure) -> str:
    """Return title and unit: ``accuracy %``."""
    return f"{measure.title} {measure.unit}".strip()


def note(measure: Measure) -> str:
    """Return a measure's note as a figure's caption, without the range 0..1 and without the setting that enables it."""
    text = re.sub(r"(, 0\.\.1|,? if `[^`]*` asks for it)", "", measure.note).replace("`", "")
    return capital(text)


def plain(measure: Measure, number: float) -> str:
    """Format a value without its unit: ``92.5``."""
    return share(number) if measure.unit == "%" else figures(number)


def value(measure: Measure, number: float) -> str:
    """Format a value with its unit: ``92.5 %``."""
    return f"{plain(measure, number)}\u00a0{measure.unit}".strip()


def gap(measure: Measure, number: float) -> str:
    """Format a difference with its sign; a difference of shares in percentage points."""
    return points(number) if measure.unit == "%" else f"{'+' if number > 0 else ''}{figures(number)}"


def half(text: str, value: float) -> str:
    """Return the rounded half-width ``text``; ``<0.01`` if rounding turned a positive ``value`` into 0."""
    return f"<{text[:-1]}1" if value > 0 and not re.search("[1-9]", text) else text


def signed(value: float, digits: int = 1) -> str:
    """Format a difference of shares in percentage points, with sign and ``digits`` decimals."""
    return f"{100 * value:+.{digits}f}".replace("-", "−") if math.isfinite(value) else MISSING


def points(value: float) -> str:
    """Format a difference of shares in percentage points, with sign and two decimals."""
    return signed(value, 2)


def figures(value: float, like: float | None = None) -> str:
    """Format a number with three significant digits, or with as many decimals as ``like`` would get.

    Below 0.001 and from 10 million on, the format is scientific.
    """
    like = value if like is None else like
    if not (math.isfinite(value) and math.isfinite(like)):
        return MISSING
    size = math.floor(math.log10(abs(like))) if like else 0
    if not -3 <= size <= 6:
        return f"{value:.2e}".replace("-", "−")
    return f"{value:z,.{max(2 - size, 0)}f}".replace(",", "\u202f").replace("-", "−")


def ranges(numbers: Sequence[int]) -> str:
    """Format numbers as sorted ranges: ``0–3, 7``."""
    # in a range, number and place rise together
    parts = grouped((number - place, number) for place, number in enumerate(sorted({*numbers}))).values()
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


def rows_of(table: pd.DataFrame) -> list[Row]:
    """Return the rows of a table as dictionaries from column to value."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False)]


def duration(seconds: float) -> str:
    """Format seconds: ``95`` gives ``1 min 35 s``."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"

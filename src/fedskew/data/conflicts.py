"""Sites whose columns do not fit together: missing ones, other types, other words, other units.

Each message says what to write into the site's ``NAME.columns.toml`` (see `fedskew.data.mapping`).
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

from fedskew.core.errors import BadInput, suggestion
from fedskew.core.units import are_codes, unit_factor, usual_factor
from fedskew.data.exact import mean_and_deviation
from fedskew.data.summaries import MOSTLY_NUMBERS, ColumnSummary, Summary

ALIKE = 0.8
"""Two words of at least this similarity (difflib) may be one, spelled differently."""

FEWEST = 10
"""A site's unit is judged from this number of rows on."""

KINDS = {"number": "numbers", "time": "times", "text": "words"}

Parts = Mapping[str, ColumnSummary]
"""A column at each site that holds it."""


def check(sites: Mapping[str, Summary]) -> None:
    """Raise `BadInput` for the first column that a site lacks, or that has another type there."""
    names = list(dict.fromkeys(chain.from_iterable(site.columns for site in sites.values())))
    for name in names:
        for where, site in sites.items():
            if name not in site.columns:
                spare = [own for own in site.columns if sum(own in other.columns for other in sites.values()) == 1]
                near = suggestion(name, spare) if spare else ""
                raise BadInput(
                    f"{where}: no column {name!r}, which other sites have{f'; {near}' if near else ''}; in NAME.columns.toml "
                    f'write [rename] ITS-NAME = "{name}", or absent = ["{name}"] if it has none'
                )
        check_types(name, held_by(sites, name))


def check_types(name: str, held: Parts) -> None:
    types = Counter(part.type for part in held.values())
    known, valid = sum(part.numbers.rows for part in held.values()), sum(part.valid for part in held.values())
    if len(types) < 2 or (types.keys() == {"number", "text"} and known >= MOSTLY_NUMBERS * valid):
        return
    most = types.most_common(1)[0][0]
    where, own = next((where, part) for where, part in held.items() if part.type != most)
    other = next(part for part in held.values() if part.type == most)
    raise BadInput(
        f"{where}: column {name!r} holds {shown(own)}, and other sites {shown(other)}; change its cells, or map them in "
        f'NAME.columns.toml: [words.{key(name)}] CELL = "WORD"'
    )


def key(name: str) -> str:
    """The name as a key of TOML."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else f'"{name}"'


def shown(part: ColumnSummary) -> str:
    """What the column holds, with a word of it."""
    kind = KINDS.get(part.type, part.type)
    return f"{kind}, such as {next(iter(part.words))!r}" if part.words else kind


def held_by(sites: Mapping[str, Summary], name: str) -> dict[str, ColumnSummary]:
    """The column at each site where it is not empty."""
    return {where: site.columns[name] for where, site in sites.items() if site.columns[name].valid}


def doubts(sites: Mapping[str, Summary]) -> list[str]:
    """Words and units that may be the same thing written in two ways, one line each, with what to write."""
    found: list[str] = []
    for name in next(iter(sites.values())).columns:
        held = held_by(sites, name)
        found += [*other_words(name, held), *other_units(name, held)]
    return found


def other_words(name: str, held: Parts) -> Iterator[str]:
    """Words that one site alone holds and that resemble a word which it lacks."""
    sites = Counter(word for part in held.values() for word in part.words)
    for where, part in held.items():
        others = [word for word in sites if word not in part.words]
        for word in (own for own in part.words if sites[own] == 1):
            near = resembling(word, others)
            if near:
                yield (
                    f"{where}: column {name!r} holds {word!r}, and other sites {near!r}; if these are one, write "
                    f'[words.{key(name)}] {key(word)} = "{near}" in one site\'s NAME.columns.toml'
                )


def resembling(word: str, others: list[str]) -> str:
    """Another word that may mean the same, or an empty string."""
    plain = {re.sub(r"\W|_", "", other.casefold()): other for other in others}
    own = re.sub(r"\W|_", "", word.casefold())
    if own in plain:
        return plain[own]
    if not own or own.isdecimal():
        return ""
    longer = [other for key, other in plain.items() if key.startswith(own) or (key and own.startswith(key))]
    near = difflib.get_close_matches(own, plain, n=1, cutoff=ALIKE)
    return longer[0] if len(longer) == 1 else plain[near[0]] if near and not near[0].isdecimal() else ""


def other_units(name: str, held: Parts) -> Iterator[str]:
    """Sites with numbers a constant factor apart from all other sites' numbers."""
    parts = {where: part for where, part in held.items() if part.type == "number" and part.numbers.rows}
    known = {where: part.numbers for where, part in parts.items()}
    ends = [end for own in known.values() for end in (own.low, own.high)]
    if known and are_codes(all(part.whole for part in parts.values()), min(ends), max(ends)):
        return
    for where, own in known.items():
        rest = [other for place, other in known.items() if place != where]
        if own.rows < FEWEST or not rest:
            continue
        (mean, deviation), (other, spread) = mean_and_deviation([own]), mean_and_deviation(rest)
        factor = unit_factor(mean, other, deviation, spread, own.rows)
        if factor:
            usual, units = usual_factor(factor)
            yield (
                f"{where}: column {name!r} is {factor:.3g} times as large as elsewhere (mean {mean:,.4g} and {other:,.4g}), as "
                f"in another unit{f', {units}' if units else ''}; if so: [units] {key(name)} = {1 / usual:.4g} in NAME.columns.toml"
            )

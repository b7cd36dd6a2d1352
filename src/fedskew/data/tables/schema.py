"""Decide what each column is (`kind_of`), and find conflicts between sites' columns: missing ones, other types, words or units.

Three steps decide whether a column is one of numbers. Each site takes the first two:

    fedskew.data.tables.files     `typed` makes numbers of a column's cells if all are numbers. `fedskew.data.tables.mapping` first
                                  reads cells that are spelt in another way, such as 1.200,5. Otherwise the column stays text.
    fedskew.data.tables.guard     `of_column` notes the type, and how many cells of a text are numbers (`columns.numbers`)
    fedskew.data.tables.schema    `kind_of` pools the sites. If a site has text, `MOSTLY_NUMBERS` of all cells must be numbers.
                                  Otherwise the column is text if all sites have text, and `check` refuses a mixture.

Each message says what to write into the site's ``NAME.columns.toml`` (see `fedskew.data.tables.mapping`).
"""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.text import count
from fedskew.core.units import are_codes, from_most, unit_factor, usual_factor, within
from fedskew.data.preprocessing import TEXT_WIDTH, Column, Number, Tabular, Text, Words
from fedskew.data.tables.columns import Columns
from fedskew.data.tables.mapping import MOSTLY_NUMBERS, entry, key, quoted
from fedskew.data.tables.summaries import CATEGORIES, ColumnSummary, Summary, fit, pooled

ALIKE = 0.8
"""Two words with at least this similarity (difflib) may be two spellings of one word."""

FEWEST = 10
"""Minimum number of rows of a site for a comparison of its unit."""

NUMBER = re.compile(r"[-+]?[\d.,]+")
KINDS = {"number": "numbers", "time": "times", "time with a zone": "times", "text": "words"}

Parts = Mapping[str, ColumnSummary]
"""One column's summary, by site."""


def check(sites: Mapping[str, Summary]) -> None:
    """Raise `BadInput` for the first column that a site does not have, or that has another type there."""
    numbers_of_sites = Counter(chain.from_iterable(site.columns for site in sites.values()))
    for name in numbers_of_sites:
        for where, site in sites.items():
            if name not in site.columns:
                spare = [column for column in site.columns if numbers_of_sites[column] == 1]
                near = suggestion(name, spare) if spare else ""
                raise BadInput(
                    f"{where}: no column {name!r}, which other sites have{f'; {near}' if near else ''}; in NAME.columns.toml "
                    f"write {entry('rename', 'ITS-NAME', name)}; or absent = [{quoted(name)}] if it has none"
                )
        check_types(name, held_by(sites, name))


def check_types(name: str, parts: Parts) -> None:
    types = Counter(part.type for part in parts.values())
    numbers, valid = sum(part.numbers.rows for part in parts.values()), sum(part.valid for part in parts.values())
    if len(types) < 2 or (types.keys() == {"number", "text"} and numbers >= MOSTLY_NUMBERS * valid):
        return
    most = max(types, key=lambda kind: (types[kind], kind != "text"))
    where, odd = next((where, part) for where, part in parts.items() if part.type != most)
    other = next(part for part in parts.values() if part.type == most)
    if odd.type == "text":
        raise BadInput(misfit(where, name, odd.words, most))
    raise BadInput(
        f"{where}: column {name!r} holds {content_of(odd)}, but at other sites {content_of(other)}; change its cells, or in "
        f"NAME.columns.toml write {entry(f'words.{key(name)}', 'CELL', 'WORD')}"
    )


def misfit(where: str, name: str, words: Iterable[str], usual: str, kind: str = "text") -> str:
    """Say that a site's column holds another kind of cells than at other sites, and what to write.

    ``words`` are some of them; there may be none. ``usual`` is what other sites hold, and ``kind`` what this one does, as in
    `ColumnSummary.type`.
    """
    words = list(words)
    decimal = next((word for word in words if re.fullmatch(r"[-+]?\d+,\d+", word)), "")
    other = next((word for word in words if not re.fullmatch(r"[-+]?\d+([.,]\d+)?", word)), "WORD")
    if usual != "number":
        form = "%Y%m%d" if kind == "number" else "%d/%m/%Y"
        cure = f"write dates as 2020-01-31, or in NAME.columns.toml {entry('dates', name, form)}"
    elif decimal:
        cure = f"write {decimal.replace(',', '.')}, or separate its cells by semicolons, not commas"
    elif kind != "text":
        cure = "write numbers at all sites, or dates such as 2020-01-31"
    else:
        cure = f"in NAME.columns.toml write {entry(f'words.{key(name)}', other, '')}; then this word is a missing value"
    such = f", such as {decimal or other!r}" if words else ""
    return f"{where}: column {name!r} holds {KINDS.get(kind, kind)}{such}, but at other sites {KINDS.get(usual, usual)}; {cure}"


def content_of(part: ColumnSummary) -> str:
    """Describe what the column holds, with one of its words."""
    kind = KINDS.get(part.type, part.type)
    return f"{kind}, such as {next(iter(part.words))!r}" if part.words else kind


def held_by(sites: Mapping[str, Summary], name: str) -> dict[str, ColumnSummary]:
    """Return the column's summary for each site where it is not empty."""
    return {where: site.columns[name] for where, site in sites.items() if site.columns[name].valid}


def doubts(sites: Mapping[str, Summary]) -> list[str]:
    """Return one line for each pair of words or units that may mean the same, with the entry that would unify them."""
    lines: list[str] = []
    for name in next(iter(sites.values())).columns:
        parts = held_by(sites, name)
        words = {where: part.words for where, part in parts.items()}
        lines += [*other_words(name, words), *other_units(name, parts)]
        by_frequency = [sorted(counts, key=lambda word: -counts[word]) for counts in words.values()]
        lines += dict.fromkeys(line for site_words in by_frequency for line in spelt_twice(name, site_words))
    return lines


def other_words(name: str, of_sites: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield a line for each site with words that resemble words of other sites, see `alike`.

    ``of_sites`` are the words of the column ``name``, by site.
    """
    for where, pairs in alike(of_sites).items():
        both, (first, *others) = "both" if len(pairs) == 1 else "they", pairs.items()
        yield (
            f"{where}: column {name!r} holds {spelt(pairs)}; if {both} mean the same, write "
            f"{entry(f'words.{key(name)}', *first, *others)} in one site's NAME.columns.toml"
        )
    for where, foreign in other_language(name, of_sites).items():
        yield f"{where}: column {name!r} holds {foreign}"


def other_language(name: str, of_sites: Mapping[str, Collection[str]], fewest: int = 1) -> dict[str, str]:
    """Return, by site, a line on words that are as many as the usual words of a column, but none of these.

    Words that are `alike` count as one. Half of the sites, and at least ``fewest`` of them, hold the usual words.
    """
    pairs = alike(of_sites)
    sets = {at: frozenset(pairs.get(at, {}).get(word, word) for word in words) for at, words in of_sites.items()}
    [(usual, places)] = Counter(words for words in sets.values() if len(words) > 1).most_common(1) or [(frozenset(), 0)]
    enough = places >= max(fewest, len(sets) / 2)
    return {
        where: f"{spelt(dict(zip(sorted(words), sorted(usual), strict=True)))}; if they mean the same, map each word: in "
        f"NAME.columns.toml write {entry(f'words.{key(name)}', min(words), 'WORD')}"
        for where, words in sets.items()
        if enough and len(words) == len(usual) and usual.isdisjoint(words)
    }


def alike(of_sites: Mapping[str, Collection[str]]) -> dict[str, dict[str, str]]:
    """Return, by site, each word that resembles a word of other sites, with that word: the usual spelling.

    ``of_sites`` has the words of a column. No site has both spellings. The usual one is at more sites; of equals, it is longer.
    """
    held_by: dict[str, set[str]] = {}
    for where, words in of_sites.items():
        for word in words:
            held_by.setdefault(word, set()).add(where)

    place = {word: (len(places), len(word), word) for word, places in held_by.items()}

    def usual(word: str) -> str:
        others = [other for other in held_by if not held_by[other] & held_by[word]]
        near = resembling(word, others) or resembling(word, [other for other in others if len(held_by[other]) > 1])
        return near if near and place[word] < place[near] else ""

    spellings = {word: near for word in held_by if (near := usual(word))}
    pairs = {where: {word: spellings[word] for word in words if word in spellings} for where, words in of_sites.items()}
    return {where: words for where, words in pairs.items() if words}


def spelt(pairs: Mapping[str, str]) -> str:
    """Name both spellings of words, as far as they fit into a line."""
    odd, usual = (", ".join(map(repr, side))[:80] for side in (pairs, pairs.values()))
    return f"{odd}, but at other sites {usual}"


def spelt_twice(name: str, words: Iterable[str]) -> Iterator[str]:
    """Yield a line if words of one column differ only in capital letters or punctuation: the first of them is to stay.

    ``words`` come from one file.
    """
    first: dict[str, str] = {}
    both = [(word, first.setdefault(plain_word(word), word)) for word in words if plain_word(word)]
    pairs = [(word, other) for word, other in both if word != other and not NUMBER.fullmatch(word)]
    if pairs:
        examples = ", ".join(f"{other!r} and {word!r}" for word, other in pairs)
        yield (
            f"column {name!r} holds {examples}; if both mean the same, in NAME.columns.toml write "
            f"{entry(f'words.{key(name)}', *pairs[0], *pairs[1:])}"
        )


def resembling(word: str, others: list[str]) -> str:
    """Return another word that may mean the same; empty if there is none, and for numbers."""
    if NUMBER.fullmatch(word):
        return ""
    plain = {plain_word(other): other for other in others}
    letters = plain_word(word)
    if letters in plain:
        return plain[letters]
    if not letters or letters.isdecimal():
        return ""
    longer = [other for key, other in plain.items() if key.startswith(letters) or (key and letters.startswith(key))]
    same_digits = [key for key in plain if re.sub(r"\D", "", key) == re.sub(r"\D", "", letters)]
    near = difflib.get_close_matches(letters, same_digits, n=1, cutoff=ALIKE)
    return longer[0] if len(longer) == 1 else plain[near[0]] if near and not near[0].isdecimal() else ""


def plain_word(word: str) -> str:
    """Return the word in small letters without punctuation. Signs that tell classes of numbers apart stay: <=50K and >50K."""
    return re.sub(r"[^\w<>=+-]|_", "", word.casefold())


def other_units(name: str, of_sites: Parts) -> Iterator[str]:
    """Yield a line for each site whose numbers differ from all other sites' numbers by a constant factor."""
    parts = {where: part for where, part in of_sites.items() if part.type == "number" and part.numbers.rows}
    moments = {where: part.numbers for where, part in parts.items()}
    ends = [end for here in moments.values() for end in (here.low, here.high)]
    if moments and are_codes(all(part.whole for part in parts.values()), min(ends), max(ends)):
        return
    for where, here in moments.items():
        rest = [other for place, other in moments.items() if place != where]
        if here.rows < FEWEST or not rest:
            continue
        others = pooled(rest)
        spread = within([other.rows for other in rest], [other.deviation for other in rest])
        factor = unit_factor(here.mean, others.mean, here.deviation, spread, here.rows)
        if factor and from_most(here.mean, [other.mean for other in rest], factor):
            usual, units = usual_factor(factor)
            yield (
                f"{where}: column {name!r} is {factor:.3g} times as large as elsewhere (mean {here.mean:,.4g} and "
                f"{others.mean:,.4g}); if it has another unit{f', {units}' if units else ''}, write "
                f"{entry('units', name, 1 / usual)} in NAME.columns.toml"
            )


NAMES_SITES = (
    "an input, though each client has one value of its own; if it only names the client, leave it out: drop={}"
)
"""A note on a column of this name."""

Kind: TypeAlias = tuple[Column | None, str]
"""The preprocessing of a column, not yet fitted (None: left out), and a note for the user (may be empty)."""


MANY_IDS = 20
"""Minimum number of rows for the note that all whole numbers of a column are different."""


def kinds_of(sites: Mapping[str, Summary]) -> dict[str, Kind]:
    """Decide what each column is, from the summaries of all rows. Raises `BadInput` if sites do not fit together.

    Two rules look at each site separately. A column is left out if it numbers the rows at every site, or if at every site all
    its texts are different single words.
    """
    first, *_ = sites
    check(sites)
    return {name: kind_of(name, [s.columns[name] for s in sites.values()]) for name in sites[first].columns}


def merged(sites: Mapping[str, Summary], target: str = "", kinds: Mapping[str, Kind] | None = None) -> Columns:
    """Fit the preprocessing of all sites' rows. One table with all rows would give the same; means and scales agree to 1e-12.

    ``kinds`` says what each column is, if these are not all rows of the sites' files. Raises `BadInput` if sites do not fit
    together, and if no column can be used.
    """
    first, *_ = sites
    columns: list[Column] = []
    notes: list[str] = []
    for name, (kind, note) in (kinds or kinds_of(sites)).items():
        parts = [site.columns[name] for site in sites.values()]
        if kind:
            columns.append(fit(kind, parts))
        if lines := "; ".join(filter(None, (note, gaps_in(kind, parts) if kind else ""))):
            notes.append(f"column {name!r}: {lines}")
    require(
        bool(columns), f"{first}: no column besides label and client can be used: {'; '.join(notes) or 'there is none'}"
    )
    return Columns(Tabular(columns=tuple(columns), target=target), (*notes, *doubts(sites)))


def gaps_in(kind: Column, parts: Sequence[ColumnSummary]) -> str:
    """Say how many values are missing; empty if none is."""
    if isinstance(kind, Number):
        missing = sum(part.rows - part.numbers.rows for part in parts)
        return f"{missing} missing or not numbers, set to the mean and marked" if missing else ""
    missing = sum(part.rows - part.valid for part in parts)
    return f"{count(missing, 'value')} missing, all zeros" if missing else ""


def kind_of(name: str, parts: Sequence[ColumnSummary]) -> Kind:
    """Decide what a column is: numbers, classes, times, or left out with the reason.

    ``parts`` are the summaries of all sites. A column of text is one of numbers if most of its cells can be read as numbers.
    """
    filled = [part for part in parts if part.valid] or parts[:1]
    rows, valid = sum(part.rows for part in parts), sum(part.valid for part in parts)
    numbers = pooled(part.numbers for part in filled)
    if filled[0].type not in KINDS:
        return None, f"left out, {filled[0].type} is neither number nor text"
    if not valid:
        return None, "left out, it is empty"
    if all(part.type == "text" for part in filled) and numbers.rows < MOSTLY_NUMBERS * valid:
        return kind_of_texts(name, filled, rows - valid)
    if not numbers.rows:
        return None, "left out, it holds no finite number"
    if all(part.numbered for part in filled):
        return None, (
            f"left out, it numbers the rows; if it is a quantity, in NAME.columns.toml write {entry('units', name, 1)}"
        )
    if numbers.low == numbers.high and numbers.rows == rows:
        return None, "left out, all values are the same"
    spellings, has_times = {part.spelling for part in parts} - {""}, any(part.type == "time" for part in parts)
    spelling = spellings.pop() if len(spellings) == 1 else ""
    number = Number(name=name, marked=True, time=has_times, spelling=spelling)
    if rows >= MANY_IDS and all(part.unique and part.type == "number" for part in filled):
        return number, "an input, though each row has another whole number; if it is an id, remove it from the file"
    return number, of_site(name, filled)


def of_site(name: str, parts: Sequence[ColumnSummary]) -> str:
    """Return a note if each of several files has one value of its own, which may be the site's name; otherwise an empty text."""
    values = {frozenset(part.words or map(str, (part.numbers.low, part.numbers.high))) for part in parts}
    return NAMES_SITES.format(name) if 1 < len(parts) == len(values) == sum(map(len, values)) else ""


def kind_of_texts(name: str, parts: Sequence[ColumnSummary], missing: int) -> Kind:
    values = {word for part in parts for word in part.words}
    different = max(len(values), *(part.different for part in parts))
    if different <= CATEGORIES:
        if len(values) < 2 and not missing:
            return None, "left out, all values are the same"
        return Words(name=name, known=()), of_site(name, parts)
    if all(part.unique for part in parts):
        return None, "left out, every value is a different single word"
    least = "at least " if len(parts) > 1 and any(part.buckets for part in parts) else ""
    text = Text(name=name, documents=0, counts={})
    return text, f"text, {least}{different} different values: hashed words in {TEXT_WIDTH} random directions"

"""Map a site's table to the columns that the sites agreed on. The file ``rows.columns.toml`` beside ``rows.csv`` says how.

``absent = ["ca"]`` names columns that the site does not have. ``[rename]`` maps the site's names: ``cholesterol = "chol"``.
``[units]`` has factors: ``chol = 38.67`` multiplies the numbers. ``[words.sex]`` maps the site's words: ``m = "male"``. An empty
word is a missing value: ``unknown = ""``. Spaces around words do not count.
"""

import codecs
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.files import read_small


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a site's TOML file. Names in ``units`` and ``words`` are agreed names."""

    absent: tuple[str, ...] = ()
    rename: dict[str, str] = {}
    units: dict[str, float] = {}
    words: dict[str, dict[str, str]] = {}

    def unused(self, seen: dict[str, set[str]]) -> dict[str, list[str]]:
        """Return the words to map, by column, that are not among the words ``seen`` in it."""
        left = {name: [own for own in words if own.strip() not in seen[name]] for name, words in self.words.items()}
        return {name: words for name, words in left.items() if words}

    def __call__(
        self,
        part: pa.Table,
        path: Path,
        seen: dict[str, set[str]],
        read: Callable[[str, pa.ChunkedArray], pa.ChunkedArray],
    ) -> pa.Table:
        """Return the table with the agreed columns. ``path`` is its file. Raises `BadInput` if a column to map is missing.

        The words in columns with mapped words are added to ``seen``. ``read(name, cells)`` turns mapped words into numbers.
        """
        where = mapping_path(path)
        for name in self.rename:
            require(
                name in part.column_names, f"{where}: rename: no column {name!r}; {suggestion(name, part.column_names)}"
            )
        names = [self.rename.get(name, name) for name in part.column_names]
        twice = [name for name in self.rename.values() if names.count(name) > 1]
        require(not twice, f"{where}: column {twice[:1]} would be there twice; rename the other one, too")
        there = [name for name in self.absent if name in names]
        require(not there, f"{where}: absent: {path.name} has a column {''.join(there[:1])!r}; leave it out of absent")
        part = part.rename_columns(names)
        for name in dict.fromkeys(self.absent):
            part = part.append_column(name, pa.nulls(len(part)))
        for name in (*self.units, *self.words):
            require(name in names, f"{where}: no column {name!r}; {suggestion(name, names)}")
        for name, words in self.words.items():
            cells = trimmed(part[name].cast(pa.string()))
            seen.setdefault(name, set()).update(cells.drop_null().unique().to_pylist())
            found = cells
            for own, agreed in words.items():
                found = pc.if_else(pc.equal(cells, own.strip()), agreed.strip() or pa.scalar(None, pa.string()), found)
            part = replaced(part, name, found)
        part = pa.Table.from_arrays([read(name, part[name]) for name in part.column_names], names=part.column_names)
        for name, factor in self.units.items():
            part = replaced(part, name, scaled(part[name], factor, f"{where}: units: column {name!r}"))
        return part


def holds_strings(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def trimmed(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts without spaces around them. A text of spaces is missing. Other cells stay as they are."""
    if not holds_strings(cells.type):
        return cells
    text = pc.utf8_trim_whitespace(cells)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, cells.type), text)


def replaced(part: pa.Table, name: str, cells: pa.ChunkedArray) -> pa.Table:
    return part.set_column(part.column_names.index(name), name, cells)


def scaled(cells: pa.ChunkedArray, factor: float, where: str) -> pa.ChunkedArray:
    """Multiply the numbers by a factor. Missing numbers stay missing."""
    kind = cells.type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
    require(numeric, f"{where} holds {kind}, not numbers; correct its cells, or leave out its unit")
    return pc.multiply(cells.cast(pa.float64()), factor)


def mapping_path(path: Path) -> Path:
    """Return ``rows.columns.toml`` for ``rows.csv`` and ``rows.csv.gz``."""
    return path.with_name(f"{path.name.partition('.')[0]}.columns.toml")


def mapping_of(path: Path) -> Mapping:
    """Read the mapping for a table's file. Without a TOML file, it changes nothing. Raises `BadInput` for a wrong file."""
    where = mapping_path(path)
    if not where.is_file():
        return Mapping()
    try:
        made = msgspec.toml.decode(read_small(where).removeprefix(codecs.BOM_UTF8), type=Mapping)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadInput(
            f"{where}: {error}; write absent, [rename], [units] and [words.COLUMN], each entry on a line of its own below its "
            'table, and names other than letters, digits, _ and - in quotes: "Größe" = "size"'
        ) from None
    for name, factor in made.units.items():
        require(0 < factor < math.inf, f"{where}: units: {name!r} must have a finite factor above 0, got {factor:g}")
    return made


def key(name: str) -> str:
    """Return the name as a TOML key, quoted if necessary."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else quoted(name)


def quoted(text: str) -> str:
    """Return the text as a TOML string."""
    return json.dumps(text, ensure_ascii=False)


def entry(table: str, name: str, value: str | float, *more: tuple[str, str]) -> str:
    """Say how to write an entry of a TOML table, or several, in one line."""
    written = [
        f"{key(name)} = {quoted(value) if isinstance(value, str) else f'{value:.4g}'}"
        for name, value in ((name, value), *more)
    ]
    return f"[{table}] and on the next line{'s' if more else ''} {' and '.join(written)}"

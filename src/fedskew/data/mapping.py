"""Map a site's table to the columns that the sites agreed on. The file ``rows.columns.toml`` beside ``rows.csv`` says how.

``absent = ["ca"]`` names columns that the site does not have. ``[rename]`` maps the site's names: ``cholesterol = "chol"``.
``[units]`` has factors: ``chol = 38.67`` multiplies the numbers. ``[words.sex]`` maps the site's words: ``m = "male"``.
"""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fedskew.core.errors import BadInput, require, suggestion
from fedskew.core.places import read_small


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a site's TOML file. Names in ``units`` and ``words`` are agreed names."""

    absent: tuple[str, ...] = ()
    rename: dict[str, str] = {}
    units: dict[str, float] = {}
    words: dict[str, dict[str, str]] = {}

    def texts(self, words: frozenset[str]) -> frozenset[str]:
        """Return the columns that stay text, by the site's names and the agreed names: ``words``, and columns with mapped words."""
        agreed = words | self.words.keys()
        return agreed | {own for own, name in self.rename.items() if name in agreed}

    def __call__(self, part: pa.Table, path: Path) -> pa.Table:
        """Return the table with the agreed columns. ``path`` is its file. Raises `BadInput` if a column to map is missing."""
        where = mapping_path(path)
        for name in self.rename:
            require(
                name in part.column_names, f"{where}: rename: no column {name!r}; {suggestion(name, part.column_names)}"
            )
        names = [self.rename.get(name, name) for name in part.column_names]
        twice = [name for name in (*self.rename.values(), *self.absent) if [*names, *self.absent].count(name) > 1]
        require(not twice, f"{where}: column {twice[:1]} would be there twice; rename the other one, too")
        part = part.rename_columns(names)
        for name in self.absent:
            part = part.append_column(name, pa.nulls(len(part)))
        for name in (*self.units, *self.words):
            require(name in names, f"{where}: no column {name!r}; {suggestion(name, names)}")
        for name, factor in self.units.items():
            part = replaced(part, name, scaled(part[name], factor, f"{where}: units: column {name!r}"))
        for name, words in self.words.items():
            cells = part[name].cast(pa.string())
            found = cells
            for own, agreed in words.items():
                found = pc.if_else(pc.equal(pc.utf8_trim_whitespace(cells), own), agreed, found)
            part = replaced(part, name, found)
        return part


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
        return msgspec.toml.decode(read_small(where), type=Mapping)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadInput(f"{where}: {error}; write absent, [rename], [units] and [words.COLUMN]") from None

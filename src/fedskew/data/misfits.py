"""What the columns of files hold, from all their rows: numbers of rows, words between numbers, and classes spelt in two ways."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from fedskew.data.columns import numbers
from fedskew.data.conflicts import misfit, other_words, spelt_twice
from fedskew.data.guard import countable
from fedskew.data.spellings import MOSTLY_NUMBERS
from fedskew.data.summaries import NUMBERED, SPELLING, Steps, is_text, number_rows

CELLS = 100
"""Number of cells of a file that are kept for each column of words."""


@dataclass
class Kinds:
    """What the columns of each file hold: numbers, times, or some of their words."""

    held: dict[str, dict[str, list[str] | str]] = field(default_factory=dict)  # by column and file
    steps: dict[str, dict[str, Steps]] = field(default_factory=dict)  # by column and file

    def add(self, where: str, part: pa.Table) -> None:
        """Add rows of the file ``where``. A file holds words in a column if some of its rows do."""
        for column, kind in zip(part.columns, part.schema, strict=True):
            self.steps.setdefault(kind.name, {}).setdefault(where, Steps()).add(column)
            files = self.held.setdefault(kind.name, {})
            if isinstance(files.get(where), list):
                continue
            if is_text(kind.type):
                if cells := column.drop_null()[:CELLS].to_pylist():
                    files[where] = cells
            elif countable(kind.type) and not pa.types.is_null(kind.type):
                files[where] = "time" if pa.types.is_timestamp(kind.type) or pa.types.is_date(kind.type) else "number"

    def marked(self, table: pa.Table, spellings: Mapping[str, str]) -> pa.Table:
        """Return the table with marks in its schema: which columns number the rows of each file, and the spellings."""
        fields = []
        for kind in table.schema:
            numbered = number_rows(kind.name, self.steps.get(kind.name, {}).values())
            fields.append(kind.with_metadata({NUMBERED: str(int(numbered)), SPELLING: spellings.get(kind.name, "")}))
        return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))

    def notes(self) -> Iterator[str]:
        """Yield a line for each file whose words do not fit to the numbers or times of most other files with this column."""
        for name, files in self.held.items():
            kinds = Counter(known for known in files.values() if isinstance(known, str))
            words = {where: known for where, known in files.items() if isinstance(known, list)}
            if not kinds or len(words) > kinds.total():
                continue
            wanted = kinds.most_common(1)[0][0]
            for where, cells in words.items():
                odd = odd_cells(cells, wanted)
                if wanted == "time" or len(odd) > (1 - MOSTLY_NUMBERS) * len(cells):
                    yield f"{misfit(where, name, odd, wanted)}; until then they count as words or missing values"


def odd_cells(cells: list[str], wanted: str) -> list[str]:
    """Return the cells that are no numbers, or no times."""
    values = pd.Series(cells, dtype=object)
    known = pd.to_datetime(values, errors="coerce", format="ISO8601") if wanted == "time" else numbers(values)
    return [cell for cell, missing in zip(cells, np.asarray(pd.isna(known)), strict=True) if missing]


def other_classes(
    label: str, clients: tuple[str, ...], classes: tuple[str, ...], counts: NDArray[np.int64]
) -> list[str]:
    """Return a line for each class that only one client has, if it may be another spelling. ``counts`` is (clients, classes)."""
    held = {client: [classes[at] for at in np.flatnonzero(rows)] for client, rows in zip(clients, counts, strict=True)}
    return [*other_words(label, held), *{line for own in held.values() for line in spelt_twice(label, own)}]

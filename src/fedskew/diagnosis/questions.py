"""The questions of a diagnosis without pooling, and what a site answers: every number that leaves it is in `LEAVES`."""

import csv
from importlib.resources import files
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput
from fedskew.data.preprocessing import Tabular
from fedskew.data.tables.summaries import ColumnSummary, Summary

Step = Literal["columns", "targets", "scale", "products", "directions", "moments", "faces", "classes"]
Numbers = dict[str, NDArray[np.float64]]

CLASSES = "classes"
"""The kind of target that is one class of several."""


FEWEST = 5
"""Rows that a count has at least, unless it is 0."""


class PackedArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of one shape, as little-endian floating-point numbers of eight bytes."""

    shape: tuple[int, ...]
    data: bytes


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server asks of each site. Steps after ``columns`` and ``targets`` have the agreed preprocessing and classes."""

    step: Step
    preprocessing: Tabular | None = None
    classes: tuple[str, ...] = ()
    numbers: dict[str, PackedArray] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a site answers. The first answer has the fields up to ``fewest``, the others have ``numbers``.

    Targets are either ``classes`` or numbers, with the summary ``target``.
    """

    step: Step
    summary: Summary | None = None
    classes: dict[str, int] = {}
    target: ColumnSummary | None = None
    copies: int = 0
    fewest: int = 1
    numbers: dict[str, PackedArray] = {}
    refused: str = ""


class Leaf(NamedTuple):
    """A number or an array that leaves a site: the step, its name, its shape, and what it says."""

    step: str
    name: str
    shape: str
    meaning: str


TABLE = files("fedskew.diagnosis").joinpath("leaves.csv").read_text(encoding="utf-8")
LEAVES = tuple(Leaf(**row) for row in csv.DictReader(TABLE.splitlines()))
"""Every number that leaves a site."""


def arrays(numbers: Numbers) -> dict[str, PackedArray]:
    """The numbers as records."""
    return {name: PackedArray(x.shape, np.ascontiguousarray(x, dtype="<f8").tobytes()) for name, x in numbers.items()}


def numbers_of(where: str, arrays: dict[str, PackedArray]) -> Numbers:
    """Inverse of `arrays`. Raises `BadInput`, naming ``where``, for another shape, and for numbers that are not finite."""
    numbers: Numbers = {}
    for name, array in arrays.items():
        try:
            numbers[name] = np.frombuffer(array.data, dtype="<f8").astype(np.float64).reshape(array.shape)
        except ValueError:
            raise BadInput(f"{where}: {name} has {len(array.data)} bytes, not its shape {array.shape}") from None
        if not np.isfinite(numbers[name]).all():
            raise BadInput(f"{where}: {name} holds values that are not finite")
    return numbers

"""The questions of a diagnosis without pooling, and what a site answers: every number that leaves it is in `LEAVES`."""

from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput
from fedskew.data.preprocessing import Tabular
from fedskew.data.tables.summaries import ColumnSummary, Summary

Step = Literal["columns", "targets", "scale", "products", "directions", "moments", "faces", "classes"]
Numbers = dict[str, NDArray[np.float64]]


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of one shape, as little-endian floating-point numbers of eight bytes."""

    shape: tuple[int, ...]
    data: bytes


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server asks of each site. Steps after ``columns`` and ``targets`` have the agreed preprocessing and classes."""

    step: Step
    preprocessing: Tabular | None = None
    classes: tuple[str, ...] = ()
    numbers: dict[str, Array] = {}


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
    numbers: dict[str, Array] = {}
    refused: str = ""


class Leaf(NamedTuple):
    """A number or an array that leaves a site: the step, its name, its shape, and what it says."""

    step: Step
    name: str
    shape: str
    meaning: str


LEAVES = (
    Leaf("columns", "classes", "classes", "rows of each class, with its name"),
    Leaf(
        "columns", "target", "1 column", "of targets that are numbers: what is listed below of a column, without words"
    ),
    Leaf("columns", "copies", "1", "rows that are equal to another row of the site"),
    Leaf("columns", "fewest", "1", "rows that a count has at least, unless it is 0"),
    Leaf("columns", "type", "columns", "number, time, text or another type, with the column's name"),
    Leaf("columns", "rows", "columns", "rows"),
    Leaf("columns", "valid", "columns", "rows with a value"),
    Leaf("columns", "numbers.rows", "columns", "rows with a number"),
    Leaf("columns", "numbers.mean", "columns", "mean of the numbers"),
    Leaf("columns", "numbers.deviation", "columns", "their standard deviation"),
    Leaf("columns", "numbers.low", "columns", "a number that at least FEWEST rows do not exceed"),
    Leaf("columns", "numbers.high", "columns", "a number that at least FEWEST rows reach"),
    Leaf("columns", "words", "columns x up to 40 words", "rows of each word, with the word"),
    Leaf("columns", "buckets", "columns of texts x up to 16,384", "texts in each bucket of a hash of their words"),
    Leaf("columns", "different", "columns", "number of different texts"),
    Leaf("columns", "unique", "columns", "whether every text is a different single word"),
    Leaf("columns", "whole", "columns", "whether every number is a whole one"),
    Leaf("columns", "numbered", "columns", "whether the column numbers the rows"),
    Leaf("columns", "spelling", "columns", "how the file spells its numbers or times"),
    Leaf("targets", "histogram", "256", "rows in each bin of the targets; numbers only, as all with the word target"),
    Leaf("scale", "sum", "inputs", "sum of each input of the model"),
    Leaf("scale", "square", "inputs", "sum of its squares"),
    Leaf("scale", "histograms", "columns of numbers x 256", "rows in each bin of a column"),
    Leaf("products", "products", "inputs x inputs", "sums of the products of two inputs; above 48 inputs only"),
    Leaf("directions", "sum", "49", "sum along each principal direction; above 48 inputs only"),
    Leaf("directions", "square", "49", "sum of its squares; above 48 inputs only"),
    Leaf(
        "moments", "rows by class", "2 x classes", "rows of each class, or stratum of the target, in two random halves"
    ),
    Leaf(
        "moments",
        "sums by class",
        "2 x classes x 2 inputs",
        "sums of the inputs and of their squares by half and class",
    ),
    Leaf("moments", "products by half", "2 x 2 inputs x 2 inputs", "sums of the products of two of these by half"),
    Leaf("moments", "products with target", "2 inputs + 2", "sums of the target's products with 1, these, and itself"),
    Leaf(
        "faces",
        "beyond thresholds",
        "2 x sites x classes x 2",
        "rows beyond and below the threshold of each site's classifier",
    ),
    Leaf(
        "faces",
        "rows by kind",
        "classes x up to 40 kinds",
        "rows of each class and kind of input; of numbers by stratum of the target, 8 kinds and 5 bins of residuals",
    ),
    Leaf("classes", "rows by class", "classes", "rows of each class; classes only, as the next line"),
    Leaf(
        "classes",
        "columns by class",
        "2 x 2 columns and words x classes",
        "sums of numbers, words and missing values by class, and of the numbers' distances from the median",
    ),
)
"""Every number that leaves a site."""


def arrays(numbers: Numbers) -> dict[str, Array]:
    """The numbers as records."""
    return {name: Array(tuple(v.shape), np.ascontiguousarray(v, dtype="<f8").tobytes()) for name, v in numbers.items()}


def numbers_of(where: str, held: dict[str, Array]) -> Numbers:
    """Inverse of `arrays`. Raises `BadInput`, naming ``where``, for another shape, and for numbers that are not finite."""
    found: Numbers = {}
    for name, array in held.items():
        try:
            values = np.frombuffer(array.data, dtype="<f8").astype(np.float64).reshape(array.shape)
        except ValueError:
            raise BadInput(f"{where}: {name} has {len(array.data)} bytes, not its shape {array.shape}") from None
        if not np.isfinite(values).all():
            raise BadInput(f"{where}: {name} holds values that are not finite")
        found[name] = values
    return found

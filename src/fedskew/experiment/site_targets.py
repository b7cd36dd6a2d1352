"""A site's own targets in a diagnosis without pooling: what it says of them, and the stratum in which each row counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.data.guard import guarded_summary
from fedskew.data.tables import Survey
from fedskew.experiment.questions import Answer, Numbers, Question
from fedskew.measure.heterogeneity.histograms import BINS, histogram

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rounded: TypeAlias = Callable[[NDArray[Any]], Floats]
"""Counts without small ones."""


@dataclass(frozen=True, eq=False)
class OwnClasses:
    """The class (n,) of each row."""

    y: NDArray[np.str_]
    rounded: Rounded
    word: ClassVar = "class"
    rest: ClassVar = "by class only: their classes have"

    def first(self, fewest: int) -> Answer:
        """The first answer, without columns."""
        words, often = np.unique(self.y, return_counts=True)
        counts = self.rounded(often).astype(np.int64).tolist()
        return Answer(
            step="columns",
            classes={word: number for word, number in zip(words.tolist(), counts, strict=True) if number},
        )

    def groups(self) -> Ints:
        """A number (n,) for each row. Rows of a number that few rows have leave in no sum."""
        return np.unique(self.y, return_inverse=True)[1].astype(np.int64)

    def counts(self, asked: Numbers) -> Floats:
        """The histogram of the targets."""
        raise BadInput("its targets are classes, which have no histogram")

    def strata(self, question: Question, asked: Numbers) -> tuple[Ints, int]:
        """The stratum (n,) of each row, and the number of strata. Classes that the server does not know have higher numbers."""
        unknown = sorted(set(self.y.tolist()) - {*question.classes})
        number = {word: at for at, word in enumerate((*question.classes, *unknown))}
        return np.array([number[word] for word in self.y]), len(question.classes)

    def response(self, asked: Numbers) -> Floats | None:
        """A number (n,) for each row, if the targets are numbers."""
        return None


@dataclass(frozen=True, eq=False)
class OwnNumbers:
    """The number (n,) of each row that a model predicts."""

    y: Floats
    rounded: Rounded
    word: ClassVar = "stratum of the target"
    rest: ClassVar = "in histograms only: their strata of the target have"

    def first(self, fewest: int) -> Answer:
        column = pa.table({"target": self.y})
        return Answer(step="columns", target=guarded_summary(column, fewest).columns["target"])

    def groups(self) -> Ints:
        return np.zeros(len(self.y), dtype=np.int64)

    def counts(self, asked: Numbers) -> Floats:
        require(asked["target edges"].shape == (BINS - 1,), f"the question has no {BINS - 1} edges of targets")
        return self.rounded(histogram(self.y, asked["target edges"]))

    def strata(self, question: Question, asked: Numbers) -> tuple[Ints, int]:
        """The strata of bins. Rows of small bins move to near ones, so that sums by stratum agree with the histogram.

        Else their differences would be counts of few rows.
        """
        of_bin = asked["strata"].astype(np.int64)
        require(of_bin.shape == (BINS,) and 0 <= of_bin.min() <= of_bin.max() < BINS, "the question has no strata")
        found = np.empty(len(self.y), dtype=np.int64)
        found[np.argsort(self.y, kind="stable")] = np.repeat(of_bin, self.counts(asked).astype(np.int64))
        return found, int(of_bin.max()) + 1

    def response(self, asked: Numbers) -> Floats | None:
        mean, deviation = asked["target scale"]
        return np.asarray((self.y - mean) / deviation)


def targets_in(found: Survey) -> NDArray[np.str_] | Floats:
    """The target (n,) of each row of a survey: its class, or its number."""
    return np.array(found.classes)[found.y] if found.classes else np.asarray(found.y, dtype=np.float64)

"""A site's own targets in a diagnosis without pooling: what it says of them, and the stratum in which each row counts."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.core.seeding import Seed, stream
from fedskew.data.tables.guard import guarded_summary
from fedskew.data.tables.survey import Survey
from fedskew.diagnosis.questions import Answer, Numbers, Question
from fedskew.measure.heterogeneity.histograms import BINS, histogram
from fedskew.measure.heterogeneity.rounding import rounded_alone

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rounded: TypeAlias = Callable[[NDArray[Any]], Floats]
"""Counts without small ones."""


@dataclass(frozen=True, eq=False)
class OwnClasses:
    """The class (n,) of each row, and the site's ``fewest`` and ``seed``."""

    y: NDArray[np.str_]
    fewest: int
    seed: Seed
    word: ClassVar = "class"

    def first(self) -> Answer:
        """The first answer, without columns: the rows of each class, rounded.

        The random numbers of a count follow from the class and its rows, so that it is the same in every diagnosis.
        """
        classes = {}
        for word, rows in zip(*np.unique(self.y, return_counts=True), strict=True):
            digest = hashlib.sha256(repr((str(word), int(rows))).encode()).digest()
            rng = stream(self.seed, "diagnose", 6, int.from_bytes(digest))
            [number] = rounded_alone(np.array([rows]), self.fewest, rng).tolist()
            if number:
                classes[str(word)] = number
        return Answer(step="columns", classes=classes)

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
    """The number (n,) of each row that a model predicts. ``rounded`` hides counts below ``fewest``."""

    y: Floats
    fewest: int
    rounded: Rounded
    word: ClassVar = "stratum of the target"

    def first(self) -> Answer:
        column = pa.table({"target": self.y})
        return Answer(step="columns", target=guarded_summary(column, self.fewest).columns["target"])

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
        strata = int(of_bin.max()) + 1
        return self.without_few(found, strata), strata

    def without_few(self, stratum: Ints, strata: int) -> Ints:
        """The strata (n,). If the rows of small strata are few in all, they move to the nearest stratum of enough rows.

        Else the sums of all rows, less the sums by stratum, would be about these few.
        """
        rows = np.bincount(stratum, minlength=strata)
        enough = rows >= least(self.fewest)
        if enough.any() and 0 < rows[~enough].sum() < self.fewest:
            large = np.flatnonzero(enough)
            stratum = large[np.abs(np.arange(strata)[:, None] - large).argmin(1)][stratum]
        return stratum

    def response(self, asked: Numbers) -> Floats | None:
        mean, deviation = asked["target scale"]
        return np.asarray((self.y - mean) / deviation)


def least(fewest: int) -> int:
    """The rows of a class or stratum from which sums of both halves of its rows leave."""
    return 2 * fewest if fewest > 1 else 1


def targets_in(found: Survey) -> NDArray[np.str_] | Floats:
    """The target (n,) of each row of a survey: its class, or its number."""
    return np.array(found.classes)[found.y] if found.classes else np.asarray(found.y, dtype=np.float64)

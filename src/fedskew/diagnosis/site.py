"""A site in a diagnosis without pooling: it sees its own rows, and answers questions with counts and sums of them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.core.seeding import Seed, stream
from fedskew.core.text import count
from fedskew.data.preprocessing import Number, Tabular
from fedskew.data.tables.columns import Columns, numbers, to_pandas
from fedskew.data.tables.guard import guarded, summary
from fedskew.data.tables.survey import Survey
from fedskew.diagnosis.columns import facts_of
from fedskew.diagnosis.questions import Answer, Numbers, Question, Step, arrays, numbers_of
from fedskew.measure.heterogeneity.columns import BINS, centred, histogram
from fedskew.measure.heterogeneity.rounding import rounded, rounded_alone
from fedskew.measure.heterogeneity.rows import MOST_INPUTS, WIDTH, Floats, Ints, sums_by
from fedskew.measure.heterogeneity.sites import coordinates, sums

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
        return Answer(step="columns", target=summary(column, self.fewest).columns["target"])

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


FEWEST = 5
"""Rows that a count has at least, unless it is 0."""


@dataclass(frozen=True, eq=False)
class Site:
    """The rows of one site: a table of inputs, and the target (n,) of each row, a class or a number.

    ``fewest`` is the site's own choice, and ``seed`` its secret. In a rehearsal on a named data set, ``inputs`` (n, d) are its rows
    as models see them; else they are made of the table's columns.
    """

    table: pa.Table
    y: NDArray[np.str_] | NDArray[np.float64]
    fewest: int = FEWEST
    seed: Seed = 0
    inputs: NDArray[np.float32] | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        require(self.fewest >= 1, f"fewest must be at least 1, got {self.fewest}")

    @cached_property
    def targets(self) -> OwnClasses | OwnNumbers:
        if self.y.dtype.kind == "f":
            return OwnNumbers(self.y.astype(np.float64), self.fewest, self.rounded)
        return OwnClasses(self.y.astype(str), self.fewest, self.seed)

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """(n,) Rows that count by more than their class.

        If the rows of rare classes are few in all, they are left out: else the sums of all rows, less the sums by class, would be
        about these few.
        """
        enough = self.enough(self.targets.groups())
        self.note_rare(enough)
        return enough if (~enough).sum() < self.fewest else np.ones_like(enough)

    @cached_property
    def held(self) -> pa.Table:
        """The table without words, gaps and classes of few rows."""
        table, notes = guarded(self.table.filter(pa.array(self.kept)), self.fewest)
        self.notes.extend(notes)
        return table

    def enough(self, group: Ints) -> NDArray[np.bool_]:
        """(n,) whether a row's group has enough rows for sums of both halves of the rows."""
        found = (np.bincount(group) >= least(self.fewest))[group]
        words = (
            f"no {self.targets.word} has {least(self.fewest)} rows, twice --fewest {self.fewest}; this site sends no sums of "
            "fewer; choose a smaller --fewest, such as --fewest 1, or leave the site out"
        )
        require(bool(found.any()), words)
        return found

    def reply(self, data: bytes) -> bytes:
        """The answer to a question, both as bytes. An error becomes a refusal of one line."""
        step: Step = "columns"
        try:
            question = msgspec.msgpack.decode(data, type=Question)
            step = question.step
            with threadpool_limits(1):  # the last bit of a sum may depend on the number of threads
                return msgspec.msgpack.encode(self.answer(question))
        except (FedskewError, msgspec.MsgspecError, ValueError, KeyError, IndexError) as error:
            return msgspec.msgpack.encode(Answer(step=step, refused=" ".join(str(error).split())[:300]))

    def answer(self, question: Question) -> Answer:
        """The answer to a question. Raises `BadInput` if it does not fit the site's rows."""
        if question.step == "columns":
            return replace(
                self.targets.first(),
                summary=summary(self.held, self.fewest),
                copies=int(self.rounded(self.copies(self.held))[0]),
                fewest=self.fewest,
            )
        asked = numbers_of("question", question.numbers)
        if question.step == "targets":
            return Answer(step=question.step, numbers=arrays({"histogram": self.targets.counts(asked)}))
        require(question.preprocessing is not None, "the question has no preprocessing")
        assert question.preprocessing is not None
        return Answer(step=question.step, numbers=arrays(self.made(question, asked, question.preprocessing)))

    def made(self, question: Question, asked: Numbers, preprocessing: Tabular) -> Numbers:
        """The numbers of each step after the first."""
        inputs = Columns(preprocessing, ())(self.held) if self.inputs is None else self.inputs[self.kept]
        z = coordinates(inputs, asked)
        if question.step in ("scale", "products", "directions"):
            check_width(z, MOST_INPUTS)
            counts = {"histograms": self.histograms(preprocessing, asked["edges"])} if question.step == "scale" else {}
            return {**sums(question.step, z, asked), **counts}
        (y, strata), response = self.targets.strata(question, asked), self.targets.response(asked)
        y, response = y[self.kept], None if response is None else response[self.kept]
        enough = self.enough(y)
        self.note_rare(enough)
        z, y, response = z[enough], y[enough], None if response is None else response[enough]
        require(int(y.max()) < strata, "the server does not know all classes of this site")
        if question.step == "classes":
            return self.by_class(preprocessing, asked["centres"], enough, y, strata)
        check_width(z, WIDTH + 1)
        computed = sums(question.step, z, asked, y, strata, response)
        if question.step == "moments":
            return computed
        return {name: self.rounded(counts) for name, counts in computed.items()}

    def note_rare(self, enough: NDArray[np.bool_]) -> None:
        """Note that some rows are in no sum by class."""
        note = f"{count(int((~enough).sum()), 'row')} of rare classes or targets are in no sum by class"
        if not enough.all() and note not in self.notes:
            self.notes.append(note)

    def histograms(self, preprocessing: Tabular, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """The counts (columns, bins) of each column of numbers that is no time."""
        frame = to_pandas(self.held)
        counts = [
            histogram(numbers(frame[name]), inner) for name, inner in zip(measured(preprocessing), edges, strict=True)
        ]
        return self.rounded(np.stack(counts)) if counts else np.zeros((0, 0))

    def by_class(
        self, preprocessing: Tabular, centres: NDArray[np.float64], enough: NDArray[np.bool_], y: Ints, classes: int
    ) -> Numbers:
        """Sums by class of the facts of columns, and of their distances from the first row of ``centres`` (3, facts)."""
        facts: dict[tuple[str, ...], Any] = {
            fact[:3]: fact[3] for fact in Columns(preprocessing, ()).features(self.held) if fact[1] != "word"
        }
        none = np.zeros(len(enough))  # a site without gaps has no fact of missing values
        values = np.column_stack([facts.get(fact, none) for fact in facts_of(preprocessing)])[enough]
        parts = centred(values, centres[1]), centred(np.abs(values - centres[0]), centres[2])
        return {
            "rows by class": np.bincount(y, minlength=classes).astype(np.float64),
            "columns by class": np.stack([sums_by(y, classes, part).T for part in parts]),
        }

    def rounded(self, counts: NDArray[Any]) -> NDArray[np.float64]:
        """The counts (..., bins) without small ones. The same question gets the same answer."""
        return rounded(counts, self.fewest, stream(self.seed, "diagnose", 5)).astype(np.float64)

    def copies(self, table: pa.Table) -> NDArray[np.int64]:
        """Rows that are equal to another one, and the other rows."""
        frame = to_pandas(table)
        found = int(frame.astype(str).duplicated(keep=False).sum())
        return np.array([found, len(frame) - found])


def check_width(z: NDArray[np.float64], most: int) -> None:
    require(z.shape[1] <= most, f"the server asks for products of {z.shape[1]:,} inputs; at most {most:,} leave a site")


def measured(preprocessing: Tabular) -> list[str]:
    """The columns of numbers, without times, which have histograms."""
    return [part.name for part in preprocessing.columns if isinstance(part, Number) and not part.time]

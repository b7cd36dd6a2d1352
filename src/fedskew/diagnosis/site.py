"""A site in a diagnosis without pooling: it sees its own rows, and answers questions with counts and sums of them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.core.seeding import Seed, stream
from fedskew.core.text import count
from fedskew.data.preprocessing import Number, Tabular, Words
from fedskew.data.tables.columns import Columns, numbers, to_pandas
from fedskew.data.tables.guard import guarded, summary
from fedskew.data.tables.survey import Survey
from fedskew.diagnosis.questions import FEWEST, Answer, Numbers, Question, Step, arrays, numbers_of
from fedskew.measure.heterogeneity.columns import BINS, centred, histogram
from fedskew.measure.heterogeneity.rounding import rounded, rounded_alone
from fedskew.measure.heterogeneity.rows import MOST_INPUTS, WIDTH, Floats, Ints, sums_by
from fedskew.measure.heterogeneity.sites import coordinates, sums


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
        """The group (n,) of each row. Rows of small groups are in no sum by group."""
        return np.unique(self.y, return_inverse=True)[1].astype(np.int64)

    def counts(self, parameters: Numbers) -> Floats:
        """The histogram of the targets."""
        raise BadInput("its targets are classes, which have no histogram")

    def strata(self, question: Question, parameters: Numbers) -> tuple[Ints, int]:
        """The stratum (n,) of each row, and the number of strata.

        Classes that the server does not know have numbers above these.
        """
        unknown = sorted(set(self.y.tolist()) - {*question.classes})
        number = {word: at for at, word in enumerate((*question.classes, *unknown))}
        return np.array([number[word] for word in self.y]), len(question.classes)

    def response(self, parameters: Numbers) -> Floats | None:
        """A number (n,) for each row, if the targets are numbers."""
        return None


@dataclass(frozen=True, eq=False)
class OwnNumbers:
    """The number (n,) of each row that a model predicts. ``round_counts`` hides counts below ``fewest``."""

    y: Floats
    fewest: int
    round_counts: Callable[[NDArray[Any]], Floats]
    word: ClassVar = "stratum of the target"

    def first(self) -> Answer:
        return Answer(step="columns", target=summary(pa.table({"target": self.y}), self.fewest).columns["target"])

    def groups(self) -> Ints:
        return np.zeros(len(self.y), dtype=np.int64)

    def counts(self, parameters: Numbers) -> Floats:
        edges = parameters["target edges"]
        require(edges.shape == (BINS - 1,), f"the question has no {BINS - 1} edges of targets")
        return self.round_counts(histogram(self.y, edges))

    def strata(self, question: Question, parameters: Numbers) -> tuple[Ints, int]:
        """The stratum (n,) of each row, by its bin.

        Rows of small bins move to near bins, so that sums by stratum agree with the histogram. Otherwise the difference of a sum
        and a count of the histogram would be about few rows.
        """
        of_bin = parameters["strata"].astype(np.int64)
        require(of_bin.shape == (BINS,) and 0 <= of_bin.min() <= of_bin.max() < BINS, "the question has no strata")
        stratum = np.empty(len(self.y), dtype=np.int64)
        stratum[np.argsort(self.y, kind="stable")] = np.repeat(of_bin, self.counts(parameters).astype(np.int64))
        strata = int(of_bin.max()) + 1
        rows = np.bincount(stratum, minlength=strata)
        enough = rows >= least(self.fewest)
        if enough.any() and 0 < rows[~enough].sum() < self.fewest:
            # otherwise the sums of all rows minus the sums by stratum would be about the few rows of all small strata
            large = np.flatnonzero(enough)
            stratum = large[np.abs(np.arange(strata)[:, None] - large).argmin(1)][stratum]
        return stratum, strata

    def response(self, parameters: Numbers) -> Floats | None:
        mean, deviation = parameters["target scale"]
        return np.asarray((self.y - mean) / deviation)


def least(fewest: int) -> int:
    """The number of rows that a class or stratum needs, so that the sums of both halves of its rows may leave the site."""
    return 2 * fewest if fewest > 1 else 1


def targets_in(rows: Survey) -> NDArray[np.str_] | Floats:
    """The target (n,) of each row of a survey: its class, or its number."""
    return np.array(rows.classes)[rows.y] if rows.classes else np.asarray(rows.y, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class AnsweringSite:
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

    @cached_property
    def targets(self) -> OwnClasses | OwnNumbers:
        if self.y.dtype.kind == "f":
            return OwnNumbers(self.y.astype(np.float64), self.fewest, self.rounded)
        return OwnClasses(self.y.astype(str), self.fewest, self.seed)

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Whether each row (n,) is counted in more than the number of rows of its class.

        If all rare classes together have few rows, these rows are left out. Otherwise the sums of all rows minus the sums by class
        would be about these few rows.
        """
        enough = self.enough(self.targets.groups())
        return enough if (~enough).sum() < self.fewest else np.ones_like(enough)

    @cached_property
    def guarded_table(self) -> pa.Table:
        """The table without words, gaps and classes of few rows."""
        table, notes = guarded(self.table.filter(pa.array(self.counted)), self.fewest)
        self.notes.extend(notes)
        return table

    def enough(self, group: Ints) -> NDArray[np.bool_]:
        """Whether the group of each row (n,) has `least` rows. Add a note if some groups have fewer; raise `BadInput` if all do."""
        enough: NDArray[np.bool_] = (np.bincount(group) >= least(self.fewest))[group]
        words = (
            f"no {self.targets.word} has {least(self.fewest)} rows, twice --fewest {self.fewest}; this site sends no sums of "
            "fewer; choose a smaller --fewest, such as --fewest 1, or leave the site out"
        )
        require(bool(enough.any()), words)
        note = f"{count(int((~enough).sum()), 'row')} of rare classes or targets are in no sum by class"
        if not enough.all() and note not in self.notes:
            self.notes.append(note)
        return enough

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
            first, equal = self.targets.first(), to_pandas(self.guarded_table).astype(str).duplicated(keep=False)
            copies = int(self.rounded(np.array([equal.sum(), (~equal).sum()]))[0])
            return replace(first, summary=summary(self.guarded_table, self.fewest), copies=copies, fewest=self.fewest)
        return Answer(step=question.step, numbers=arrays(self.answered(question)))

    def answered(self, question: Question) -> Numbers:
        """The numbers of each step after the first."""
        parameters, preprocessing = numbers_of("question", question.numbers), question.preprocessing
        if question.step == "targets":
            return {"histogram": self.targets.counts(parameters)}
        require(preprocessing is not None, "the question has no preprocessing")
        assert preprocessing is not None
        inputs = Columns(preprocessing, ())(self.guarded_table) if self.inputs is None else self.inputs[self.counted]
        z = coordinates(inputs, parameters)
        if question.step in ("scale", "products", "directions"):
            check_width(z, MOST_INPUTS)
            answer = sums(question.step, z, parameters)
            if question.step == "scale":
                answer["histograms"] = self.histograms(preprocessing, parameters["edges"])
            return answer
        (y, strata), response = self.targets.strata(question, parameters), self.targets.response(parameters)
        y, response = y[self.counted], None if response is None else response[self.counted]
        enough = self.enough(y)
        z, y, response = z[enough], y[enough], None if response is None else response[enough]
        require(int(y.max()) < strata, "the server does not know all classes of this site")
        if question.step == "classes":
            return self.by_class(preprocessing, parameters["centres"], enough, y, strata)
        check_width(z, WIDTH + 1)
        answer = sums(question.step, z, parameters, y, strata, response)
        return answer if question.step == "moments" else {name: self.rounded(part) for name, part in answer.items()}

    def histograms(self, preprocessing: Tabular, edges: Floats) -> Floats:
        """The counts (columns, bins) of each column of numbers that is no time."""
        frame = to_pandas(self.guarded_table)
        columns = zip(with_histograms(preprocessing), edges, strict=True)
        counts = [histogram(numbers(frame[name]), inner) for name, inner in columns]
        return self.rounded(np.stack(counts)) if counts else np.zeros((0, 0))

    def by_class(
        self, preprocessing: Tabular, centres: Floats, enough: NDArray[np.bool_], y: Ints, classes: int
    ) -> Numbers:
        """Sums by class of the facts of columns, and of their distances from the first row of ``centres`` (3, facts)."""
        of_columns = Columns(preprocessing, ()).features(self.guarded_table)
        facts: dict[tuple[str, ...], Any] = {fact[:3]: fact[3] for fact in of_columns if fact[1] != "word"}
        none = np.zeros(len(enough))  # a site without gaps has no fact of missing values
        values = np.column_stack([facts.get(fact, none) for fact in facts_of(preprocessing)])[enough]
        parts = centred(values, centres[1]), centred(np.abs(values - centres[0]), centres[2])
        rows = np.bincount(y, minlength=classes).astype(np.float64)
        return {"rows by class": rows, "columns by class": np.stack([sums_by(y, classes, part).T for part in parts])}

    def rounded(self, counts: NDArray[Any]) -> Floats:
        """The counts (..., bins) without small ones. The same question gets the same answer."""
        return rounded(counts, self.fewest, stream(self.seed, "diagnose", 5)).astype(np.float64)


def check_width(z: Floats, most: int) -> None:
    require(z.shape[1] <= most, f"the server asks for products of {z.shape[1]:,} inputs; at most {most:,} leave a site")


def with_histograms(preprocessing: Tabular) -> list[str]:
    """The columns of numbers, without times, which have histograms."""
    return [part.name for part in preprocessing.columns if isinstance(part, Number) and not part.time]


def facts_of(preprocessing: Tabular) -> list[tuple[str, str, str]]:
    """Column, kind and word of each fact that sites add by class, in their order."""
    names: list[tuple[str, str, str]] = []
    for part in preprocessing.columns:
        names += [(part.name, "mean", ""), (part.name, "missing", "")]
        names += [(part.name, "share", word) for word in part.known] if isinstance(part, Words) else []
    return names

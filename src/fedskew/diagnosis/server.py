"""Compute the faces from what each site computes of its own rows, and ask sites that do not pool their rows."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from fedskew.core.errors import require
from fedskew.data.preprocessing import Column, Number, Tabular, Words
from fedskew.data.tables.schema import merged, other_words
from fedskew.data.tables.summaries import ColumnSummary
from fedskew.diagnosis.questions import CLASSES, Answer, Numbers, Question, Step, arrays, numbers_of
from fedskew.diagnosis.result import values_of
from fedskew.diagnosis.site import facts_of, with_histograms
from fedskew.diagnosis.subject import OnProgress, Source
from fedskew.diagnosis.targets import Targets, moments_of, targets_of
from fedskew.measure.heterogeneity.columns import BINS, Tested, edges, of_numbers, of_shares
from fedskew.measure.heterogeneity.details import of_counts
from fedskew.measure.heterogeneity.faces import Diagnosis, faces
from fedskew.measure.heterogeneity.rows import WIDTH, Floats, Ints, largest
from fedskew.measure.heterogeneity.sites import classifiers, first_frame, kinds, scales

Ask = Callable[[Mapping[str, Question]], Mapping[str, Answer]]
"""Send each site its question, and return their answers."""


Compute = Callable[..., Iterable[Numbers]]
"""``compute(step, shapes, *parameters)`` returns the numbers of each site in a step, which have these shapes by name.

All sites get the same parameters, or each its own.
"""


def frame_of(compute: Compute, scaled: Iterable[Numbers], rows: int) -> Numbers:
    """The frame in which inputs are compared. ``scaled`` are the sums of the inputs of each site, which have ``rows`` in all.

    It standardises columns. Of many columns it has the principal directions, which it standardises, too.
    """
    frame = first_frame(scaled, rows)
    if (width := len(frame["mean"])) <= WIDTH:
        return frame
    products = sum(answer["products"] for answer in compute("products", {"products": (width, width)}, frame))
    frame = {**frame, "directions": largest(np.asarray(products / rows))[1]}
    number = inputs(frame)
    mean, deviation = scales(compute("directions", {"sum": (number,), "square": (number,)}, frame), rows)
    return {**frame, "mean of directions": mean, "scale of directions": np.where(deviation > 0, deviation, 1.0)}


def inputs(frame: Numbers) -> int:
    """The number of columns that are compared."""
    return frame["directions"].shape[1] + 1 if "directions" in frame else len(frame["mean"])


def faces_from(compute: Compute, frame: Numbers, targets: Targets, sizes: Ints, seed: int) -> Diagnosis:
    """The faces of sites with ``sizes`` (sites,) rows."""
    d, c, k = inputs(frame), targets.strata, len(sizes)
    shapes = {"rows by class": (2, c), "sums by class": (2, c, 2 * d), "products by half": (2, 2 * d, 2 * d)}
    frame = {**frame, **targets.parameters}
    products, moments = np.zeros(()), []
    for part in compute("moments", {**shapes, **targets.shapes(2 * d)}, frame):
        products = products + part["products by half"]
        moments.append(targets.needed(part, d))
    number = targets.kinds(np.stack([part["rows by class"].sum(0) for part in moments]))
    alignments, kind_numbers = kinds(moments, targets.directions, number, seed)
    shared = {**frame, **classifiers(moments, products), **kind_numbers, **targets.model(moments, alignments)}
    cells = int(targets.group_of.max()) + 1, number * targets.cells_of_kind
    shapes = {"beyond thresholds": (2, k, c, 2), "rows by kind": cells}
    last = compute("faces", shapes, *({**shared, **alignment} for alignment in alignments))
    rounding, distance = targets.rounded, targets.distance
    return faces(last, targets.counts, targets.class_of, targets.fewest, rounding, distance, seed, sizes)


@dataclass(eq=False)
class Inquiry:
    """The questions of one diagnosis, in their order."""

    sites: tuple[str, ...]
    ask_sites: Ask
    seed: int = 0
    on_progress: OnProgress = lambda stage, fraction: None
    question: Question = field(default_factory=lambda: Question(step="columns"))

    def result(self, source: Source, runs: Path | None = None) -> dict[str, Any]:
        """The whole diagnosis as plain values, as `fedskew.diagnosis.diagnose.diagnosis` gives it of rows in one place.

        Raises `BadInput` if sites do not fit together, or if one refuses.
        """
        with threadpool_limits(1):  # as at the sites
            return self.values(source, runs)

    def values(self, source: Source, runs: Path | None) -> dict[str, Any]:
        first = self.ask([self.question] * len(self.sites))
        require(len(self.sites) >= 2, "diagnose: only one site; there is nothing to compare it with")
        targets = targets_of(first, self.histograms, source.classes)
        summaries = {site: answer.summary for site, answer in first.items() if answer.summary is not None}
        require(len(summaries) == len(self.sites), f"diagnose: {set(self.sites) - set(summaries)} sent no summary")
        encode = merged(summaries)
        self.question = replace(self.question, preprocessing=encode.preprocessing, classes=targets.names)
        tables = [summary.columns for summary in summaries.values()]
        columns = {name: [table[name] for table in tables] for name in encode.preprocessing.names}
        sizes = np.array([next(iter(table.values())).rows for table in tables])

        moments = {name: moments_of(columns[name]) for name in with_histograms(encode.preprocessing)}
        inner = {name: edges(of_sites) for name, of_sites in moments.items()}
        width, number = source.inputs or len(encode.preprocessing.inputs), len(moments)
        shapes = {"sum": (width,), "square": (width,), "histograms": (number, BINS if number else 0)}
        scaled = self.numbers("scale", shapes, {"edges": np.array([*inner.values()]).reshape(number, BINS - 1)})
        frame = frame_of(self.numbers, scaled, int(sizes.sum()))
        diagnosis = faces_from(self.numbers, frame, targets, targets.counts.sum(1), self.seed)
        numbers: dict[str, list[Tested]] = {}
        for at, name in enumerate(moments):
            counts = np.stack([answer["histograms"][at] for answer in scaled]).astype(np.int64)
            kind: Literal["content", "mean"] = "content" if name in source.computed else "mean"
            numbers[name] = of_numbers(name, kind, "", moments[name], counts, inner[name])
        of_columns = ((part, columns[part.name], numbers.get(part.name, [])) for part in encode.preprocessing.columns)
        tested = [test for of_column in of_columns for test in tests_of(*of_column)]
        if targets.kind == CLASSES:
            tested = self.by_class(tested, encode.preprocessing, targets.strata)
        copies = np.array([answer.copies for answer in first.values()])
        tested += [*targets.tested(source.label), *of_shares("rows", "copied", "", sizes, copies)]
        source, counts = self.noted(source, targets, encode.notes, first), diagnosis.counts
        return values_of(source, targets.table(), diagnosis, of_counts(counts, counts.sum(1)), tested, runs)

    def histograms(self, inner: Floats) -> list[Numbers]:
        """The histogram of each site's targets, with these edges."""
        return self.numbers("targets", {"histogram": (BINS,)}, {"target edges": inner})

    def noted(self, source: Source, targets: Targets, notes: Sequence[str], first: Mapping[str, Answer]) -> Source:
        """The source with the names of the sites, and with all notes. ``notes`` are about the columns."""
        few = int(targets.fewest.min())
        rule = f": no count that leaves a site is of fewer than {few} rows" if few > 1 else ""
        notes = () if source.inputs else notes  # a named data set has no file to mend
        to_mend = [note for note in notes if "columns.toml" in note]
        spelt = other_words(source.label or "label", {site: answer.classes for site, answer in first.items()})
        of_rows = (f"diagnosed without pooling rows{rule}", *source.notes, *spelt, *to_mend)
        of_columns = tuple(note for note in notes if note not in {*to_mend, *source.notes})
        return dataclasses.replace(source, clients=self.sites, notes=of_rows, column_notes=of_columns)

    def by_class(self, tested: Sequence[Tested], preprocessing: Tabular, classes: int) -> list[Tested]:
        """The tests of columns, with the sites' sums by class."""
        at = {fact: place for place, fact in enumerate(facts_of(preprocessing))}
        places = [(int(part.kind == "spread"), at[part.fact]) for part in tested]
        centres = np.zeros((3, len(at)))  # origins, centres of values, centres of their distances from the origin
        for part, (spread, place) in zip(tested, places, strict=True):
            centres[1 + spread, place] = part.centre
            centres[0, place] = part.origin if spread else centres[0, place]
        shapes = {"rows by class": (classes,), "columns by class": (2, len(at), classes)}
        answers = self.numbers("classes", shapes, {"centres": centres})
        rows, sums = (np.stack([answer[name] for answer in answers]) for name in shapes)
        return [
            part._replace(by_class=partial(lambda *both: both, sums[:, spread, place], rows))
            for part, (spread, place) in zip(tested, places, strict=True)
        ]

    def numbers(self, step: Step, shapes: Mapping[str, tuple[int, ...]], *parameters: Numbers) -> list[Numbers]:
        """Ask all sites the same, or each its own question. Raises `BadInput` for answers of other shapes."""
        of_sites = parameters if len(parameters) > 1 else parameters * len(self.sites)
        answers = self.ask([replace(self.question, step=step, numbers=arrays(numbers)) for numbers in of_sites])
        numbers = {site: numbers_of(site, answer.numbers) for site, answer in answers.items()}
        for site, sent in numbers.items():
            for name in shapes.keys() | sent.keys():
                shape = sent[name].shape if name in sent else None
                require(shape == shapes.get(name), f"{site}: {name} has shape {shape}, not {shapes.get(name)}")
        return [*numbers.values()]

    def ask(self, questions: Sequence[Question]) -> dict[str, Answer]:
        """The answers, in the order of the sites. Raises `BadInput` if a site refuses."""
        step = questions[0].step
        self.on_progress(f"asking for {step}", 0.0)
        answers = self.ask_sites(dict(zip(self.sites, questions, strict=True)))
        for site in self.sites:
            require(site in answers, f"{site}: no answer")
            require(not answers[site].refused, f"{site}: {answers[site].refused}")
            require(answers[site].step == step, f"{site}: answers {answers[site].step} instead of {step}")
        return {site: answers[site] for site in self.sites}


def tests_of(part: Column, summaries: Sequence[ColumnSummary], of_values: Sequence[Tested]) -> list[Tested]:
    """Compare a column's words and missing values at the sites, too. ``of_values`` are the tests of its numbers."""
    rows = np.array([summary.rows for summary in summaries])
    valid = np.array([summary.numbers.rows if isinstance(part, Number) else summary.valid for summary in summaries])
    tested = [*of_values]
    for word in part.known if isinstance(part, Words) else ():
        hits = np.array([summary.words.get(word, 0) for summary in summaries])
        tested += of_shares(part.name, "share", word, valid, hits)
    return [*tested, *of_shares(part.name, "missing", "", rows, rows - valid)]

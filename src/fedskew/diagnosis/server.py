"""The faces of all sites from what each computes of its own rows, and the questions to sites that do not pool their rows."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedskew.core.errors import require
from fedskew.data.preprocessing import Tabular
from fedskew.data.tables.schema import merged, other_words
from fedskew.diagnosis.columns import facts_of, in_columns, moments_of
from fedskew.diagnosis.questions import Answer, Numbers, Question, arrays, numbers_of
from fedskew.diagnosis.site import measured
from fedskew.diagnosis.subject import Facts, values_of
from fedskew.diagnosis.targets import ClassTargets, Targets, targets_of
from fedskew.measure.heterogeneity import sites as of_sites
from fedskew.measure.heterogeneity.columns import BINS, Tested, edges, listed, of_shares
from fedskew.measure.heterogeneity.details import of_counts
from fedskew.measure.heterogeneity.diagnose import Diagnosis

Ints = NDArray[np.int64]
Ask = Callable[[Mapping[str, Question]], Mapping[str, Answer]]
"""Send each site its question, and return their answers."""


Compute = Callable[..., Iterable[Numbers]]
"""``compute(step, shapes, *asked)`` returns the numbers of each site in a step, which have these shapes by name.

All sites are asked the same, or each its own.
"""


def frame_of(compute: Compute, scaled: Iterable[Numbers], rows: int) -> Numbers:
    """The frame in which inputs are compared. ``scaled`` are the sums of the inputs of each site, which have ``rows`` in all."""
    frame = of_sites.first_frame(scaled, rows)
    if not of_sites.wide(frame):
        return frame
    width = len(frame["mean"])
    frame = of_sites.with_directions(frame, compute("products", {"products": (width, width)}, frame), rows)
    number = inputs(frame)
    return of_sites.with_scales(frame, compute("directions", {"sum": (number,), "square": (number,)}, frame), rows)


def inputs(frame: Numbers) -> int:
    """The number of columns that are compared."""
    return frame["directions"].shape[1] + 1 if "directions" in frame else len(frame["mean"])


def faces_from(compute: Compute, frame: Numbers, targets: Targets, sizes: Ints, seed: int) -> Diagnosis:
    """The faces of sites with ``sizes`` (sites,) rows."""
    d, c, k = inputs(frame), targets.strata, len(sizes)
    shapes = {"rows by class": (2, c), "sums by class": (2, c, 2 * d), "products by half": (2, 2 * d, 2 * d)}
    frame = {**frame, **targets.asked}
    products, moments = np.zeros(()), []
    for part in compute("moments", {**shapes, **targets.sums(2 * d)}, frame):
        products = products + part["products by half"]
        moments.append(targets.needed(part, d))
    number = targets.kinds(np.stack([part["rows by class"].sum(0) for part in moments]))
    own, kinds = of_sites.kinds(moments, targets.directions, number, seed)
    asked = {**frame, **of_sites.classifiers(moments, products), **kinds, **targets.model(moments, own)}
    shapes = {"beyond thresholds": (2, k, c, 2), "rows by kind": targets.cells(number)}
    last = compute("faces", shapes, *({**asked, **part} for part in own))
    held, rounding, distance = targets.held, targets.rounded, targets.distance
    return of_sites.faces(last, held, targets.class_of, targets.fewest, rounding, distance, seed, sizes)


def federated(
    sites: Sequence[str],
    ask: Ask,
    facts: Facts,
    seed: int = 0,
    on_progress: Callable[[str, float], None] = lambda stage, fraction: None,
) -> dict[str, Any]:
    """The whole diagnosis as plain values, as `fedskew.diagnosis.diagnose.diagnosis` gives it of rows in one place."""
    with threadpool_limits(1):  # as at the sites
        return Inquiry(tuple(sites), ask, seed, on_progress).result(facts)


@dataclass(eq=False)
class Inquiry:
    """The questions of one diagnosis, in their order."""

    sites: tuple[str, ...]
    ask_sites: Ask
    seed: int
    on_progress: Callable[[str, float], None]
    question: Question = field(default_factory=lambda: Question(step="columns"))

    def result(self, facts: Facts) -> dict[str, Any]:
        """Ask, and measure. Raises `BadInput` if sites do not fit together, or if one refuses."""
        first = self.ask([replace(self.question, step="columns")] * len(self.sites))
        require(len(self.sites) >= 2, "diagnose: only one site; there is nothing to compare it with")
        targets = targets_of(
            first,
            lambda inner: self.numbers("targets", {"histogram": (BINS,)}, {"target edges": inner}),
            facts.classes,
        )
        spelt = other_words(facts.label, {site: answer.classes for site, answer in first.items()})
        facts = dataclasses.replace(facts, notes=(*facts.notes, *spelt))
        summaries = {site: answer.summary for site, answer in first.items() if answer.summary is not None}
        require(len(summaries) == len(self.sites), f"diagnose: {set(self.sites) - set(summaries)} sent no summary")
        encode = merged(summaries)
        self.question = replace(self.question, preprocessing=encode.preprocessing, classes=targets.names)
        columns = {
            name: [summary.columns[name] for summary in summaries.values()] for name in encode.preprocessing.names
        }
        sizes = np.array([next(iter(part.columns.values())).rows for part in summaries.values()])

        named = measured(encode.preprocessing)
        moments = {name: moments_of(columns[name]) for name in named}
        inner = np.array([edges(moments[name]) for name in named]).reshape(len(named), BINS - 1)
        width, rows = facts.inputs or len(encode.inputs), int(sizes.sum())
        shapes: dict[str, tuple[int, ...]] = {"sum": (width,), "square": (width,), "histograms": (len(named), BINS)}
        scaled = self.numbers("scale", shapes if named else {**shapes, "histograms": (0, 0)}, {"edges": inner})
        frame = frame_of(self.numbers, scaled, rows)
        found = faces_from(self.numbers, frame, targets, targets.held.sum(1), self.seed)
        held = {name: (np.stack([s["histograms"][at] for s in scaled]), inner[at]) for at, name in enumerate(named)}
        tested = in_columns(encode, columns, moments, held, facts.computed)
        if isinstance(targets, ClassTargets):
            tested = self.by_class(tested, encode.preprocessing, targets.strata)
        tested += [
            *targets.tested(),
            *of_shares("rows", "copied", "", sizes, np.array([answer.copies for answer in first.values()])),
        ]
        few = int(targets.fewest.min())
        how = f": no count that leaves a site is of fewer than {few} rows" if few > 1 else ""
        column_notes = () if facts.inputs else encode.notes  # a named data set has no file to mend
        to_mend = [note for note in column_notes if "columns.toml" in note]
        facts = dataclasses.replace(
            facts,
            clients=self.sites,
            notes=(f"diagnosed without pooling rows{how}", *facts.notes, *to_mend),
            column_notes=tuple(note for note in column_notes if note not in to_mend),
        )
        measures = of_counts(found.counts, found.counts.sum(1))
        return values_of(facts, targets.table(), found, measures, listed(tested, self.sites))

    def by_class(self, tested: Sequence[Tested], preprocessing: Tabular, classes: int) -> list[Tested]:
        """The tests of columns, with the sites' sums by class."""
        at = {fact: place for place, fact in enumerate(facts_of(preprocessing))}
        places = [(int(part.kind == "spread"), at[part.fact]) for part in tested]
        asked = np.zeros((3, len(at)))  # origins, centres of values, centres of their distances from the origin
        for part, (spread, place) in zip(tested, places, strict=True):
            asked[1 + spread, place] = part.centre
            asked[0, place] = part.origin if spread else asked[0, place]
        shapes = {"rows by class": (classes,), "columns by class": (2, len(at), classes)}
        sent = self.numbers("classes", shapes, {"centres": asked})
        rows, sums = (np.stack([answer[name] for answer in sent]) for name in shapes)
        return [
            part._replace(by_class=partial(lambda *both: both, sums[:, spread, place], rows))
            for part, (spread, place) in zip(tested, places, strict=True)
        ]

    def numbers(self, step: str, shapes: Mapping[str, tuple[int, ...]], *asked: Numbers) -> list[Numbers]:
        """Ask all sites the same, or each its own question. Raises `BadInput` for answers of other shapes."""
        each = asked if len(asked) > 1 else asked * len(self.sites)
        questions = [replace(self.question, step=step, numbers=arrays(one)) for one in each]
        found = []
        for site, answer in self.ask(questions).items():
            numbers = numbers_of(site, answer.numbers)
            for name in shapes.keys() | numbers.keys():
                shape = numbers[name].shape if name in numbers else None
                require(shape == shapes.get(name), f"{site}: {name} has shape {shape}, not {shapes.get(name)}")
            found.append(numbers)
        return found

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

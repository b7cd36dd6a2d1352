"""The diagnosis of sites that do not pool their rows: questions to all of them, and one result of their answers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from fedskew.core.errors import require
from fedskew.data.conflicts import other_words
from fedskew.data.schema import merged
from fedskew.experiment.federated_columns import in_columns, moments_of
from fedskew.experiment.federated_site import measured
from fedskew.experiment.federated_targets import Targets, targets_of
from fedskew.experiment.questions import Answer, Numbers, Question, arrays, numbers_of
from fedskew.experiment.subject import Subject, values_of
from fedskew.measure.heterogeneity import sites as of_sites
from fedskew.measure.heterogeneity.columns import Difference, listed
from fedskew.measure.heterogeneity.details import of_counts
from fedskew.measure.heterogeneity.histograms import BINS, edges, of_shares

Ask = Callable[[Mapping[str, Question]], Mapping[str, Answer]]
"""Send each site its question, and return their answers."""


@dataclass(frozen=True, eq=False)
class Facts:
    """What a diagnosis is of, as in `Subject`."""

    title: str
    name: str = ""
    arguments: str = ""
    notes: tuple[str, ...] = ()
    label: str = "LABEL"  # the column of classes, if the server knows its name


def federated(
    sites: Sequence[str],
    ask: Ask,
    facts: Facts,
    seed: int = 0,
    on_progress: Callable[[str, float], None] = lambda stage, fraction: None,
) -> dict[str, Any]:
    """The whole diagnosis as plain values, as `fedskew.experiment.diagnose.diagnosis` gives it of pooled rows."""
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
            first, lambda inner: self.numbers("targets", {"histogram": (BINS,)}, {"target edges": inner})
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
        fewest = targets.fewest

        named = measured(encode.preprocessing)
        moments = {name: moments_of(columns[name]) for name in named}
        inner = np.array([edges(moments[name]) for name in named]).reshape(len(named), BINS - 1)
        width, rows = len(encode.inputs), int(sizes.sum())
        shapes: dict[str, tuple[int, ...]] = {"sum": (width,), "square": (width,), "histograms": (len(named), BINS)}
        scaled = self.numbers("scale", shapes if named else {**shapes, "histograms": (0, 0)}, {"edges": inner})
        frame = self.with_directions(of_sites.first_frame(scaled, rows), rows)

        d, c, k = self.inputs(frame), targets.strata, len(self.sites)
        shapes = {"rows by class": (2, c), "sums by class": (2, c, 2 * d), "products by half": (2, 2 * d, 2 * d)}
        frame = {**frame, **targets.asked}
        held = self.numbers("moments", {**shapes, **targets.sums(2 * d)}, frame)
        number = targets.kinds(np.stack([one["rows by class"].sum(0) for one in held]))
        own, kinds = of_sites.kinds(held, targets.directions, number, self.seed)
        asked = {**frame, **of_sites.classifiers(held), **kinds, **targets.model(held, own)}
        shapes = {"beyond thresholds": (2, k, c, 2), "rows by kind": targets.cells(number)}
        last = self.numbers("faces", shapes, *({**asked, **one} for one in own))
        found = of_sites.faces(
            last, targets.held, targets.class_of, fewest, targets.rounded, targets.distance, self.seed
        )

        tested = [
            *in_columns(
                encode,
                columns,
                moments,
                {name: (np.stack([s["histograms"][at] for s in scaled]), inner[at]) for at, name in enumerate(named)},
            ),
            *targets.tested(),
            *of_shares("rows", "copied", "", sizes, np.array([answer.copies for answer in first.values()])),
        ]
        few = int(fewest.min())
        how = f": no count that leaves a site is of fewer than {few} rows" if few > 1 else ""
        return self.values(facts, how, targets, found, encode.notes, listed(tested, self.sites))

    def values(
        self,
        facts: Facts,
        how: str,
        targets: Targets,
        found: of_sites.Diagnosis,
        notes: tuple[str, ...],
        differences: tuple[list[Difference], list[list[Difference]]],
    ) -> dict[str, Any]:
        none = np.zeros(0, dtype=np.int64)
        subject = Subject(
            title=facts.title,
            x=none,
            y=none,
            client=none,
            counts=none,
            classes=(),
            clients=self.sites,
            notes=(
                f"diagnosed without pooling rows{how}",
                *facts.notes,
                *(note for note in notes if "columns.toml" in note),
            ),
            column_notes=tuple(note for note in notes if "columns.toml" not in note),
            name=facts.name,
            arguments=facts.arguments,
        )
        measures = of_counts(found.counts, found.counts.sum(1))
        return values_of(targets.of(subject), found, measures, differences)

    def with_directions(self, frame: Numbers, rows: int) -> Numbers:
        """The frame, with the principal directions of wide rows."""
        if not of_sites.wide(frame):
            return frame
        width = len(frame["mean"])
        frame = of_sites.with_directions(frame, self.numbers("products", {"products": (width, width)}, frame), rows)
        number = self.inputs(frame)
        return of_sites.with_scales(
            frame, self.numbers("directions", {"sum": (number,), "square": (number,)}, frame), rows
        )

    @staticmethod
    def inputs(frame: Numbers) -> int:
        """The number of columns that are compared."""
        return frame["directions"].shape[1] + 1 if "directions" in frame else len(frame["mean"])

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

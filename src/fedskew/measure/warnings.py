"""Signs that a run goes wrong, read off its measurements while it goes: each with its measure, threshold, source and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

EXPLODED, WINDOW, SWING, DOMINATES, ABSENT, ONE_CLASS, LEARNT = 20.0, 10, 0.05, 0.5, 5, 0.95, 0.99


class Warned(NamedTuple):
    """One sign, the first time that it shows."""

    kind: str
    round: int
    measured: str  # what was found, in words
    threshold: str
    source: str
    remedy: str

    def line(self) -> str:
        return f"round {self.round}: {self.measured} ({self.threshold}; {self.source}). Try: {self.remedy}"


@dataclass
class Watch:
    """What is remembered of a run so that its signs can be told; rebuilt from the stored rounds when a run is resumed."""

    classes: Sequence[str]
    label_counts: NDArray[np.int64]  # (clients, classes)
    names: Sequence[str]  # of the clients
    by_rows: bool  # whether the method weighs clients by their rows
    labels_told: bool = True  # whether the counts are of the clients' classes, or only of their rows
    said: set[str] = field(default_factory=set)
    divergences: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    absent: NDArray[np.int64] = field(init=False)  # (classes,) rounds in a row without the class

    def __post_init__(self) -> None:
        self.absent = np.zeros(len(self.classes), dtype=np.int64)

    def begin(self) -> list[Warned]:
        """What the partition alone tells."""
        missing = [self.classes[c] for c in np.flatnonzero(self.label_counts.sum(0) == 0).tolist()]
        if not (missing and self.labels_told):
            return []
        found = f"no client holds any row of {', '.join(missing)}"
        return self.once(
            "missing class", 0, found, "threshold: one row", SKEW, "another partition seed, or a milder skew"
        )

    def hear(
        self,
        round_: int,
        cohort: NDArray[np.int64],
        divergence: float | None,
        accuracy: float | None,
        local_accuracy: dict[int, float],
    ) -> list[Warned]:
        """The signs that show for the first time after a round.

        ``cohort`` holds the ids of those who took part; ``local_accuracy`` is that of local models on their clients' own rows.
        """
        if divergence is not None:
            self.divergences.append(divergence)
        if accuracy is not None:
            self.accuracies.append(accuracy)
        counts = self.label_counts[cohort]
        return [
            *self.exploding(round_),
            *self.oscillating(round_),
            *self.dominated(round_, cohort, counts.sum(1)),
            *(self.without_a_class(round_, counts.sum(0)) if self.labels_told else ()),
            *(self.collapsed(round_, local_accuracy) if self.labels_told else ()),
        ]

    def exploding(self, round_: int) -> list[Warned]:
        first = next((d for d in self.divergences if d > 0), 0.0)
        if not first or self.divergences[-1] <= EXPLODED * first:
            return []
        found = f"divergence is {self.divergences[-1] / first:.0f} times that of the first round"
        return self.once("exploding", round_, found, f"threshold {EXPLODED:g}", RATE, "a smaller learning rate")

    def oscillating(self, round_: int) -> list[Warned]:
        last = np.array(self.accuracies[-WINDOW - 1 :])
        if len(last) <= WINDOW:
            return []
        swing = float(np.abs(np.diff(last)).mean())
        if swing <= SWING or abs(last[-1] - last[0]) > swing * WINDOW / 2:
            return []
        found = f"test accuracy changed by {100 * swing:.1f} points a round over the last {WINDOW} measured rounds"
        remedy = "a smaller learning rate, fewer local epochs, more clients a round, or momentum on the server"
        return self.once("oscillating", round_, found, f"threshold {100 * SWING:g} points", SWINGS, remedy)

    def dominated(self, round_: int, cohort: NDArray[np.int64], rows: NDArray[np.int64]) -> list[Warned]:
        if not self.by_rows or len(cohort) < 3 or rows.max() <= DOMINATES * rows.sum():
            return []
        share, name = rows.max() / rows.sum(), self.names[int(cohort[rows.argmax()])]
        found = f"client {name} has {100 * share:.0f} % of the weight"
        return self.once(
            "dominated", round_, found, f"threshold {100 * DOMINATES:g} %", SIZES, "weighting=uniform, or fednova"
        )

    def without_a_class(self, round_: int, rows: NDArray[np.int64]) -> list[Warned]:
        held = self.label_counts.sum(0) > 0
        self.absent = np.where(rows == 0, self.absent + 1, 0)
        gone = [self.classes[c] for c in np.flatnonzero(held & (self.absent >= ABSENT)).tolist()]
        if not gone:
            return []
        found = f"nobody who took part in the last {ABSENT} rounds holds {', '.join(gone)}"
        return self.once("absent class", round_, found, f"threshold {ABSENT} rounds", TURNOUT, "more clients a round")

    def collapsed(self, round_: int, local_accuracy: dict[int, float]) -> list[Warned]:
        sizes = self.label_counts.sum(1)
        shares = self.label_counts.max(1) / np.maximum(sizes, 1)
        alone = [k for k, right in local_accuracy.items() if shares[k] >= ONE_CLASS and right >= LEARNT]
        if not alone:
            return []
        k = alone[0]
        found = (
            f"{len(alone)} local model{'s' * (len(alone) > 1)} may answer nothing but one class; of client {self.names[k]}'s rows "
            f"{100 * shares[k]:.0f} % are of class {self.classes[int(self.label_counts[k].argmax())]}, and its model is "
            f"{100 * local_accuracy[k]:.0f} % right there"
        )
        threshold = f"thresholds {100 * ONE_CLASS:g} % of the rows and {100 * LEARNT:g} % right"
        return self.once("collapsed", round_, found, threshold, SKEW, "fewer local epochs, fedlc, fedntd or scaffold")

    def once(self, kind: str, round_: int, measured: str, threshold: str, source: str, remedy: str) -> list[Warned]:
        if kind in self.said:
            return []
        self.said.add(kind)
        return [Warned(kind, round_, measured, threshold, source, remedy)]


RATE = "failure-modes study, Figure 6"
SWINGS = "failure-modes study, Figure 1, where FedAvg swings between 75 and 85 %"
SKEW = "failure-modes study, Table III, alpha = 0.01"
SIZES = "From IID to Non-IID, Figures 6 and 7"
TURNOUT = "From IID to Non-IID, Figure 9"

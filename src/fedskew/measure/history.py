"""What the history of a run shows: warnings round by round, and the rounds until accuracy has recovered from a change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedskew.measure.registry import Measure, Measures

SHARE, BEFORE = 0.95, 10


def recovery(accuracy: Mapping[int, float], change: int, complete: int) -> int | None:
    """Return the number of rounds from ``change``, the first changed round, until the accuracy has recovered; None if never.

    It has recovered at 95 % of its mean over the last ten measurements before the change. Rounds before ``complete`` do not
    count, because a slow change does not lower the accuracy at once. ``accuracy`` (0..1) is by round.
    """
    before = [accuracy[r] for r in sorted(accuracy) if r < change][-BEFORE:]
    if not before:
        return None
    goal = SHARE * sum(before) / len(before)
    return next((r - change for r in sorted(accuracy) if r >= complete and accuracy[r] >= goal), None)


Ints = NDArray[np.int64]

EXPLODED, WINDOW, SWING, DOMINATES, ABSENT, ONE_CLASS, LEARNT = 20.0, 10, 0.05, 0.5, 5, 0.95, 0.99

SKEW = "Goel, Srivastava, Shah (Failure Modes), Table III, alpha = 0.01"
ANSWERS = "each row is answered by the model that its site would use"
SIGNS = {
    "missing class": ("threshold: one row", SKEW, "another partition seed, or a skew that deals all rows"),
    "exploding": (
        f"threshold {EXPLODED:g}",
        "Goel, Srivastava, Shah (Failure Modes), Figure 6",
        "a smaller learning rate",
    ),
    "oscillating": (
        f"threshold {100 * SWING:g} points, or {100 * SWING:g} % of the metric's mean",
        "Goel, Srivastava, Shah (Failure Modes), Figure 1, where FedAvg swings between 75 and 85 %",
        "a smaller learning rate, fewer local epochs, more clients a round, or momentum on the server",
    ),
    "dominated": (f"threshold {100 * DOMINATES:g} %", "From IID to Non-IID, Figures 6 and 7", "weighting=uniform"),
    "absent class": (f"threshold {ABSENT} rounds", "From IID to Non-IID, Figure 9", "more clients a round"),
    "collapsed": (
        f"thresholds {100 * ONE_CLASS:g} % of the rows and {100 * LEARNT:g} % right",
        SKEW,
        "fewer local epochs, a milder skew, or fewer clients with more rows each",
    ),
    "one answer": ("threshold: every row", ANSWERS, "more rounds, another learning rate, or class weights"),
    "worse than a constant": ("threshold: any difference", ANSWERS, "more rounds, or another learning rate"),
}
"""Threshold, source and remedy of each warning."""

REMEDIES_OF_NATURAL = {
    "missing class": "a client that has rows of the class, or a data set without the class",
    "collapsed": "fewer local epochs, or a method that corrects for labels",
}
"""Other remedies for natural clients, whose data nobody can deal in another way."""

STAGES = {
    "available": ("was online", "a higher probability of being online, or more clients"),
    "selected": ("was selected", "a selection with a higher rate, or more clients"),
    "answered": ("answered", "a lower system.dropout, or more clients"),
    "clients": ("was in time", "fewer stragglers, or their partial work (system.drop_stragglers=false)"),
}
"""The stages of a round: what a client did that reached it, and what to try if none did."""


class Warned(NamedTuple):
    """A warning, at the first round that shows it."""

    kind: str
    round: int
    measured: str  # the measured value, in words
    threshold: str
    source: str
    remedy: str

    def line(self) -> str:
        """Return the warning as one line."""
        return f"round {self.round}: {self.measured} ({self.threshold}; {self.source}). Try: {self.remedy}"


@dataclass
class Watch:
    """What the warnings need to know of a run's earlier rounds. A resumed run builds it again from the stored rounds."""

    classes: Sequence[str]
    label_counts: Ints  # (clients, classes)
    names: Sequence[str]  # of the clients
    by_rows: bool  # True if the method weights clients by their rows
    natural: bool = False  # True if the clients are natural ones, and no skew has dealt their rows
    has_labels: bool = True  # True if the counts are of classes; False if they are of rows only
    measure: Measure = field(default_factory=Measures().primary)  # the run's primary measure
    rounds: int = 0  # planned
    empty: list[str] = field(default_factory=list)  # the first stage that no client reached, of rounds without clients
    played: int = 0
    kinds: set[str] = field(default_factory=set)  # of warnings so far
    divergences: list[float] = field(default_factory=list)
    tested: list[float] = field(default_factory=list)
    absent: Ints = field(init=False)  # (classes,) number of consecutive rounds without the class

    def __post_init__(self) -> None:
        self.absent = np.zeros(len(self.classes), dtype=np.int64)

    def begin(self) -> list[Warned]:
        """Return the warnings of the partition."""
        missing = [self.classes[c] for c in np.flatnonzero(self.label_counts.sum(0) == 0).tolist()]
        text = f"no client holds any row of {', '.join(missing)}" if missing and self.has_labels else ""
        return self.new(0, {"missing class": text})

    def count_clients(self, round_: int, reached: Mapping[str, float]) -> list[Warned]:
        """Count a round.

        ``reached`` is the number of clients at each stage. The last round warns if some rounds had no clients. If no round had
        clients, the run ends with an error and no result.
        """
        self.played += 1
        self.empty += [stage for stage in STAGES if not reached.get(stage, 1.0)][:1]
        if round_ != self.rounds or not self.empty or self.untrained:
            return []
        source = "the model changes only in rounds with clients"
        return [Warned("no clients", round_, self.absence(), "threshold: one round", source, self.cure())]

    def absence(self) -> str:
        """Say in how many rounds no client took part, and what no client did in most of them."""
        missing = STAGES[max(STAGES, key=self.empty.count)][0]
        rounds = f"any of {self.played}" if self.untrained else f"{len(self.empty)} of {self.played}"
        return f"no client took part in {rounds} rounds, mostly because none {missing}"

    def cure(self) -> str:
        """Return what to try if no client took part in a round."""
        return STAGES[max(STAGES, key=self.empty.count)][1]

    @property
    def untrained(self) -> bool:
        """True if no client took part in any round, so that the model is still the first one."""
        return 0 < self.played == len(self.empty)

    def after_round(
        self,
        round_: int,
        cohort: Ints,
        divergence: float | None,
        tested: float | None,
        local_accuracy: Mapping[int, float],
    ) -> list[Warned]:
        """Return the new warnings after a round.

        ``cohort`` has the ids of the round's clients. ``tested`` is the primary measure on the test rows. ``local_accuracy``
        is the accuracy (0..1) of each client's local model on the client's rows.
        """
        if divergence is not None:
            self.divergences.append(divergence)
        if tested is not None:
            self.tested.append(tested)
        counts = self.label_counts[cohort]
        signs = {"exploding": self.exploding(), "oscillating": self.oscillating()}
        signs["dominated"] = self.dominated(cohort, counts.sum(1))
        if self.has_labels:
            signs |= {"absent class": self.absent_class(counts.sum(0)), "collapsed": self.collapsed(local_accuracy)}
        return self.new(round_, signs)

    def at_sites(self, round_: int, found: Mapping[str, float]) -> list[Warned]:
        """Return the warnings of the last models, from the values over all rows at the sites, by name."""
        name, rows = self.measure.name, f"{found.get('rows', 0):.0f} rows at the sites"
        value, constant = found.get(name, np.nan), found.get("constant", np.nan)
        worse = self.measure.sign * value < self.measure.sign * constant
        ahead = f"{self.measure.title} is {100 * value:.1f} % on the {rows}, and {100 * constant:.1f} %"
        if self.measure.unit != "%":
            ahead = f"{self.measure.title} is {value:.4g} on the {rows}, and {constant:.4g}"
        signs = {"one answer": f"all {rows} get the same answer" if found.get("answers") == 1 else ""}
        signs["worse than a constant"] = f"{ahead} if all get the same answer" if worse else ""
        return self.new(round_, signs)

    def new(self, round_: int, signs: Mapping[str, str]) -> list[Warned]:
        """Return warnings for the kinds in ``signs`` that have a text and are new."""
        fresh = [kind for kind, text in signs.items() if text and kind not in self.kinds]
        self.kinds.update(fresh)
        remedies = REMEDIES_OF_NATURAL if self.natural else {}
        return [
            Warned(kind, round_, signs[kind], *SIGNS[kind][:2], remedies.get(kind, SIGNS[kind][2])) for kind in fresh
        ]

    def exploding(self) -> str:
        """Return a warning if the divergence is above `EXPLODED` times the first one; otherwise an empty text."""
        first = next((d for d in self.divergences if d > 0), 0.0)
        if not first or self.divergences[-1] <= EXPLODED * first:
            return ""
        return f"divergence is {self.divergences[-1] / first:.0f} times that in the first round"

    def oscillating(self) -> str:
        """Return a warning if the primary measure goes up and down by more than `SWING`; otherwise an empty text."""
        last = np.array(self.tested[-WINDOW - 1 :])
        if len(last) <= WINDOW:
            return ""
        share = self.measure.unit == "%"
        last = last if share else last / max(float(np.abs(last).mean()), 1e-300)
        swing = float(np.abs(np.diff(last)).mean())
        if swing <= SWING or abs(last[-1] - last[0]) > swing * WINDOW / 2:
            return ""
        change = f"{100 * swing:.1f} {'points' if share else '%'}"
        return f"{self.measure.label} changed by {change} a round over the last {WINDOW} measured rounds"

    def dominated(self, cohort: Ints, rows: Ints) -> str:
        """Return a warning if a client has most of the ``rows`` (C,) of the ``cohort``; otherwise an empty text."""
        if not self.by_rows or len(cohort) < 3 or rows.max() <= DOMINATES * rows.sum():
            return ""
        client, percent = self.names[int(cohort[rows.argmax()])], 100 * rows.max() / rows.sum()
        return f"client {client} has {percent:.0f} % of the weight"

    def absent_class(self, rows: Ints) -> str:
        """Return a warning if a class was absent in the last `ABSENT` rounds; otherwise an empty text. It counts the round.

        ``rows`` (classes,) are the cohort's numbers of rows of each class.
        """
        present = self.label_counts.sum(0) > 0
        self.absent = np.where(rows == 0, self.absent + 1, 0)
        absent = [self.classes[c] for c in np.flatnonzero(present & (self.absent >= ABSENT)).tolist()]
        return f"no client of the last {ABSENT} rounds holds {', '.join(absent)}" if absent else ""

    def collapsed(self, local_accuracy: Mapping[int, float]) -> str:
        """Return a warning if a local model seems to predict one class only; otherwise an empty text."""
        shares = self.label_counts.max(1) / np.maximum(self.label_counts.sum(1), 1)
        alone = [k for k, right in local_accuracy.items() if shares[k] >= ONE_CLASS and right >= LEARNT]
        if not alone:
            return ""
        k = alone[0]
        return (
            f"{len(alone)} local model{'s' * (len(alone) > 1)} may predict one class only; of client {self.names[k]}'s rows "
            f"{100 * shares[k]:.0f} % are of class {self.classes[int(self.label_counts[k].argmax())]}, and its model is "
            f"right on {100 * local_accuracy[k]:.0f} % of them"
        )

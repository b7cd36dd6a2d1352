"""Early stopping: which round's model is best on the clients' held-out rows, and when training ends."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from fedskew.core.errors import require
from fedskew.engine.states import AnyStates, DiskStates
from fedskew.execution.build import Assembly
from fedskew.loop.personal import measures_personal
from fedskew.store.runs import Row, RunStore


@dataclass
class Patience:
    """Follows the clients' scores over the measured rounds. Without ``most`` it does nothing.

    A round is the best one if its mean score exceeds the best so far by more than ``gain``. On machines a client may not answer:
    the mean is over the clients with a score in both rounds.
    """

    split: str  # of the scores
    name: str
    sign: int  # -1 if lower scores are better, else 1
    gain: float
    most: int | None  # number of measured rounds without a better one after which training ends
    best: int = 0  # the best round so far; 0: none
    scores: Mapping[int, float] = field(default_factory=dict)  # of the best round by client, with the sign
    idle: int = 0  # number of measured rounds since

    def after(self, round_: int, rows: Sequence[Row]) -> bool:
        """Take in the rows of a round; return True if the round is the best one so far."""
        key = (self.split, self.name)
        scores = {k: self.sign * value for k, split, name, value in rows if k is not None and (split, name) == key}
        both = scores.keys() & self.scores.keys() if self.best else scores.keys()
        if self.most is None or not both:
            return False
        gains = math.fsum([scores[k] for k in both] + [-self.scores.get(k, 0.0) for k in both])
        better = not self.best or gains / len(both) > self.gain
        self.idle = 0 if better else self.idle + 1
        if better:
            self.best, self.scores = round_, scores
        return better

    @property
    def ended(self) -> bool:
        """True if training ends."""
        return self.most is not None and self.idle >= self.most


def patience_of(store: RunStore, run: int, assembly: Assembly, states: AnyStates, rounds: int) -> Patience:
    """Return the patience of a run as it is after its first ``rounds`` rounds. A resumed run then ends like an uninterrupted one.

    The scores are the primary metric on each client's rows: of its personal model if there is one.
    """
    training, measure = assembly.experiment.training, assembly.experiment.measure
    split = "personal-model" if measures_personal(assembly.federation) else "global-model"
    gain = (training.least_gain or 0.0) / (100 if measure.unit == "%" else 1)
    patience = Patience(split, measure.name, measure.sign, gain, training.patience)
    if patience.most is None:
        return patience
    require(
        not isinstance(states, DiskStates),
        "training: patience needs the client states of the best round, and a file on disk has only the newest; set "
        "training.states to memory, or leave patience out",
    )
    measured = store.curves([run], [f"{split}/{measure.name}"], per_client=True)
    for round_, values in groupby((m for m in measured if 0 < m.round <= rounds), key=lambda m: m.round):
        patience.after(round_, [(m.client, m.split, m.name, m.value) for m in values])
    return patience

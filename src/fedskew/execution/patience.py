"""Early stopping: which round's model is best on the clients' held-out rows, and when training ends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedskew.core.errors import require
from fedskew.engine.states import AnyStates, DiskStates
from fedskew.execution.build import Assembly
from fedskew.loop.personal import measures_personal
from fedskew.store.runs import Row, RunStore


@dataclass
class Patience:
    """Follows a score over the measured rounds. Without ``most`` it does nothing.

    A round is the best one if its score exceeds the best so far by more than ``gain``.
    """

    split: str  # of the score
    name: str
    sign: int  # -1 if lower scores are better, else 1
    gain: float
    most: int | None  # number of measured rounds without a better one after which training ends
    best: int = 0  # the best round so far; 0: none
    score: float = -math.inf  # of the best round, with the sign
    idle: int = 0  # number of measured rounds since

    def after(self, round_: int, rows: Sequence[Row]) -> bool:
        """Take in the rows of a round; return True if the round is the best one so far."""
        values = [v for client, *key, v in rows if client is None and key == [self.split, self.name]]
        if self.most is None or not values:
            return False
        better = self.sign * values[0] > self.score + self.gain
        self.idle = 0 if better else self.idle + 1
        if better:
            self.best, self.score = round_, self.sign * values[0]
        return better

    @property
    def ended(self) -> bool:
        """True if training ends."""
        return self.most is not None and self.idle >= self.most


def patience_of(store: RunStore, run: int, assembly: Assembly, states: AnyStates, rounds: int) -> Patience:
    """Return the patience of a run as it is after its first ``rounds`` rounds. A resumed run then ends like an uninterrupted one.

    The score is the primary metric as a mean over the clients: of their personal models if they have any.
    """
    training, measure = assembly.experiment.training, assembly.experiment.measure
    split = "personal" if measures_personal(assembly.federation) else "clients"
    gain = (training.least_gain or 0.0) / (100 if measure.unit == "%" else 1)
    sign = -1 if measure.better == "lower" else 1
    patience = Patience(split, f"{measure.name}_mean", sign, gain, training.patience)
    if patience.most is None:
        return patience
    require(
        not isinstance(states, DiskStates),
        "training: patience needs the client states of the best round, and a file on disk has only the newest; set "
        "training.states to memory, or leave patience out",
    )
    for m in store.curves([run], [f"{split}/{patience.name}"]):
        if 0 < m.round <= rounds:
            patience.after(m.round, [(None, m.split, m.name, m.value)])
    return patience

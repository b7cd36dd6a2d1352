"""Measures of a round that need earlier rounds, which are in the store."""

from fedskew.experiment.config import Experiment
from fedskew.measure.recovery import recovery
from fedskew.skew.concept import Concept
from fedskew.store.runs import Row, RunStore


def recovery_rows(store: RunStore, run: int, experiment: Experiment, round_: int, rows: list[Row]) -> list[Row]:
    """Return the number of rounds until the model recovered from the first concept change.

    It is returned once, in the round of the recovery; otherwise the list is empty.
    """
    changes = [(s.at_round, s.complete) for s in experiment.skew if isinstance(s, Concept) and s.at_round > 0]
    tested = [value for client, split, name, value in rows if (split, name) == ("test", "accuracy")]
    if not changes or not tested or round_ < min(changes)[1]:
        return []
    frame = store.measurements([run], per_client=False).query("split == 'test'")
    if (frame["name"] == "recovery").any():
        return []
    accuracy = frame[frame["name"] == "accuracy"]
    known = dict(zip(accuracy["round"].tolist(), accuracy["value"].tolist(), strict=True))
    known[round_] = tested[0]
    rounds = recovery(known, *min(changes))
    return [] if rounds is None else [(None, "test", "recovery", float(rounds))]


HIGHEST = """
SELECT client, max(value) FROM measurements WHERE run=? AND round<? AND split='class' AND name='accuracy' GROUP BY client
"""


def forgetting_rows(store: RunStore, run: int, round_: int, rows: list[Row]) -> list[Row]:
    """Return how far each class's accuracy fell below its highest in earlier rounds (0..1), and the mean over classes."""
    measured = {c: value for c, split, name, value in rows if (split, name) == ("class", "accuracy")}
    if not measured:
        return []
    highest = dict(store.query(HIGHEST, (run, round_)))
    lost = {c: max(highest.get(c, 0.0) - value, 0.0) for c, value in measured.items()}
    mean = sum(lost.values()) / len(lost)
    return [*((c, "class", "forgetting", value) for c, value in lost.items()), (None, "test", "forgetting", mean)]

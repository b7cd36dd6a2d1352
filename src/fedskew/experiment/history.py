"""Measures of a round that depend on the stored rounds before it."""

from fedskew.experiment.config import Experiment
from fedskew.measure.recovery import recovery
from fedskew.skew.concept import Concept
from fedskew.store.runs import Row, RunStore


def recovery_rows(store: RunStore, run: int, experiment: Experiment, round_: int, rows: list[Row]) -> list[Row]:
    """Rounds until the model recovered from the first change of the concept; nothing before that, and nothing twice."""
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
    """Each class's fall below its highest accuracy of earlier rounds (0..1), and the mean over the classes."""
    measured = {c: value for c, split, name, value in rows if (split, name) == ("class", "accuracy")}
    if not measured:
        return []
    highest = dict(store.query(HIGHEST, (run, round_)))
    lost = {c: max(highest.get(c, 0.0) - value, 0.0) for c, value in measured.items()}
    mean = sum(lost.values()) / len(lost)
    return [*((c, "class", "forgetting", value) for c, value in lost.items()), (None, "test", "forgetting", mean)]

"""The number of rounds that a model needs to recover after a change of the concept."""

from collections.abc import Mapping

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

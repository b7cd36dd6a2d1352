"""How long a model needs to recover after the world has changed."""

from __future__ import annotations

from collections.abc import Mapping

SHARE, BEFORE = 0.95, 10


def recovery(accuracy: Mapping[int, float], change: int, complete: int) -> int | None:
    """Rounds from the first one under the change, ``change``, until accuracy is back; None as long as it is not.

    Back is 95 % of the mean over the last ten measurements before the change. Nothing counts before the change is ``complete``, so
    that a slow one is not taken for a recovery before it has begun to tell. ``accuracy``: by round, what was measured.
    """
    before = [accuracy[r] for r in sorted(accuracy) if r < change][-BEFORE:]
    if not before:
        return None
    goal = SHARE * sum(before) / len(before)
    return next((r - change for r in sorted(accuracy) if r >= complete and accuracy[r] >= goal), None)

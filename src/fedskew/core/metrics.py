"""A metric: how good a model is on some rows, as one number."""

import math
from dataclasses import dataclass, fields
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TaskMetric:
    """One metric of a task.

    name: its name in the store. title: its name in headings. unit: ``%`` for shares in 0..1, which are shown times 100.
    better: which values are better. low, high: its range. note: what else a reader must know. aside: True if it is only shown
    beside the primary metric, so that the worst client and personal models have no column of it. pooled: True if it is not a sum
    over rows, and is computed from the outputs of all rows (`fedskew.core.task.Pooling`).
    """

    name: str
    title: str
    better: Literal["higher", "lower"]
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf
    note: str = ""
    aside: bool = False
    pooled: bool = False

    def given(self) -> dict[str, object]:
        """The fields that are not defaults, which JSON can hold."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    @property
    def meaning(self) -> str:
        """Range and note, as the end of a sentence."""
        span = f", {self.low:g}..{self.high:g}" if math.isfinite(self.low) and math.isfinite(self.high) else ""
        notes = [self.note, "computed from the outputs of all rows together" if self.pooled else ""]
        return span + "".join(f"; {note}" for note in notes if note)

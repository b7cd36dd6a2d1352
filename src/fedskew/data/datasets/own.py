"""Data that a program passed in: the experiment records only their fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Own:
    """Stands in a stored experiment for arrays that were given from Python."""

    fingerprint: str

    model: ClassVar[str] = "mlp"
    idea: ClassVar[str] = "arrays given from Python, run(experiment, data=...)"

    def load(self) -> Dataset:
        raise BadInput(
            f"this experiment used data given from Python (fingerprint {self.fingerprint}); "
            "repeat it there with run(experiment, data=...)"
        )

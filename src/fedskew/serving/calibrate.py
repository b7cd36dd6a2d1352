"""Probabilities that fit the share of right predictions: a temperature."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedskew.data.targets import Ints, Rows
from fedskew.report.style import blank
from fedskew.tasks.ranking import BINS, calibration_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Calibration(NamedTuple):
    """A ``temperature`` that divides outputs, and probabilities (n, K) of test rows with classes ``y`` before and after."""

    temperature: float
    before: Rows
    after: Rows
    y: Ints

    @property
    def errors(self) -> tuple[float, float]:
        """The expected calibration errors of the test rows before and after."""
        before, after = (calibration_error(p.max(1), p.argmax(1) == self.y) for p in (self.before, self.after))
        return before, after

    def plot(self) -> Figure:
        """Draw how often predictions are right, by their probability, before and after."""
        from sklearn.calibration import CalibrationDisplay

        with blank(360) as (figure, axes):
            for name, p in (("before", self.before), ("after", self.after)):
                CalibrationDisplay.from_predictions(p.argmax(1) == self.y, p.max(1), n_bins=BINS, name=name, ax=axes)
            axes.set(xlabel="probability of the predicted class", ylabel="share of right predictions")
        return figure


def temperature_of(outputs: Tensor, y: Tensor) -> float:
    """Return the temperature at which the outputs (n, K) have the least log loss (Guo, Pleiss, Sun and Weinberger 2017)."""
    from scipy.optimize import minimize_scalar

    z = outputs.double()
    least = minimize_scalar(lambda log: float(cross_entropy(z / np.exp(log), y)), bounds=(-5, 5), method="bounded")
    return float(np.exp(least.x))

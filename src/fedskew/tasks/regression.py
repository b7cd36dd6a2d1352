"""Regression: predict a number for each row."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.limits import FiniteFloat, OpenShare, PositiveFloat
from fedskew.core.metrics import TaskMetric, metrics_of
from fedskew.core.task import TaskKind
from fedskew.core.trees import Tree

SMALLEST_VARIANCE = 1e-10
"""R2 is left out if the variance of the standardised targets is at most this: it would be only rounding error."""


@dataclass(frozen=True, kw_only=True)
class Regression(TaskKind):
    """One number for each row. The model learns (y - ``center``) / ``scale``; metrics are in the unit of the target.

    By default ``center`` and ``scale`` are the mean and standard deviation of the training targets. ``error`` names the loss of
    e = standardised target - output. ``squared``: e^2 / 2. ``absolute``: |e|. ``huber``: e^2 / 2 if |e| <= ``delta``, else
    delta (|e| - delta / 2). ``quantile``: q e if e > 0, else (q - 1) e, so that the model predicts the quantile ``q``.
    """

    error: Literal["squared", "absolute", "huber", "quantile"] = "squared"
    delta: PositiveFloat = 1.0
    q: OpenShare = 0.5
    center: FiniteFloat | None = None
    scale: PositiveFloat | None = None

    takes: ClassVar[str] = "error"
    idea: ClassVar[str] = "a number for each row, by squared, absolute, Huber or quantile loss"
    target: ClassVar[str] = "number"
    metrics: ClassVar[tuple[TaskMetric, ...]] = metrics_of("regression")

    @property
    def primary(self) -> str:
        return {"squared": "rmse", "quantile": "pinball"}.get(self.error, "mae")

    def num_outputs(self, num_categories: int) -> int:
        return 1

    def fitted(self, y: NDArray[np.generic]) -> Self:
        numbers = y.astype(np.float64)
        center = float(numbers.mean()) if self.center is None else self.center
        return replace(self, center=center, scale=self.scale or float(numbers.std()))

    def standardised(self, y: Tensor) -> Tensor:
        return (y - (self.center or 0.0)) / (self.scale or 1.0)

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0] * (self.scale or 1.0) + (self.center or 0.0)

    def constant(self, y: NDArray[np.generic], num_outputs: int) -> Tensor:
        numbers = y.astype(np.float64)
        best = numbers.mean() if self.error == "squared" else np.quantile(numbers, self.q)
        return self.standardised(torch.tensor([best]))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        e = self.standardised(y) - outputs[..., 0]
        if self.error == "squared":
            return e.square() / 2
        if self.error == "quantile":
            return self.q * e.clamp(min=0) + (1 - self.q) * (-e).clamp(min=0)
        size = e.abs()
        if self.error == "absolute":
            return size
        near = size.clamp(max=self.delta)
        return near * (size - near / 2)

    def scores(self, outputs: Tensor, y: Tensor) -> Tree:
        target = self.standardised(y)
        e = target - outputs[..., 0]
        errors = {"loss": self.loss(outputs, y), "absolute_error": e.abs(), "squared_error": e.square()}
        target = target.double()  # the squares of equal float32 numbers would leave a variance
        return {**errors, "target": target, "target_square": target.square()}

    def measured(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        scale, square = self.scale or 1.0, means["squared_error"]
        variance = means["target_square"] - means["target"].square()
        r2 = (1 - square / variance).where(variance > SMALLEST_VARIANCE, math.nan)
        metrics = {
            "loss": means["loss"],
            "rmse": scale * square.sqrt(),
            "mae": scale * means["absolute_error"],
            "r2": r2,
        }
        return metrics | ({"pinball": scale * means["loss"]} if self.error == "quantile" else {})

"""A batch of B rows of one client, as losses and hooks get it."""

import threading
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.core.errors import require
from fedskew.core.metrics import TaskMetric
from fedskew.core.trees import ParameterSpace, Tree


def without_padding(y: Tensor, mask: Tensor) -> Tensor:
    """Return the targets (..., B, ...), with 0 for padded rows if they are floating point. Integers do not change.

    A loss that compares rows, such as one for survival times, recognises padded rows by a time of 0.
    """
    return y * mask.reshape(*mask.shape, *[1] * (y.dim() - mask.dim())) if y.is_floating_point() else y


class Batch(NamedTuple):
    """Rows with a mask of 0 and 1. Padding has mask 0 and never changes a result."""

    x: Tensor  # (B, ...)
    y: Tensor  # (B, ...)
    mask: Tensor  # (B,)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` (B, ...) over the rows that are no padding."""
        if values.dim() == 1:
            return (self.mask * values).sum()
        return torch.tensordot(self.mask, values, dims=1)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` (B, ...) over the rows that are no padding."""
        return self.sum(values) / self.mask.sum().clamp(min=1)


def one_hot(y: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Convert integers (B,) to zeros and ones (B, K). `torch.nn.functional.one_hot` does not work under ``vmap(grad)``."""
    return (y[..., None] == torch.arange(num_classes, device=y.device)).to(dtype)


@runtime_checkable
class TaskKind(Protocol):
    """What is learnt, for any model: the loss of outputs (B, ..., K), and metrics.

    A class that extends it must define `loss`, `scores`, ``target``, ``metrics`` and ``primary``. The other methods have defaults.

    A task may have a further member, ``joint``: True if a row's loss depends on the other rows of its batch. Passes over a client's
    rows, and evaluation, then take all its rows at once. The targets of padded rows are 0. `Pooling` is for metrics that are not
    means over rows.
    """

    @property
    def target(self) -> str:
        """The kind of target that it learns: a name in `fedskew.data.targets.TARGETS`."""

    @property
    def metrics(self) -> tuple[TaskMetric, ...]:
        """All metrics, from `measured` and from `Pooling.pooled`."""

    @property
    def primary(self) -> str:
        """The name of the metric by which methods are compared and tuned."""

    def __hash__(self) -> int:
        return object.__hash__(self)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row, (B,)."""

    def scores(self, outputs: Tensor, y: Tensor) -> Tree:
        """Return scores of each row by name, (B,) or (B, J), including ``loss`` (B,). They are summed over rows and clients."""

    def measured(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss and the metrics, (clients,) or (), from the means of the `scores` over rows.

        The means are (clients,) or (); for scores (B, J) they are (clients, J) or (J,).
        """
        return dict(means)

    def num_outputs(self, num_categories: int) -> int:
        """Return K, the number of outputs for this number of classes, labels or symbols (0: targets are numbers or times)."""
        return num_categories

    def fitted(self, y: NDArray[np.generic]) -> Self:
        """Return the task with missing options set from the training targets (n, ...)."""
        return self

    def predictions(self, outputs: Tensor) -> Tensor:
        """Convert outputs to predictions: the logits of classes (B, K), or numbers in the target's unit (B,)."""
        return outputs


@runtime_checkable
class Pooling(Protocol):
    """A task with metrics that are not means over rows, such as AUC. They are marked `TaskMetric.pooled`."""

    def pooled(self, outputs: Tensor, y: Tensor) -> Mapping[str, float]:
        """Return these metrics from the outputs (n, ...) and targets of all rows. An undefined one is NaN or left out."""


@runtime_checkable
class PoolingWithout(Protocol):
    """A task that computes a pooled metric n times, each time without one of n rows, for intervals over test rows."""

    def pooled_without(self, metric: str, outputs: Tensor, y: Tensor) -> NDArray[np.floating]:
        """Return (n,): for each row, a metric of `Pooling.pooled` without this row; NaN if undefined."""


@runtime_checkable
class ConstantAnswer(Protocol):
    """A task that knows the best constant prediction, the same for all rows. A model must be better than it."""

    def constant(self, y: NDArray[np.generic], num_outputs: int) -> Tensor:
        """Return this prediction as outputs for one row, (K,) or (T, K), from the training targets (n, ...)."""


@runtime_checkable
class Categorised(Protocol):
    """A task with metrics of each class or label."""

    def by_category(self, outputs: Tensor, y: Tensor) -> Mapping[str, NDArray[np.floating]]:
        """Return, by metric, values (K,) of each class or label, from the outputs and targets of all rows; NaN if undefined."""


@runtime_checkable
class Probabilistic(Protocol):
    """A task that predicts probabilities of classes, labels or symbols."""

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Convert a model's outputs to probabilities (B, K)."""


@dataclass(frozen=True)
class Task:
    """A kind of task on a module that returns (features, outputs), as functions of parameters ``w`` (P,) and inputs ``x`` (B, ...).

    ``space`` has names, shapes and places of the model's tensors inside ``w``. Parameters are always given as ``w``; only frozen
    parameters and buffers are read from the module. With ``bf16``, PyTorch's autocast to bfloat16 is used; parameters, losses and
    updates keep their type.
    """

    kind: TaskKind
    module: nn.Module
    space: ParameterSpace
    num_outputs: int
    bf16: bool = False
    copies: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.copies.model = self.module

    @property
    def model(self) -> nn.Module:
        """The module. Other threads get copies with the same tensors, because `functional_call` changes the module."""
        if not hasattr(self.copies, "model"):
            tensors = (*self.module.parameters(), *self.module.buffers())
            self.copies.model = deepcopy(self.module, {id(tensor): tensor for tensor in tensors})
        return self.copies.model

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 if targets are not classes."""
        return self.num_outputs if self.kind.target == "classes" else 0

    @property
    def joint(self) -> bool:
        """True if a row's loss depends on the other rows of its batch."""
        return bool(getattr(self.kind, "joint", False))

    @cached_property
    def pooled_names(self) -> tuple[str, ...]:
        """The names of the metrics that are computed from all rows' outputs together."""
        return tuple(metric.name for metric in self.kind.metrics if metric.pooled)

    @property
    def pooled_primary(self) -> str:
        """The primary metric if it is pooled, else an empty text. If pooled, it is computed on each client's rows, too."""
        return self.kind.primary if self.kind.primary in self.pooled_names else ""

    @property
    def stacks(self) -> bool:
        """True if clients' models can be computed as one batch. A module for which this is impossible declares it."""
        return bool(getattr(self.model, "stacks", True))

    @property
    def ids(self) -> bool:
        """True if the module takes rows of integers, such as word ids."""
        return bool(getattr(self.model, "ids", False))

    @property
    def num_features(self) -> int:
        """D, the number of inputs of the output layer: the last linear layer with as many outputs as the task needs."""
        linear = [part for part in self.model.modules() if isinstance(part, nn.Linear)]
        widths = [part.in_features for part in linear if part.out_features == self.num_outputs]
        require(bool(widths), f"the model's last layer must be a torch.nn.Linear with {self.num_outputs} outputs")
        return widths[-1]

    @cached_property
    def tied(self) -> bool:
        """Whether a tensor of the module has several names. Where none has, a step of a small model takes a sixth less time."""
        tensors = (
            *self.module.named_parameters(remove_duplicate=False),
            *self.module.named_buffers(remove_duplicate=False),
        )
        return len({id(tensor) for _, tensor in tensors}) < len(tensors)

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features (B, D) of the last hidden layer, and the outputs as `logits` returns them."""
        parameters = self.space.unflatten(w)
        if not self.bf16:
            return functional_call(self.model, parameters, (x,), tie_weights=self.tied)
        with torch.autocast(w.device.type, torch.bfloat16, cache_enabled=False):
            z, logits = functional_call(self.model, parameters, (x,), tie_weights=self.tied)
        return z.to(w.dtype), logits.to(w.dtype)

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the model (B, K). For classes they are logits."""
        return self.outputs(w, x)[1]

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row, (B,)."""
        return self.kind.loss(logits, y)

    def scores(self, logits: Tensor, y: Tensor) -> Tree:
        """Return scores of each row by name, (B,) or (B, J). They are summed over rows and clients."""
        return self.kind.scores(logits, y)

    def measured(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss and the metrics from the means of the `scores` over rows. Pooled metrics in ``means`` are kept."""
        sums = {name: mean for name, mean in means.items() if name not in self.pooled_names}
        return self.kind.measured(sums) | {name: mean for name, mean in means.items() if name not in sums}

    def pooled(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        return dict(self.kind.pooled(outputs, y)) if isinstance(self.kind, Pooling) else {}


def score(task: Task, w: Tensor, batch: Batch) -> Tree:
    """Return the sums over a batch of the task's scores at ``w``."""
    return {name: batch.sum(values) for name, values in task.scores(task.logits(w, batch.x), batch.y).items()}


ROWS = 1024
"""Number of rows in a batch when all rows of the server are evaluated."""


def accuracy(task: Task, w: Tensor, data: Batch) -> Tensor:
    """Return the accuracy () of the model ``w`` (P,) on the rows, in float64."""
    parts = [Batch(*part) for part in zip(*(leaf.split(ROWS) for leaf in data), strict=True)]
    return torch.stack([score(task, w, part)["accuracy"] for part in parts]).double().sum() / data.mask.double().sum()

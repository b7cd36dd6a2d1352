"""A model's task: its outputs and features, and the loss and the scores of each row."""

import threading
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.core.batch import Batch
from fedskew.core.errors import require
from fedskew.core.metrics import TaskMetric
from fedskew.core.trees import Tree
from fedskew.core.vectors import ParameterSpace


def one_hot(y: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """(B,) integers to (B, K) zeros and ones, by comparison: `torch.nn.functional.one_hot` fails under ``vmap(grad)``."""
    return (y[..., None] == torch.arange(num_classes, device=y.device)).to(dtype)


@runtime_checkable
class TaskKind(Protocol):
    """What is learnt, whatever the model: the loss of a model's outputs (B, ..., K), and its metrics.

    A class that extends it needs `loss`, `scores`, ``target``, ``metrics`` and ``primary``; the other methods have bodies.

    A task may have a further member, ``joint``: True if a row's loss depends on the other rows of its batch. Then passes over a
    client's rows, and evaluation, take all of its rows at once. The targets of padded rows are 0. `Pooling` is for metrics that
    are not sums over rows.
    """

    @property
    def target(self) -> str:
        """The kind of targets that it learns, a name of `fedskew.data.targets.TARGETS`."""

    @property
    def metrics(self) -> tuple[TaskMetric, ...]:
        """What `measured` returns besides the loss."""

    @property
    def primary(self) -> str:
        """The name of the metric by which methods are compared and tuned."""

    def __hash__(self) -> int:
        return object.__hash__(self)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each row, (B,)."""

    def scores(self, outputs: Tensor, y: Tensor) -> Tree:
        """Values of each row, (B,) or (B, J) each, that are added up over rows and clients; ``loss`` (B,) among them."""

    def measured(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The loss and the metrics, (clients,) or () each, from the means of the `scores` over some rows.

        The means are (clients,) or (), or end in J where the scores do.
        """
        return dict(means)

    def num_outputs(self, num_categories: int) -> int:
        """K: how many outputs a model needs for targets of this many classes, labels or symbols (0: they are numbers or times)."""
        return num_categories

    def fitted(self, y: NDArray[np.generic]) -> Self:
        """The task for these training targets (n, ...), which set options that are not given."""
        return self

    def predictions(self, outputs: Tensor) -> Tensor:
        """What a trained model answers: the logits of classes (B, K), or numbers in the target's unit (B,)."""
        return outputs


@runtime_checkable
class Pooling(Protocol):
    """A task with metrics that are not sums over rows, such as AUC; they are marked `TaskMetric.pooled`."""

    def pooled(self, outputs: Tensor, y: Tensor) -> Mapping[str, float]:
        """Those metrics, from the outputs (n, ...) and targets of all rows; one that is undefined is NaN or left out."""


@runtime_checkable
class PoolingWithout(Protocol):
    """A task that computes its pooled metrics without each row at once, for intervals over the test rows."""

    def pooled_without(self, metric: str, outputs: Tensor, y: Tensor) -> NDArray[np.floating]:
        """A metric of `Pooling.pooled` without each row, (n,); NaN where it is undefined."""


@runtime_checkable
class ConstantAnswer(Protocol):
    """A task with a best constant answer: the same for all rows. A model must beat it."""

    def constant(self, y: NDArray[np.generic], num_outputs: int) -> Tensor:
        """This answer as a model's outputs for one row, (K,) or (T, K), from the training targets (n, ...)."""


@runtime_checkable
class Categorised(Protocol):
    """A task with metrics of each class or label."""

    def by_category(self, outputs: Tensor, y: Tensor) -> Mapping[str, NDArray[np.floating]]:
        """Values (K,) of each class or label, from the outputs and targets of all rows; NaN where one is undefined."""


@runtime_checkable
class Probabilistic(Protocol):
    """A task that predicts a probability for each of several names: classes, labels or symbols."""

    def probabilities(self, outputs: Tensor) -> Tensor:
        """(B, K) from the outputs of a model."""


class Task(Protocol):
    """Functions of a model at parameters ``w`` (P,) on inputs ``x`` (B, ...)."""

    @property
    def num_outputs(self) -> int:
        """K of `logits`."""

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 if targets are not classes."""

    @property
    def num_features(self) -> int:
        """D of `outputs`."""

    @property
    def space(self) -> ParameterSpace:
        """Names, shapes and places of the model's tensors inside ``w``."""

    def __hash__(self) -> int: ...

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, D) of the last hidden layer, and the result of `logits`."""

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """The outputs of the model (B, K): logits where targets are classes."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of each row, (B,)."""

    def scores(self, logits: Tensor, y: Tensor) -> Tree:
        """Values of each row, (B,) or (B, J) each, that are added up over rows and clients."""

    def measured(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The loss and the metrics from the means of the `scores` over some rows, and the pooled metrics among these means."""


@dataclass(frozen=True)
class ModelTask:
    """A kind of task on a module that returns (features, outputs).

    The module is a skeleton: of its own tensors only frozen parameters and buffers are read. ``bf16`` computes in bfloat16
    where PyTorch's autocast does; parameters, losses and updates stay as they are.
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
        """The module. Each other thread has a copy that shares the tensors: `functional_call` puts parameters into the module."""
        if not hasattr(self.copies, "model"):
            tensors = (*self.module.parameters(), *self.module.buffers())
            self.copies.model = deepcopy(self.module, {id(tensor): tensor for tensor in tensors})
        copy: nn.Module = self.copies.model
        return copy

    @property
    def num_classes(self) -> int:
        return self.num_outputs if self.kind.target == "classes" else 0

    @property
    def joint(self) -> bool:
        return bool(getattr(self.kind, "joint", False))

    @cached_property
    def pooled_names(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.kind.metrics if metric.pooled)

    @property
    def stacks(self) -> bool:
        """Whether clients' models can be computed as one batch of models; a module that does not stack declares it."""
        return bool(getattr(self.model, "stacks", True))

    @property
    def ids(self) -> bool:
        """Whether the module takes rows of integers, such as word ids, as they are."""
        return bool(getattr(self.model, "ids", False))

    @property
    def num_features(self) -> int:
        """Inputs of the output layer: the last linear layer with as many outputs as the task needs."""
        linear = [part for part in self.model.modules() if isinstance(part, nn.Linear)]
        taken = [part.in_features for part in linear if part.out_features == self.num_outputs]
        require(bool(taken), f"the model's last layer must be a torch.nn.Linear with {self.num_outputs} outputs")
        return taken[-1]

    @cached_property
    def tied(self) -> bool:
        """Whether a tensor of the module has several names. Where none has, a step of a small model takes a sixth less time."""
        tensors = (
            *self.module.named_parameters(remove_duplicate=False),
            *self.module.named_buffers(remove_duplicate=False),
        )
        return len({id(tensor) for _, tensor in tensors}) < len(tensors)

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        named = self.space.unflatten(w)
        if not self.bf16:
            result: tuple[Tensor, Tensor] = functional_call(self.model, named, (x,), tie_weights=self.tied)
            return result
        with torch.autocast(w.device.type, torch.bfloat16, cache_enabled=False):
            z, logits = functional_call(self.model, named, (x,), tie_weights=self.tied)
        return z.to(w.dtype), logits.to(w.dtype)

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        return self.outputs(w, x)[1]

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.kind.loss(logits, y)

    def scores(self, logits: Tensor, y: Tensor) -> Tree:
        return self.kind.scores(logits, y)

    def measured(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sums = {name: mean for name, mean in means.items() if name not in self.pooled_names}
        return self.kind.measured(sums) | {name: mean for name, mean in means.items() if name not in sums}

    def pooled(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        return dict(self.kind.pooled(outputs, y)) if isinstance(self.kind, Pooling) else {}


def stackable(task: Task) -> bool:
    """Whether `torch.func.vmap` may run over the task's model; True unless the task declares otherwise."""
    return bool(getattr(task, "stacks", True))


def joint(task: Task) -> bool:
    """Whether a row's loss depends on the other rows of its batch; False unless the task declares otherwise."""
    return bool(getattr(task, "joint", False))


def pooled_names(task: Task) -> tuple[str, ...]:
    """The names of the metrics that are computed from all rows' outputs."""
    return task.pooled_names if isinstance(task, ModelTask) else ()


def pooled_primary(task: Task) -> str:
    """The primary metric if it is one of these, else nothing. Then it is computed from each client's rows, too."""
    return task.kind.primary if isinstance(task, ModelTask) and task.kind.primary in task.pooled_names else ""


def score(task: Task, w: Tensor, batch: Batch) -> Tree:
    """Sums over a batch of the task's scores at ``w``."""
    return {name: batch.sum(values) for name, values in task.scores(task.logits(w, batch.x), batch.y).items()}


ROWS = 1024
"""Rows per batch when all of the server's rows are evaluated."""


def accuracy(task: Task, w: Tensor, data: Batch) -> Tensor:
    """The accuracy () of the model ``w`` (P,) on the rows, in float64."""
    parts = [Batch(*part) for part in zip(*(leaf.split(ROWS) for leaf in data), strict=True)]
    return torch.stack([score(task, w, part)["accuracy"] for part in parts]).double().sum() / data.mask.double().sum()

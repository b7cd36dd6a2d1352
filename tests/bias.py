"""Federations whose logits, and features, are the parameters themselves: gradients of softmax losses by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.core.algorithm import Algorithm
from fedskew.core.records import Batch, Info, View
from fedskew.loop.federation import Federation
from tests.reference import f64
from tests.small import Quadratic, exact_clients


@dataclass(frozen=True)
class Bias(Quadratic):
    """Cross-entropy of the logits w (K,), the same for every row: the gradient of a row of class y is softmax(w) - e_y."""

    num_classes: int = 3

    @property
    def num_features(self) -> int:
        return self.num_classes

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        z = w.expand(len(x), -1)
        return z, z

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")

    def scores(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(logits, y)}


def labelled(
    algorithm: Algorithm, labels: Sequence[Sequence[int]], steps: int, lr: float, classes: int = 3
) -> Federation:
    """Return one client for each list of labels. Steps use full batches."""
    y = torch.tensor([label for of_client in labels for label in of_client])
    sizes = [len(of_client) for of_client in labels]
    fed = exact_clients(Bias(classes), [[0.0]] * len(y), [steps] * len(sizes), algorithm, lr=lr, sizes=sizes)
    return replace(fed, y=y)


def client_view(x: Tensor, *, extras=None, counts: Sequence[float] = (1.0, 1.0, 1.0)) -> View:
    """Return the view of a client. ``counts`` are its numbers of rows of each class."""
    info = Info(torch.tensor(0), f64(sum(counts)), f64(counts), f64(1.0))
    return View(x, extras or {}, {}, info, {}, f64(0.1), f64(1.0))


def rows_of(labels: Sequence[int], x: Tensor | None = None) -> Batch:
    """Return a batch with these labels, and with empty rows or the rows ``x``."""
    n = len(labels)
    return Batch(torch.zeros(n, 1).double() if x is None else x, torch.tensor(labels), torch.ones(n).double())


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z)
    return e / e.sum()

"""Networks for token ids: a convolutional one, and the mean of the words' embeddings. Embeddings are trained from scratch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeInt, PositiveInt, Widths
from fedskew.models.initial import drawn, require_rows


class TextModel:
    """A model of rows of token ids from 0 to ``vocabulary`` - 1. With 0 it takes the largest id of the data plus 1."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    key: ClassVar[str]
    vocabulary: NonNegativeInt

    def fitted(self, x: NDArray[np.generic]) -> Self:
        """Return the model with a vocabulary for the ids x (n, length). Raises `BadInput` if x has no ids, or too large ones."""
        require(
            x.ndim == 2 and x.min() >= 0 and bool((x == np.floor(x)).all()),
            f"model {self.key} needs rows of token ids, whole numbers from 0; use a text data set",
        )
        largest = int(x.max())
        require(
            not self.vocabulary or largest < self.vocabulary,
            f"model {self.key}: a vocabulary of {self.vocabulary}, but the rows hold the id {largest}; leave vocabulary out",
        )
        return self if self.vocabulary else dataclasses.replace(self, vocabulary=largest + 1)


class TextCnnNet(nn.Module):
    ids = True

    def __init__(self, vocabulary: int, embedding: int, filters: int, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(embedding, filters, width) for width in widths)
        self.out = nn.Linear(filters * len(widths), classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.embedding(x.long()).transpose(1, 2)
        z = torch.cat([torch.relu(conv(z)).amax(-1) for conv in self.convs], -1)
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class TextCnn(TextModel):
    """Kim 2014, CNN-rand: word embeddings, convolutions of several widths, the maximum of each filter over the text, the output.

    A row has token ids, at least as many as the widest filter is wide. Id 0 is padding, and its embedding stays 0. ``vocabulary``
    is the number of ids. With 0 it is the largest id of the data plus 1. Departure: no dropout.
    """

    embedding: PositiveInt = 100
    filters: PositiveInt = 100
    widths: Widths = (3, 4, 5)
    vocabulary: NonNegativeInt = 0

    key: ClassVar[str] = "text-cnn"
    has_features: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("text-cnn",)

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_rows(self.key, shape, 1, "token ids")
        require(
            shape[0] >= max(self.widths),
            f"model text-cnn: texts of {shape[0]} tokens are shorter than a filter of {max(self.widths)}; lower widths",
        )
        net = drawn(
            lambda: TextCnnNet(max(self.vocabulary, 1), self.embedding, self.filters, self.widths, classes), generator
        )
        return embedded(net, 0.25, generator)


class TextMeanNet(nn.Module):
    ids = True

    def __init__(self, vocabulary: int, embedding: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.hidden = nn.Linear(embedding, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ids = x.long()
        words = (ids != 0).sum(-1, keepdim=True).clamp(min=1)
        z = torch.relu(self.hidden(self.embedding(ids).sum(-2) / words))
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class TextMean(TextModel):
    """The mean of the words' embeddings, a hidden layer, and the output.

    A row has token ids. Id 0 is padding: its embedding stays 0, and it does not count in the mean. ``vocabulary`` as of text-cnn.
    """

    embedding: PositiveInt = 16
    hidden: PositiveInt = 16
    vocabulary: NonNegativeInt = 0

    key: ClassVar[str] = "text-mean"
    has_features: ClassVar[bool] = True

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_rows(self.key, shape, 1, "token ids")
        net = drawn(lambda: TextMeanNet(max(self.vocabulary, 1), self.embedding, self.hidden, classes), generator)
        return embedded(net, 0.05, generator)


def embedded(net: nn.Module, bound: float, generator: torch.Generator) -> nn.Module:
    """Draw a network's embedding from U(-bound, bound), with 0 for padding, and return the network."""
    table = next(part for part in net.modules() if isinstance(part, nn.Embedding)).weight.detach()
    table.uniform_(-bound, bound, generator=generator)[0] = 0
    return net

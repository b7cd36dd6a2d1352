"""A convolutional network for token ids. Its embedding is trained from scratch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeInt, PositiveInt, Widths
from fedskew.models.initial import drawn, require_rows


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
class TextCnn:
    """Kim 2014, CNN-rand: word embeddings, convolutions of several widths, the maximum of each filter over the text, the output.

    A row has token ids, at least as many as the widest filter is wide. Id 0 is padding, and its embedding stays 0. ``vocabulary``
    is the number of ids. With 0 it is the largest id of the data plus 1. Departure: no dropout.
    """

    embedding: PositiveInt = 100
    filters: PositiveInt = 100
    widths: Widths = (3, 4, 5)
    vocabulary: NonNegativeInt = 0

    has_features: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("text-cnn",)

    def fitted(self, x: NDArray[np.generic]) -> TextCnn:
        """Return the model with a vocabulary for the ids x (n, length). Raises `BadInput` if x has no ids, or too large ones."""
        require(
            x.ndim == 2 and x.min() >= 0 and bool((x == np.floor(x)).all()),
            "model text-cnn needs rows of token ids, whole numbers from 0; use a text data set",
        )
        largest = int(x.max())
        require(
            not self.vocabulary or largest < self.vocabulary,
            f"model text-cnn: a vocabulary of {self.vocabulary}, but the rows hold the id {largest}; leave vocabulary out",
        )
        return self if self.vocabulary else dataclasses.replace(self, vocabulary=largest + 1)

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_rows("text-cnn", shape, 1, "token ids")
        require(
            shape[0] >= max(self.widths),
            f"model text-cnn: texts of {shape[0]} tokens are shorter than a filter of {max(self.widths)}; lower widths",
        )
        net = drawn(
            lambda: TextCnnNet(max(self.vocabulary, 1), self.embedding, self.filters, self.widths, classes), generator
        )
        table = next(part for part in net.modules() if isinstance(part, nn.Embedding)).weight.detach()
        table.uniform_(-0.25, 0.25, generator=generator)[0] = 0
        return net

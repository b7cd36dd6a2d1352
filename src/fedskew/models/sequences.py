"""Networks for sequences: an LSTM for sensor windows, networks for token ids, and networks that predict the next symbol.

Networks for token ids train their embeddings from scratch: a convolutional network, and the mean of the words' embeddings.

Rows of symbols are ids (B, T), with `END` after a row's last symbol. Outputs are (B, T, V) for V symbols. The features (B, D) are
the inputs of the output layer, averaged over the places with a symbol. More `END` in a row changes neither outputs nor features.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.core.errors import BadInput, require
from fedskew.core.limits import NonNegativeInt, PositiveInt, Widths
from fedskew.models.initial import WithFeatures, require_rows, with_drawn_parameters

END = -1
"""The id that fills a row after its last symbol."""


def mean_over_symbols(z: Tensor, x: Tensor) -> Tensor:
    """Return the mean (B, D) of z (B, T, D) over the places where x (B, T) has a symbol."""
    real = (x != END).to(z.dtype)[..., None]
    return (z * real).sum(-2) / real.sum(-2).clamp(min=1)


class SymbolLstmNet(nn.Module):
    ids = per_place = True
    # PyTorch's kernel has no rule for a batch of models. An LSTM of plain operations would have one, but took 2.4 times the CPU
    # time (ten clients, 16 rows of 80 symbols each, 128 units)
    stacks = False

    def __init__(self, symbols: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, symbols)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.long()
        z = self.lstm(self.embedding(x.clamp(min=0)))[0]
        return mean_over_symbols(z, x), self.out(z)


class TransformerBlock(nn.Module):
    """Attention to this and all earlier places, then a two-layer network at each place. Both take normalised inputs.

    The output of each is added to its input.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layer = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, z: Tensor) -> Tensor:
        parts = self.queries_keys_values(self.before_attention(z)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in parts)
        # PyTorch's fused attention has no rule for a batch of models
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        later = torch.ones(z.shape[-2], z.shape[-2], dtype=torch.bool, device=z.device).triu(1)
        attended = scores.masked_fill(later, -math.inf).softmax(-1) @ v
        z = z + self.mix(attended.transpose(-3, -2).flatten(-2))
        return z + self.down(torch.relu(self.up(self.before_layer(z))))


class TransformerNet(nn.Module):
    ids = per_place = True

    def __init__(self, symbols: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.long()
        z = self.embedding(x.clamp(min=0))
        z = z + positions(z)
        for block in self.blocks:
            z = block(z)
        z = self.norm(z)
        return mean_over_symbols(z, x), self.out(z)


def positions(z: Tensor) -> Tensor:
    """Return sines and cosines (T, D) of each place, with wavelengths from 2 pi to 20,000 pi, for z (B, T, D)."""
    length, width = z.shape[-2:]
    place = torch.arange(length, dtype=z.dtype, device=z.device)[:, None]
    rate = 10_000 ** (-torch.arange(0, width, 2, dtype=z.dtype, device=z.device) / width)
    return torch.stack([(place * rate).sin(), (place * rate).cos()], -1).flatten(1)


def draw_embedding(net: nn.Module, generator: torch.Generator, bound: float | None = None) -> nn.Module:
    """Draw a network's embedding from U(-bound, bound), with 0 for padding; without ``bound`` from N(0, 1). Return the network."""
    weights = cast(nn.Embedding, net.embedding).weight.detach()
    if bound is None:
        weights.normal_(generator=generator)
    else:
        weights.uniform_(-bound, bound, generator=generator)[0] = 0
    return net


def require_symbols(model: str, shape: tuple[int, ...], symbols: int) -> None:
    """Raise `BadInput` unless rows are sequences of at least two different symbols."""
    require_rows(model, shape, 1, "symbols")
    require(symbols > 1, f"model {model} needs at least 2 symbols, these are {symbols}")


@dataclass(frozen=True, kw_only=True)
class SymbolLstm(WithFeatures):
    """An LSTM that predicts the next symbol: an embedding of the symbols, LSTM layers, and an output at each place."""

    embedding: PositiveInt = 16
    hidden: PositiveInt = 128
    layers: PositiveInt = 1

    idea: ClassVar[str] = "an LSTM that predicts the next symbol at each place"
    cites: ClassVar[tuple[str, ...]] = ("lstm",)

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_symbols("symbol-lstm", shape, classes)
        net = with_drawn_parameters(lambda: SymbolLstmNet(classes, self.embedding, self.hidden, self.layers), generator)
        return draw_embedding(net, generator)


@dataclass(frozen=True, kw_only=True)
class Transformer(WithFeatures):
    """A small causal transformer: layers of attention to earlier places, with sines as positions, and an output at each place.

    Departures from Vaswani et al. 2017: a decoder without an encoder, normalisation before each part, no dropout.
    """

    width: PositiveInt = 64
    layers: PositiveInt = 2
    heads: PositiveInt = 4

    idea: ClassVar[str] = "a small causal transformer that predicts the next symbol at each place"
    cites: ClassVar[tuple[str, ...]] = ("transformer",)

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise BadInput(f"width must be a multiple of twice the heads, got {self.width} and {self.heads} heads")

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_symbols("transformer", shape, classes)
        net = with_drawn_parameters(lambda: TransformerNet(classes, self.width, self.layers, self.heads), generator)
        return draw_embedding(net, generator)


class WindowLstmNet(nn.Module):
    stacks = False  # PyTorch's kernel has no rule for a batch of models

    def __init__(self, channels: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.lstm(x.transpose(1, 2))[0][:, -1]
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class Lstm(WithFeatures):
    """LSTM layers over time. A linear layer classifies the hidden state after the last sample. Rows are (channels, samples)."""

    hidden: PositiveInt = 64
    layers: PositiveInt = 1

    cites: ClassVar[tuple[str, ...]] = ("lstm",)

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_rows("lstm", shape, 2, "(channels, samples)")
        return with_drawn_parameters(lambda: WindowLstmNet(shape[0], self.hidden, self.layers, classes), generator)


class TextModel(WithFeatures):
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
    cites: ClassVar[tuple[str, ...]] = ("text-cnn",)

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_rows(self.key, shape, 1, "token ids")
        require(
            shape[0] >= max(self.widths),
            f"model text-cnn: texts of {shape[0]} tokens are shorter than a filter of {max(self.widths)}; lower widths",
        )
        make = partial(TextCnnNet, max(self.vocabulary, 1), self.embedding, self.filters, self.widths, classes)
        return draw_embedding(with_drawn_parameters(make, generator), generator, bound=0.25)


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

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_rows(self.key, shape, 1, "token ids")
        make = partial(TextMeanNet, max(self.vocabulary, 1), self.embedding, self.hidden, classes)
        return draw_embedding(with_drawn_parameters(make, generator), generator, bound=0.05)

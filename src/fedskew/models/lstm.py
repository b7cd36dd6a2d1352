"""A recurrent network for sensor windows."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedskew.core.limits import PositiveInt
from fedskew.models.initial import drawn, require_rows


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
class Lstm:
    """LSTM layers over time. A linear layer classifies the hidden state after the last sample. Rows are (channels, samples)."""

    hidden: PositiveInt = 64
    layers: PositiveInt = 1

    has_features: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("lstm",)

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_rows("lstm", shape, 2, "(channels, samples)")
        return drawn(lambda: WindowLstmNet(shape[0], self.hidden, self.layers, classes), generator)

"""Small convolutional networks. ``norm="group"`` puts GroupNorm, in up to 8 groups, between each convolution and its ReLU.

The ReLU follows the pooling. Results and gradients are the same as before it, but the ReLU gets only a quarter of the numbers.
The last ReLU follows the flattening, so that it and its gradient have the same layout in memory.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.core.errors import require
from fedskew.models.initial import Normalisation, drawn, normalisation, require_images


class CnnNet(nn.Module):
    def __init__(self, channels: int, height: int, width: int, hidden: int, classes: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.norm1 = normalisation(norm, 32)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.norm2 = normalisation(norm, 64)
        self.fc1 = nn.Linear(64 * (height // 4) * (width // 4), hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.relu(F.max_pool2d(self.norm1(self.conv1(x)), 2))
        z = torch.relu(F.max_pool2d(self.norm2(self.conv2(z)), 2).flatten(1))
        z = torch.relu(self.fc1(z))
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class Cnn:
    """McMahan et al. 2017: two 5 x 5 convolutions (32, 64), each with 2 x 2 max pooling, a hidden layer, and the output.

    With 28 x 28 x 1 inputs, 10 classes and hidden 512 it has the paper's 1,663,370 parameters. Rows are (channels, height,
    width), at least 4 x 4.
    """

    hidden: int = 512
    norm: Normalisation = "none"

    has_features: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("fedavg",)

    def __post_init__(self) -> None:
        require(self.hidden >= 1, f"hidden must be at least 1, got {self.hidden}")

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_images("cnn", shape, 4)
        channels, height, width = shape
        return drawn(lambda: CnnNet(channels, height, width, self.hidden, classes, self.norm), generator)


class LeNetNet(nn.Module):
    def __init__(self, channels: int, height: int, width: int, classes: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.norm1 = normalisation(norm, 6)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.norm2 = normalisation(norm, 16)
        self.fc1 = nn.Linear(16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2), 120)
        self.fc2 = nn.Linear(120, 84)
        self.out = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.relu(F.max_pool2d(self.norm1(self.conv1(x)), 2))
        z = torch.relu(F.max_pool2d(self.norm2(self.conv2(z)), 2).flatten(1))
        z = torch.relu(self.fc2(torch.relu(self.fc1(z))))
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class LeNet:
    """The small network of NIID-Bench: two 5 x 5 convolutions (6, 16) with max pooling, hidden layers of 120 and 84, the output.

    62,006 parameters for 3 x 32 x 32 inputs and 10 classes. Rows are (channels, height, width), at least 16 x 16.
    """

    norm: Normalisation = "none"

    has_features: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("niid-bench",)

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_images("lenet", shape, 16)
        channels, height, width = shape
        return drawn(lambda: LeNetNet(channels, height, width, classes, self.norm), generator)


class Cnn1dNet(nn.Module):
    def __init__(
        self, channels: int, samples: int, filters: int, hidden: int, classes: int, norm: Normalisation
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, filters, 5, padding=2)
        self.norm1 = normalisation(norm, filters)
        self.conv2 = nn.Conv1d(filters, 2 * filters, 5, padding=2)
        self.norm2 = normalisation(norm, 2 * filters)
        self.fc1 = nn.Linear(2 * filters * (samples // 32), hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = F.max_pool1d(torch.relu(self.norm1(self.conv1(x))), 4)
        z = F.max_pool1d(torch.relu(self.norm2(self.conv2(z))), 8)
        z = torch.relu(self.fc1(z.flatten(1)))
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class Cnn1d:
    """Two convolutions of width 5 over time, with max pooling by 4 and by 8, a hidden layer, and the output.

    With finer pooling the accuracy on unseen people is about one percentage point lower. Rows are (channels, samples), with at
    least 32 samples.
    """

    filters: int = 32
    hidden: int = 64
    norm: Normalisation = "none"

    has_features: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.filters >= 1 and self.hidden >= 1, "filters and hidden must be at least 1")

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require(len(shape) == 2, f"model cnn1d needs rows of (channels, samples), these have shape {shape}")
        require(shape[1] >= 32, f"model cnn1d needs at least 32 samples, there are {shape[1]}")
        channels, samples = shape
        return drawn(lambda: Cnn1dNet(channels, samples, self.filters, self.hidden, classes, self.norm), generator)

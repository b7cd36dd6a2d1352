"""Convolutional networks for images and signals. ``norm="group"`` puts GroupNorm between each convolution and its ReLU.

The small ones have GroupNorm in up to 8 groups. The ReLU follows the pooling. Results and gradients are the same as before it, but
the ReLU gets only a quarter of the numbers. The last ReLU follows the flattening, so that it and its gradient have the same layout
in memory. ResNet-18 always has GroupNorm, because clients cannot share the running statistics of BatchNorm.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.core.errors import require
from fedskew.core.limits import PositiveInt
from fedskew.models.initial import (
    Normalisation,
    WithFeatures,
    normalisation,
    require_images,
    require_rows,
    with_drawn_parameters,
)


class ConvNet(nn.Module):
    """Two 5 x 5 convolutions with max pooling, hidden layers, and the output. A row has shape (channels, height, width)."""

    def __init__(
        self,
        shape: tuple[int, ...],
        filters: tuple[int, int],
        padding: int,
        hidden: tuple[int, ...],
        classes: int,
        norm: Normalisation,
    ) -> None:
        super().__init__()
        first, second = filters
        self.conv1 = nn.Conv2d(shape[0], first, 5, padding=padding)
        self.norm1 = normalisation(norm, first)
        self.conv2 = nn.Conv2d(first, second, 5, padding=padding)
        self.norm2 = normalisation(norm, second)
        lost = 4 - 2 * padding  # pixels that a convolution takes from a side
        height, width = (((side - lost) // 2 - lost) // 2 for side in shape[1:])
        self.layers = [f"fc{i}" for i in range(1, len(hidden) + 1)]
        for name, (inputs, outputs) in zip(self.layers, pairwise((second * height * width, *hidden)), strict=True):
            self.add_module(name, nn.Linear(inputs, outputs))
        self.out = nn.Linear(hidden[-1], classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.relu(F.max_pool2d(self.norm1(self.conv1(x)), 2))
        z = torch.relu(F.max_pool2d(self.norm2(self.conv2(z)), 2).flatten(1))
        for name in self.layers:
            z = torch.relu(getattr(self, name)(z))
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class Cnn(WithFeatures):
    """McMahan et al. 2017: two 5 x 5 convolutions (32, 64), each with 2 x 2 max pooling, a hidden layer, and the output.

    With 28 x 28 x 1 inputs, 10 classes and hidden 512 it has the paper's 1,663,370 parameters. Rows are (channels, height,
    width), at least 4 x 4.
    """

    hidden: PositiveInt = 512
    norm: Normalisation = "none"

    cites: ClassVar[tuple[str, ...]] = ("fedavg",)

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_images("cnn", shape, 4)
        return with_drawn_parameters(lambda: ConvNet(shape, (32, 64), 2, (self.hidden,), classes, self.norm), generator)


@dataclass(frozen=True, kw_only=True)
class LeNet(WithFeatures):
    """The small network of NIID-Bench: two 5 x 5 convolutions (6, 16) with max pooling, hidden layers of 120 and 84, the output.

    62,006 parameters for 3 x 32 x 32 inputs and 10 classes. Rows are (channels, height, width), at least 16 x 16.
    """

    norm: Normalisation = "none"

    cites: ClassVar[tuple[str, ...]] = ("niid-bench",)

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_images("lenet", shape, 16)
        return with_drawn_parameters(lambda: ConvNet(shape, (6, 16), 0, (120, 84), classes, self.norm), generator)


class Cnn1dNet(nn.Module):
    def __init__(self, shape: tuple[int, ...], filters: int, hidden: int, classes: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(shape[0], filters, 5, padding=2)
        self.norm1 = normalisation(norm, filters)
        self.conv2 = nn.Conv1d(filters, 2 * filters, 5, padding=2)
        self.norm2 = normalisation(norm, 2 * filters)
        self.fc1 = nn.Linear(2 * filters * (shape[1] // 32), hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = F.max_pool1d(torch.relu(self.norm1(self.conv1(x))), 4)
        z = F.max_pool1d(torch.relu(self.norm2(self.conv2(z))), 8)
        z = torch.relu(self.fc1(z.flatten(1)))
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class Cnn1d(WithFeatures):
    """Two convolutions of width 5 over time, with max pooling by 4 and by 8, a hidden layer, and the output.

    With finer pooling the accuracy on unseen people is about one percentage point lower. Rows are (channels, samples), with at
    least 32 samples.
    """

    filters: PositiveInt = 32
    hidden: PositiveInt = 64
    norm: Normalisation = "none"

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_rows("cnn1d", shape, 2, "(channels, samples)")
        require(shape[1] >= 32, f"model cnn1d needs at least 32 samples, there are {shape[1]}")
        net = partial(Cnn1dNet, shape, self.filters, self.hidden, classes, self.norm)
        return with_drawn_parameters(net, generator)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions, plus a shortcut. The shortcut is a 1 x 1 convolution if the shape changes, else the identity."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = normalisation("group", outputs, groups)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = normalisation("group", outputs, groups)
        same = stride == 1 and inputs == outputs
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), normalisation("group", outputs, groups)]
        self.shortcut = nn.Sequential(*([] if same else shortcut))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(z)) + self.shortcut(x))


class ResNetNet(nn.Module):
    def __init__(self, channels: int, width: int, groups: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = normalisation("group", width, groups)
        blocks, inputs = [], width
        for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            blocks += [ResidualBlock(inputs, outputs, stride, groups), ResidualBlock(outputs, outputs, 1, groups)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.blocks(torch.relu(self.norm(self.conv(x)))).mean((2, 3))
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class ResNet(WithFeatures):
    """ResNet-18 with GroupNorm in ``groups`` groups. As usual for CIFAR, the first convolution is 3 x 3 and has no pooling.

    With 3 x 32 x 32 inputs, 10 classes and width 64 it has 11,173,962 parameters. Rows are (channels, height, width), at least
    8 x 8.
    """

    width: PositiveInt = 64
    groups: PositiveInt = 2

    idea: ClassVar[str] = "ResNet-18 with GroupNorm, its first convolution 3 x 3 without pooling, as is usual for CIFAR"
    cites: ClassVar[tuple[str, ...]] = ("resnet", "group-norm")

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_images("resnet18", shape, 8)
        return with_drawn_parameters(lambda: ResNetNet(shape[0], self.width, self.groups, classes), generator)

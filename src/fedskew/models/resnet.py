"""ResNet-18 for small images. It has GroupNorm, because clients cannot share the running statistics of BatchNorm."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedskew.core.errors import require
from fedskew.models.initial import drawn, normalisation, require_images


class Block(nn.Module):
    """Two 3 x 3 convolutions, plus a shortcut. The shortcut is a 1 x 1 convolution if the shape changes, else the identity."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = normalisation("group", outputs, groups)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = normalisation("group", outputs, groups)
        same = stride == 1 and inputs == outputs
        shortcut = [
            nn.Conv2d(inputs, outputs, 1, stride, bias=False),
            normalisation("group", outputs, groups),
        ]
        self.shortcut = nn.Sequential(*([] if same else shortcut))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(z)) + self.shortcut(x))


class ResNetNet(nn.Module):
    def __init__(self, channels: int, width: int, groups: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = normalisation("group", width, groups)
        widths = [width, 2 * width, 4 * width, 8 * width]
        blocks, inputs = [], width
        for i, outputs in enumerate(widths):
            blocks += [Block(inputs, outputs, 1 if i == 0 else 2, groups), Block(outputs, outputs, 1, groups)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.blocks(torch.relu(self.norm(self.conv(x)))).mean((2, 3))
        return z, self.out(z)


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """ResNet-18 with GroupNorm in ``groups`` groups. As usual for CIFAR, the first convolution is 3 x 3 and has no pooling.

    With 3 x 32 x 32 inputs, 10 classes and width 64 it has 11,173,962 parameters. Rows are (channels, height, width), at least
    8 x 8.
    """

    width: int = 64
    groups: int = 2

    has_features: ClassVar[bool] = True
    idea: ClassVar[str] = "ResNet-18 with GroupNorm, its first convolution 3 x 3 without pooling, as is usual for CIFAR"
    cites: ClassVar[tuple[str, ...]] = ("resnet", "group-norm")

    def __post_init__(self) -> None:
        require(self.width >= 1 and self.groups >= 1, "width and groups must be at least 1")

    def build(self, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
        require_images("resnet18", shape, 8)
        return drawn(lambda: ResNetNet(shape[0], self.width, self.groups, classes), generator)

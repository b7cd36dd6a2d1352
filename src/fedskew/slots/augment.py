"""Augmentations: random changes of training rows, new each time a row is drawn. Evaluation uses unchanged rows."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.contract import Setup
from fedskew.core.limits import NonNegativeInt
from fedskew.core.privacy import alone


@dataclass(frozen=True, kw_only=True)
class Unaugmented:
    """Leaves rows unchanged."""

    idea: ClassVar[str] = "rows as they are"
    private = alone

    def draw(self, size: tuple[int, ...], rng: np.random.Generator) -> None:
        """Return None: no change."""


@dataclass(frozen=True, kw_only=True)
class CropFlip:
    """Shift images by up to ``padding`` pixels each way, with reflected borders. Flip half of them left to right.

    This equals reflection padding, a random crop and a random flip. (NIID-Bench, arXiv:2102.02079, for CIFAR-10: padding 4)
    """

    padding: NonNegativeInt = 4

    idea: ClassVar[str] = "shift images with reflected borders and mirror half of them, as NIID-Bench does for CIFAR-10"
    cites: ClassVar[tuple[str, ...]] = ("niid-bench",)
    private = alone

    def accepts(self, setup: Setup) -> str:
        """Return why these rows cannot be shifted; empty if they are images larger than the padding."""
        shape = setup.shape
        if shape is None or (len(shape) == 3 and min(shape[1:]) > self.padding):
            return ""
        return (
            f"needs images (channels, height, width) larger than its padding {self.padding}, these rows have shape {shape}; "
            "use --augment none"
        )

    def draw(self, size: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw, for each row of a plan, (*size, 3): pixels down, pixels to the right, and 1 if flipped."""
        shifts = rng.integers(-self.padding, self.padding + 1, size=(*size, 2))
        return np.concatenate([shifts, rng.integers(0, 2, size=(*size, 1))], axis=-1)

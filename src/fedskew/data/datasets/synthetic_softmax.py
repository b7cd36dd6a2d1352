"""The mixture of Gaussians of the textbook section 'Non-IID Data' (listing 14.4.1), drawn in the listing's order."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedskew.core.errors import require
from fedskew.data.dataset import Dataset
from fedskew.data.find import Files


@dataclass(frozen=True, kw_only=True)
class SyntheticSoftmax:
    """Rows ``mean + N(0, I)`` around class means ``spread * N(0, 1)``. ``data_seed`` seeds the random generator.

    ``test="fresh"`` draws the same number of new rows as the test set. ``test="train"`` tests on the training rows, as the listing
    does.
    """

    rows: int = 12_000
    features: int = 30
    classes: int = 6
    spread: float = 0.45
    data_seed: int = 0
    test: Literal["fresh", "train"] = "fresh"

    model: ClassVar[str] = "softmax"
    cites: ClassVar[tuple[str, ...]] = ("drift-demo",)
    idea: ClassVar[str] = "a mixture of Gaussians, one a class (listing 14.4.1 of the textbook section 'Non-IID Data')"

    files: ClassVar[Files] = Files(
        dataset="synthetic-softmax",
        licence="drawn here",
        classes=6,
        source="the textbook section 'Non-IID Data' (14.4), listing 14.4.1",
    )

    def __post_init__(self) -> None:
        require(min(self.rows, self.features, self.classes) >= 1, "rows, features and classes must be at least 1")
        require(self.data_seed >= 0, f"data_seed must be at least 0, got {self.data_seed}")

    def load(self) -> Dataset:
        return self.draw(np.random.default_rng(self.data_seed))

    def draw(self, rng: np.random.Generator) -> Dataset:
        """Draw the data set from ``rng``. The listing draws its later random numbers from the same generator."""
        means = rng.standard_normal((self.classes, self.features)) * self.spread
        y = rng.integers(0, self.classes, size=self.rows)
        x = means[y] + rng.standard_normal((self.rows, self.features))
        x_test, y_test = x, y
        if self.test == "fresh":
            y_test = rng.integers(0, self.classes, size=self.rows)
            x_test = means[y_test] + rng.standard_normal((self.rows, self.features))
        notes = "" if self.test == "fresh" else "accuracy is measured on the training rows"
        return self.files.build((x, y), (x_test, y_test), [str(c) for c in range(self.classes)], notes=notes)

"""Data sets that are drawn: the mixture of a textbook's listing, and synthetic(alpha, beta) of the FedProx paper."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from msgspec import Meta

from fedskew.core.limits import NonNegativeFloat, NonNegativeInt, PositiveInt
from fedskew.data.dataset import Dataset
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files

FEATURES, CLASSES = 60, 10


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Device k has inputs x ~ N(v_k, diag(j^-1.2)) with labels argmax(W_k x + b_k) (Li et al. 2020, arXiv:1812.06127, 5.1).

    Entries of W_k and b_k are ~ N(u_k, 1), entries of v_k are ~ N(B_k, 1), with u_k ~ N(0, alpha) and B_k ~ N(0, beta). ``scale``
    says what alpha and beta are: variances, as in the paper, or standard deviations, as in its authors' code. With ``iid`` all
    devices have the same model and inputs around 0. A device has floor(LogNormal(4, 2)) + 50 rows, at most ``max_rows``; the last
    fifth is for testing.

    ``alpha`` has no effect on labels, because u_k adds the same number to the score of each class. The paper has it, too.
    """

    alpha: NonNegativeFloat = 1.0
    beta: NonNegativeFloat = 1.0
    scale: Literal["variance", "deviation"] = "variance"
    iid: bool = False
    devices: PositiveInt = 30
    max_rows: Annotated[int, Meta(ge=50)] = 10_000
    data_seed: NonNegativeInt = 0

    model: ClassVar[str] = "softmax"
    cites: ClassVar[tuple[str, ...]] = ("fedprox",)
    idea: ClassVar[str] = "synthetic(alpha, beta) of the FedProx paper: a softmax model and inputs of each device's own"

    files: ClassVar[Files] = SOURCES["synthetic"]

    def load(self) -> Dataset:
        rng = np.random.default_rng(self.data_seed)
        deviation_of = np.sqrt if self.scale == "variance" else np.asarray
        sizes = np.minimum(np.floor(rng.lognormal(4, 2, self.devices)) + 50, self.max_rows).astype(int)
        u = rng.normal(0, deviation_of(self.alpha), self.devices)
        centre = rng.normal(0, deviation_of(self.beta), self.devices)
        v = np.zeros((self.devices, FEATURES)) if self.iid else rng.normal(centre[:, None], 1, (self.devices, FEATURES))
        deviation = np.arange(1, FEATURES + 1) ** -0.6
        shared = rng.standard_normal((FEATURES + 1, CLASSES))
        x, y, owner, test = [], [], [], []
        for k, size in enumerate(sizes):
            weights = shared if self.iid else rng.normal(u[k], 1, (FEATURES + 1, CLASSES))
            rows = v[k] + rng.standard_normal((size, FEATURES)) * deviation
            x.append(rows)
            y.append((rows @ weights[:-1] + weights[-1]).argmax(1))
            owner.append(np.full(size, k))
            test.append(np.arange(size) >= size - size // 5)
        rows, labels, owners, for_test = (np.concatenate(part) for part in (x, y, owner, test))
        return self.files.build(
            (rows[~for_test], labels[~for_test]),
            (rows[for_test], labels[for_test]),
            [str(c) for c in range(CLASSES)],
            clients=(owners[~for_test], ()),
            groups_test=owners[for_test],
            notes="the test set holds a fifth of each device's rows",
        )


@dataclass(frozen=True, kw_only=True)
class SyntheticSoftmax:
    """Rows ``mean + N(0, I)`` around class means ``spread * N(0, 1)``. ``data_seed`` seeds the random generator.

    ``test="fresh"`` draws the same number of new rows as the test set. ``test="train"`` tests on the training rows, as the listing
    does.
    """

    rows: PositiveInt = 12_000
    features: PositiveInt = 30
    classes: PositiveInt = 6
    spread: float = 0.45
    data_seed: NonNegativeInt = 0
    test: Literal["fresh", "train"] = "fresh"

    model: ClassVar[str] = "softmax"
    cites: ClassVar[tuple[str, ...]] = ("drift-demo",)
    idea: ClassVar[str] = "a mixture of Gaussians, one a class (listing 14.4.1 of the textbook section 'Non-IID Data')"

    files: ClassVar[Files] = SOURCES["synthetic-softmax"]

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

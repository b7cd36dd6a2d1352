"""Feature skew: each client sees its rows in its own way. The labels, and the rows of the test set, stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.skew.partition import Ints

Floats = NDArray[np.floating]
Own = dict[str, NDArray[np.float64]]
"""What is drawn for the clients, by name; the leading axis is the clients, or the rows they have."""

CHUNK = 4096
"""Rows that are transformed at a time."""


class FeatureSkew(Protocol):
    """A change of the rows that differs between clients."""

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Own:
        """What each client does to its rows, (clients, ...) each. Raises `BadInput` if it cannot be done to rows like these."""
        ...

    def transform(self, x: Floats, own: Own, rng: np.random.Generator) -> Floats:
        """The rows (n, ...) as their owners see them; ``own`` holds what was drawn for the owner of each row."""
        ...


def drawn(features: Sequence[FeatureSkew], x: Floats, num_clients: int, seed: int) -> list[Own]:
    """What each skew draws for the clients. Raises `BadInput` for rows that are no measurements."""
    require(
        not features or np.issubdtype(x.dtype, np.floating),
        f"skew: features can be changed only where they are measured numbers, and these rows hold {x.dtype}, such as the ids of "
        "words; use a label, quantity or concept skew",
    )
    return [skew.draw(x, num_clients, stream(seed, "features", place, 0)) for place, skew in enumerate(features)]


def transformed(features: Sequence[FeatureSkew], own: Sequence[Own], x: Floats, owner: Ints, seed: int) -> Floats:
    """The rows as their owners see them, one skew after the other; a row without an owner (-1) stays as it is.

    What is random in a row depends on the seed and the row's number only. The result has the type of ``x``.
    """
    x = x.copy() if features else x
    for place, (skew, parameters) in enumerate(zip(features, own, strict=True)):
        rng = stream(seed, "features", place, 1)
        for lo in range(0, len(x), CHUNK):
            rows, whose = x[lo : lo + CHUNK], owner[lo : lo + CHUNK]
            seen = skew.transform(rows, {name: part[np.maximum(whose, 0)] for name, part in parameters.items()}, rng)
            rows[whose >= 0] = seen[whose >= 0]
    return x


def clusters(number: int, num_clients: int, rng: np.random.Generator) -> Ints:
    """A cluster for each client, (K,), by chance and of nearly equal size."""
    return rng.permutation(num_clients) % number


def over_row(values: NDArray[np.float64], x: Floats) -> NDArray[np.float64]:
    """(n, channels) or (n,) values in a shape that broadcasts over the rows (n, channels, ...)."""
    return values.reshape(*values.shape, *[1] * (x.ndim - values.ndim))


@dataclass(frozen=True, kw_only=True)
class FeatureNoise:
    """Client i adds Gaussian noise, the same in every round (NIID-Bench).

    ``kind="variance"`` as in the paper: variance ``level * i / K`` for i = 1..K; ``"std"`` as in its code: standard deviation
    ``level * i / (K - 1)`` for i = 0..K-1, so that the first client is clean. In the units of the data.
    """

    level: float = 0.1
    kind: Literal["variance", "std"] = "variance"

    face: ClassVar[str] = "feature"
    idea: ClassVar[str] = "Gaussian noise that grows from the first client to the last"
    cites: ClassVar[tuple[str, ...]] = ("niid-bench",)

    def __post_init__(self) -> None:
        require(0 <= self.level < np.inf, f"level must be a finite number of at least 0, got {self.level}")

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Own:
        if self.kind == "std":
            return {"std": self.level * np.arange(num_clients) / max(num_clients - 1, 1)}
        return {"std": np.sqrt(self.level * np.arange(1, num_clients + 1) / num_clients)}

    def transform(self, x: Floats, own: Own, rng: np.random.Generator) -> Floats:
        return x + over_row(own["std"], x) * rng.standard_normal(x.shape)


@dataclass(frozen=True, kw_only=True)
class FeatureAffine:
    """Each client has a gain of its own in U(1 - strength, 1 + strength) and an offset in U(-strength, strength) for each channel.

    A channel is a colour of an image, a sensor of a window, or a column of a table; the offset is in its standard deviations.
    """

    strength: float = 0.3

    face: ClassVar[str] = "feature"
    idea: ClassVar[str] = "a gain and an offset of each client's own for each colour, sensor or column"

    def __post_init__(self) -> None:
        require(0 <= self.strength <= 1, f"strength must be at least 0 and at most 1, got {self.strength}")

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Own:
        std = x.std(axis=(0, *range(2, x.ndim)), dtype=np.float64)
        size = (num_clients, x.shape[1])
        return {
            "gain": rng.uniform(1 - self.strength, 1 + self.strength, size),
            "offset": rng.uniform(-self.strength, self.strength, size) * std,
        }

    def transform(self, x: Floats, own: Own, rng: np.random.Generator) -> Floats:
        return over_row(own["gain"], x) * x + over_row(own["offset"], x)


@dataclass(frozen=True, kw_only=True)
class FeatureSensor:
    """Each client wears its three-axis sensors turned: by U(0, degrees) about an axis of its own, all sensors alike.

    Needs windows (channels, samples) whose channels come in threes, the axes of one sensor after those of another.
    """

    degrees: float = 90.0

    face: ClassVar[str] = "feature"
    idea: ClassVar[str] = "windows of three-axis sensors, turned for each client about an axis of its own"

    def __post_init__(self) -> None:
        require(0 <= self.degrees <= 180, f"degrees must be at least 0 and at most 180, got {self.degrees}")

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Own:
        require(
            x.ndim == 3 and x.shape[1] % 3 == 0,
            f"turning sensors needs windows (channels, samples) with channels in threes, these rows have shape {x.shape[1:]}; "
            "use feature-affine or feature-noise",
        )
        from scipy.spatial.transform import Rotation

        axes = rng.standard_normal((num_clients, 3))
        axes /= np.linalg.norm(axes, axis=1, keepdims=True)
        angles = np.deg2rad(rng.uniform(0, self.degrees, (num_clients, 1)))
        return {"matrix": Rotation.from_rotvec(angles * axes).as_matrix()}

    def transform(self, x: Floats, own: Own, rng: np.random.Generator) -> Floats:
        sensors = x.reshape(len(x), -1, 3, x.shape[2])
        return np.einsum("nij,nsjt->nsit", own["matrix"], sensors).reshape(x.shape)

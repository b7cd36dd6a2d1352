"""Feature skew: each client's features are changed in its own way. Labels and the test set do not change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.seeding import stream
from fedskew.skew.partition import Ints

Floats = NDArray[np.floating]
Own = dict[str, NDArray[np.float64]]
"""Drawn parameters by name. Their first axis is the clients, or the clients' rows."""

CHUNK = 4096
"""Number of rows that are transformed at a time."""


@runtime_checkable
class FeatureSkew(Protocol):
    """A skew that changes the features of each client's rows."""

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Own:
        """Draw the parameters of each client, (clients, ...). Raises `BadInput` if rows of this shape cannot be changed."""
        ...

    def transform(self, x: Floats, own: Own, rng: np.random.Generator) -> Floats:
        """Return the changed rows (n, ...). ``own`` has, for each row, the parameters (n, ...) of the row's client."""
        ...


def drawn(features: Sequence[FeatureSkew], x: Floats, num_clients: int, seed: int) -> list[Own]:
    """Draw the parameters of each skew for the clients."""
    return [skew.draw(x, num_clients, stream(seed, "features", place, 0)) for place, skew in enumerate(features)]


def transformed(features: Sequence[FeatureSkew], own: Sequence[Own], x: Floats, owner: Ints, seed: int) -> Floats:
    """Apply the skews one after the other. A row without an owner (-1) does not change.

    A row's random numbers depend only on the seed and the row's number. The result has the type of ``x``.
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
    """Draw the cluster of each client (K,). The clusters have nearly equal sizes."""
    return rng.permutation(num_clients) % number


def over_row(values: NDArray[np.float64], x: Floats) -> NDArray[np.float64]:
    """Reshape values (n, channels) or (n,) to broadcast over the rows (n, channels, ...)."""
    return values.reshape(*values.shape, *[1] * (x.ndim - values.ndim))


@dataclass(frozen=True, kw_only=True)
class FeatureNoise:
    """Each client adds Gaussian noise, in the units of the data, which is the same in every round (NIID-Bench).

    ``kind="variance"`` follows the paper: variance ``level * i / K`` for client i = 1..K. ``"std"`` follows its code: standard
    deviation ``level * i / (K - 1)`` for i = 0..K-1, so that the first client has no noise.
    """

    level: float = 0.1
    kind: Literal["variance", "std"] = "variance"

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
    """Each client draws, for each channel, a gain from U(1 - strength, 1 + strength) and an offset from U(-strength, strength).

    A channel is a colour of an image, a sensor of a window, or a column of a table. Offsets are in standard deviations of the
    channel.
    """

    strength: float = 0.3

    idea: ClassVar[str] = "each client has its own gain and offset for each colour, sensor or column"

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
    """Each client's three-axis sensors are rotated by an angle from U(0, degrees) about a random axis, all in the same way.

    Needs windows (channels, samples). Three consecutive channels are the axes of one sensor.
    """

    degrees: float = 90.0

    idea: ClassVar[str] = "three-axis sensors, turned for each client about its own axis"

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

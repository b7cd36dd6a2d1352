"""Feature skew of images: rotation, blur, and styles of clusters of clients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.skew.feature import Floats, Own, clusters, over_row


def check_images(x: Floats, side: int) -> None:
    """Raise `BadInput` unless rows are (channels, height, width), or flat images of ``side`` x ``side`` if ``side`` is given."""
    if side:
        require(
            x.ndim == 2 and x.shape[1] == side**2,
            f"side={side} needs flat rows of {side**2} pixels, these have shape {x.shape[1:]}",
        )
        return
    flat = round(x.shape[1] ** 0.5) if x.ndim == 2 else 0
    hint = f"; if they are flat images of {flat} x {flat}, add side={flat}" if flat and flat**2 == x.shape[1] else ""
    require(
        x.ndim == 4,
        f"needs images (channels, height, width), these rows have shape {x.shape[1:]}{hint}; else use feature-affine or "
        "feature-noise",
    )


def by_value(values: NDArray[np.float64], x: Floats, change: Callable[[Floats, float], Floats]) -> Floats:
    """Apply ``change(rows, value)`` to all rows of each value at once."""
    changed = np.empty(x.shape)
    for value in np.unique(values):
        rows = values == value
        changed[rows] = change(x[rows], float(value))
    return changed


def as_images(x: Floats, side: int) -> Floats:
    """Return the rows as (n, channels, height, width)."""
    return x.reshape(len(x), 1, side, side) if side else x


@dataclass(frozen=True, kw_only=True)
class FeatureRotation:
    """The images of clients in cluster g are rotated by 360 g / clusters degrees (IFCA). Clusters are random.

    Rotation is bilinear, with zeros outside the image. For square images and multiples of 90 degrees it is exact.
    ``side`` is the side length of square images that are stored as flat rows.
    """

    clusters: int = 4
    side: int = 0

    idea: ClassVar[str] = "images turned by one angle for each cluster of clients"
    cites: ClassVar[tuple[str, ...]] = ("ifca",)

    def __post_init__(self) -> None:
        require(self.clusters >= 1, f"clusters must be at least 1, got {self.clusters}")

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Own:
        check_images(x, self.side)
        return {"degrees": 360.0 * clusters(self.clusters, num_clients, rng) / self.clusters}

    def transform(self, x: Floats, own: Own, rng: np.random.Generator) -> Floats:
        return by_value(own["degrees"], as_images(x, self.side), turned).reshape(x.shape)


def turned(images: Floats, degrees: float) -> Floats:
    """Rotate images (n, channels, height, width) anticlockwise."""
    turns, rest = divmod(degrees, 90)
    if rest == 0 and (turns % 2 == 0 or images.shape[2] == images.shape[3]):
        return np.rot90(images, int(turns), axes=(2, 3))
    from scipy import ndimage

    return ndimage.rotate(images, degrees, axes=(3, 2), reshape=False, order=1)


@dataclass(frozen=True, kw_only=True)
class FeatureBlur:
    """Each client's images are blurred by a Gaussian with a width from U(0, sigma) pixels. `FeatureRotation` explains ``side``."""

    sigma: float = 2.0
    side: int = 0

    idea: ClassVar[str] = "images blurred, each client by its own width"

    def __post_init__(self) -> None:
        require(0 <= self.sigma < np.inf, f"sigma must be a finite number of at least 0, got {self.sigma}")

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Own:
        check_images(x, self.side)
        return {"sigma": rng.uniform(0, self.sigma, num_clients)}

    def transform(self, x: Floats, own: Own, rng: np.random.Generator) -> Floats:
        return by_value(own["sigma"], as_images(x, self.side), blurred).reshape(x.shape)


def blurred(images: Floats, sigma: float) -> Floats:
    """Blur images (n, channels, height, width) by a Gaussian with a width of ``sigma`` pixels."""
    from scipy import ndimage

    return ndimage.gaussian_filter(images, (0, 0, sigma, sigma))


@dataclass(frozen=True, kw_only=True)
class FeatureStyle:
    """Each cluster of clients draws a style for its images: contrast, gamma, sharpness, a mix of colours, and a texture.

    ``strength`` is in 0..1; with 0 images do not change. `FeatureRotation` explains ``side``.
    """

    clusters: int = 4
    strength: float = 0.5
    side: int = 0

    idea: ClassVar[str] = (
        "images in one style for each cluster of clients: contrast, gamma, sharpness, colours, texture"
    )

    def __post_init__(self) -> None:
        require(self.clusters >= 1, f"clusters must be at least 1, got {self.clusters}")
        require(0 <= self.strength <= 1, f"strength must be at least 0 and at most 1, got {self.strength}")

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Own:
        check_images(x, self.side)
        shape, s, number = as_images(x[:1], self.side).shape[1:], self.strength, self.clusters
        channels, extent = shape[0], float(x.max() - x.min())
        texture = blurred(rng.standard_normal((number, *shape)), 1.0)
        texture /= np.maximum(np.abs(texture).max(axis=(1, 2, 3), keepdims=True), 1e-12)
        style = {
            "contrast": 1 + s * rng.uniform(-0.6, 0.6, number),
            "gamma": np.exp(s * rng.uniform(-0.8, 0.8, number)),
            "sharpness": s * rng.uniform(-1, 1, number),
            "colours": (1 - s) * np.eye(channels) + s * rng.dirichlet(np.ones(channels), (number, channels)),
            "texture": 0.3 * s * extent * texture,
            "low": np.full(number, x.min(), dtype=np.float64),
            "spread": np.full(number, extent or 1.0),
        }
        cluster = clusters(number, num_clients, rng)
        return {"cluster": cluster.astype(np.float64)} | {name: part[cluster] for name, part in style.items()}

    def transform(self, x: Floats, own: Own, rng: np.random.Generator) -> Floats:
        images = as_images(x, self.side)

        def of(name: str) -> NDArray[np.float64]:
            return over_row(own[name], images)

        light = (images - of("low")) / of("spread")
        light = np.clip(light, 0, 1) ** of("gamma") + np.minimum(light, 0) + np.maximum(light - 1, 0)
        light = 0.5 + of("contrast") * (light - 0.5)
        light = light + of("sharpness") * (light - blurred(light, 1.0))
        styled = of("low") + of("spread") * np.einsum("nij,njhw->nihw", own["colours"], light) + own["texture"]
        return styled.reshape(x.shape)

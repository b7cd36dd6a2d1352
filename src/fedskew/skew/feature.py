"""Feature skew: each client's features are changed in its own way. Labels and the test set do not change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.core.limits import NonNegativeFloat, PositiveInt, Share
from fedskew.core.seeding import stream
from fedskew.skew.partition import Ints

Floats = NDArray[np.floating]
Parameters = dict[str, NDArray[np.float64]]
"""Drawn parameters by name. Their first axis is the clients, or the clients' rows."""

CHUNK = 4096
"""Number of rows that are transformed at a time."""


@runtime_checkable
class FeatureSkew(Protocol):
    """A skew that changes the features of each client's rows."""

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Parameters:
        """Draw the parameters of each client, (clients, ...). Raises `BadInput` if rows of this shape cannot be changed."""

    def transform(self, x: Floats, parameters: Parameters, rng: np.random.Generator) -> Floats:
        """Return the changed rows (n, ...). ``parameters`` has, for each row, the parameters (n, ...) of the row's client."""


def draw_all(features: Sequence[FeatureSkew], x: Floats, num_clients: int, seed: int) -> list[Parameters]:
    """Draw the parameters of each skew for the clients."""
    return [skew.draw(x, num_clients, stream(seed, "features", place, 0)) for place, skew in enumerate(features)]


def transformed(
    features: Sequence[FeatureSkew], drawn_parameters: Sequence[Parameters], x: Floats, owner: Ints, seed: int
) -> Floats:
    """Apply the skews one after the other. A row without an owner (-1) does not change.

    A row's random numbers depend only on the seed and the row's number. The result has the type of ``x``.
    """
    x = x.copy() if features else x
    for place, (skew, parameters) in enumerate(zip(features, drawn_parameters, strict=True)):
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

    level: NonNegativeFloat = 0.1
    kind: Literal["variance", "std"] = "variance"

    idea: ClassVar[str] = "Gaussian noise that grows from the first client to the last"
    cites: ClassVar[tuple[str, ...]] = ("niid-bench",)

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Parameters:
        if self.kind == "std":
            return {"std": self.level * np.arange(num_clients) / max(num_clients - 1, 1)}
        return {"std": np.sqrt(self.level * np.arange(1, num_clients + 1) / num_clients)}

    def transform(self, x: Floats, parameters: Parameters, rng: np.random.Generator) -> Floats:
        return x + over_row(parameters["std"], x) * rng.standard_normal(x.shape)


@dataclass(frozen=True, kw_only=True)
class FeatureAffine:
    """Each client draws, for each channel, a gain from U(1 - strength, 1 + strength) and an offset from U(-strength, strength).

    A channel is a colour of an image, a sensor of a window, or a column of a table. Offsets are in standard deviations of the
    channel.
    """

    strength: Share = 0.3

    idea: ClassVar[str] = "each client has its own gain and offset for each colour, sensor or column"

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Parameters:
        std = x.std(axis=(0, *range(2, x.ndim)), dtype=np.float64)
        size = (num_clients, x.shape[1])
        gain = rng.uniform(1 - self.strength, 1 + self.strength, size)
        return {"gain": gain, "offset": rng.uniform(-self.strength, self.strength, size) * std}

    def transform(self, x: Floats, parameters: Parameters, rng: np.random.Generator) -> Floats:
        return over_row(parameters["gain"], x) * x + over_row(parameters["offset"], x)


@dataclass(frozen=True, kw_only=True)
class FeatureSensor:
    """Each client's three-axis sensors are rotated by an angle from U(0, degrees) about a random axis, all in the same way.

    Needs windows (channels, samples). Three consecutive channels are the axes of one sensor.
    """

    degrees: Annotated[float, Meta(ge=0, le=180)] = 90.0

    idea: ClassVar[str] = "three-axis sensors, turned for each client about its own axis"

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Parameters:
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

    def transform(self, x: Floats, parameters: Parameters, rng: np.random.Generator) -> Floats:
        sensors = x.reshape(len(x), -1, 3, x.shape[2])
        return np.einsum("nij,nsjt->nsit", parameters["matrix"], sensors).reshape(x.shape)


def check_images(x: Floats, side: int) -> None:
    """Raise `BadInput` unless rows are (channels, height, width), or flat images of ``side`` x ``side`` if ``side`` is given."""
    if side:
        if x.ndim != 2 or x.shape[1] != side**2:
            raise BadInput(f"side={side} needs flat rows of {side**2} pixels, these have shape {x.shape[1:]}")
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

    clusters: PositiveInt = 4
    side: int = 0

    idea: ClassVar[str] = "images turned by one angle for each cluster of clients"
    cites: ClassVar[tuple[str, ...]] = ("ifca",)

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Parameters:
        check_images(x, self.side)
        return {"degrees": 360.0 * clusters(self.clusters, num_clients, rng) / self.clusters}

    def transform(self, x: Floats, parameters: Parameters, rng: np.random.Generator) -> Floats:
        return by_value(parameters["degrees"], as_images(x, self.side), turned).reshape(x.shape)


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

    sigma: NonNegativeFloat = 2.0
    side: int = 0

    idea: ClassVar[str] = "images blurred, each client by its own width"

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Parameters:
        check_images(x, self.side)
        return {"sigma": rng.uniform(0, self.sigma, num_clients)}

    def transform(self, x: Floats, parameters: Parameters, rng: np.random.Generator) -> Floats:
        return by_value(parameters["sigma"], as_images(x, self.side), blurred).reshape(x.shape)


def blurred(images: Floats, sigma: float) -> Floats:
    """Blur images (n, channels, height, width) by a Gaussian with a width of ``sigma`` pixels."""
    from scipy import ndimage

    return ndimage.gaussian_filter(images, (0, 0, sigma, sigma))


@dataclass(frozen=True, kw_only=True)
class FeatureStyle:
    """Each cluster of clients draws a style for its images: contrast, gamma, sharpness, a mix of colours, and a texture.

    ``strength`` is in 0..1; with 0 images do not change. `FeatureRotation` explains ``side``.
    """

    clusters: PositiveInt = 4
    strength: Share = 0.5
    side: int = 0

    idea: ClassVar[str] = (
        "images in one style for each cluster of clients: contrast, gamma, sharpness, colours, texture"
    )

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Parameters:
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

    def transform(self, x: Floats, parameters: Parameters, rng: np.random.Generator) -> Floats:
        images = as_images(x, self.side)

        def of(name: str) -> NDArray[np.float64]:
            return over_row(parameters[name], images)

        light = (images - of("low")) / of("spread")
        light = np.clip(light, 0, 1) ** of("gamma") + np.minimum(light, 0) + np.maximum(light - 1, 0)
        light = 0.5 + of("contrast") * (light - 0.5)
        light = light + of("sharpness") * (light - blurred(light, 1.0))
        mixed = np.einsum("nij,njhw->nihw", parameters["colours"], light)
        return (of("low") + of("spread") * mixed + parameters["texture"]).reshape(x.shape)


HURRIED = """
you=u your=ur are=r please=pls thanks=thx because=cuz for=4 to=2 and=n people=ppl before=b4 today=2day tomorrow=tmrw account=acct
message=msg information=info company=co government=govt president=pres million=mn percent=pct international=intl department=dept
number=nr minutes=min delivery=dlvry payment=pymt order=ordr refund=rfnd
"""
SHORT = dict(pair.split("=") for pair in HURRIED.split())
"""Short forms of common words."""

TEMPLATES = (
    ("hello there,", "kind regards"),
    ("hi,", "thanks a lot in advance"),
    ("listen up:", "that is all"),
    ("dear all,", "yours sincerely"),
    ("just saw this:", "what do you think?"),
    ("fyi", "sent from my phone"),
)
"""Openings and closings of texts."""

TYPOS, SHORTENED, CAPITALS = 0.3, 1.0, 0.5
"""Largest shares of words with typos, in short form, and in capitals, at strength 1."""


@dataclass(frozen=True, kw_only=True)
class FeatureText:
    """Each cluster of clients has a style of writing: typing errors, short forms, capitals, an opening and a closing.

    Each cluster draws three shares of its words: with two letters exchanged, in short form, and in capitals. A share
    ``strength`` of its texts gets the cluster's opening and closing. With strength 0 texts do not change. Word ids do not
    depend on capitals.
    """

    clusters: PositiveInt = 4
    strength: Share = 0.5

    idea: ClassVar[str] = (
        "texts in one style for each cluster of clients: typing errors, short forms, capitals, opening and closing"
    )

    def draw(self, x: Floats, num_clients: int, rng: np.random.Generator) -> Parameters:
        cluster = clusters(self.clusters, num_clients, rng)
        shares = self.strength * rng.uniform(0, (TYPOS, SHORTENED, CAPITALS), (self.clusters, 3))
        templates = np.resize(rng.permutation(len(TEMPLATES)), self.clusters)
        changes = dict(zip(("typos", "short", "capitals"), shares[cluster].T, strict=True))
        framed, template = np.full(num_clients, self.strength), templates[cluster].astype(np.float64)
        return {"cluster": cluster.astype(np.float64), **changes, "framed": framed, "template": template}

    def transform(self, x: Floats, parameters: Parameters, rng: np.random.Generator) -> Floats:
        """Return the numbers of the rows unchanged; `rewritten` changes their texts."""
        return x


def rewritten(
    skew: FeatureText, parameters: Parameters, texts: Sequence[str], owner: Ints, seed: int, place: int
) -> list[str]:
    """Rewrite each text in the style of its client. A text without an owner (-1) does not change.

    ``parameters`` has the clients' parameters. ``place`` is the position of the skew among the feature skews. Random numbers depend
    only on the seed and the texts.
    """
    rng, changed_texts = stream(seed, "features", place, 1), []
    for text, k in zip(texts, owner.tolist(), strict=True):
        words = text.split()
        dice = rng.random((3, len(words) + 1))
        if k < 0 or not skew.strength:
            changed_texts.append(text)
            continue
        changes = dice[:, :-1] < np.array([[parameters[name][k]] for name in ("typos", "short", "capitals")])
        changed = map(styled, words, *changes.tolist())
        framed = dice[0, -1] < parameters["framed"][k]
        opening, closing = TEMPLATES[int(parameters["template"][k])] if framed else ("", "")
        changed_texts.append(" ".join(filter(None, (opening, *changed, closing))))
    return changed_texts


def styled(word: str, typo: bool, short: bool, capitals: bool) -> str:
    """Change a word: use its short form, exchange its second and third letter (from four letters on), write it in capitals."""
    if short:
        word = SHORT.get(word.lower(), word)
    if typo and len(word) > 3:
        word = word[0] + word[2] + word[1] + word[3:]
    return word.upper() if capitals else word

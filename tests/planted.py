"""One face of heterogeneity at a time, planted in pooled rows: (x, y, client)."""

from __future__ import annotations

import numpy as np

from fedskew.skew.label import LabelDirichletPerClass

CLIENTS = 10


def iid(x, y, rng):
    return x, y, rng.permutation(np.arange(len(y)) % CLIENTS)


def label(x, y, rng, alpha=0.5):
    owner = np.full(len(y), -1)
    dealt = LabelDirichletPerClass(alpha=alpha).deal(y, None, CLIENTS, rng)
    for k, rows in enumerate(dealt):
        owner[rows] = k
    return x, y, owner


def quantity(x, y, rng):
    size = np.exp(0.8 * rng.standard_normal(CLIENTS))
    owner = rng.choice(CLIENTS, len(y), p=size / size.sum())
    owner[rng.permutation(len(y))[:CLIENTS]] = np.arange(CLIENTS)
    return x, y, owner


def noise(x, y, rng):
    """Client k adds Gaussian noise of k / 9 half standard deviations."""
    x, y, owner = iid(x, y, rng)
    level = 0.5 * x.std() * owner / (CLIENTS - 1)
    return x + level.reshape(-1, *[1] * (x.ndim - 1)) * rng.standard_normal(x.shape), y, owner


def sensor(x, y, rng):
    """Each client has a gain and an offset of its own on every column, or channel."""
    x, y, owner = iid(x, y, rng)
    shape = (CLIENTS, *x.shape[1:2], *[1] * (x.ndim - 2))
    gain, offset = 1 + 0.1 * rng.standard_normal(shape), 0.1 * x.std() * rng.standard_normal(shape)
    return x * gain[owner] + offset[owner], y, owner


def concept(x, y, rng):
    """Half of the clients name all classes differently."""
    x, y, owner = iid(x, y, rng)
    other = np.roll(np.arange(y.max() + 1), 1)[rng.permutation(y.max() + 1)]
    return x, np.where(owner % 2 == 1, other[y], y), owner


def swap(x, y, rng):
    """Half of the clients exchange two classes."""
    x, y, owner = iid(x, y, rng)
    other = np.arange(y.max() + 1)
    a, b = rng.permutation(y.max() + 1)[:2]
    other[[a, b]] = other[[b, a]]
    return x, np.where(owner % 2 == 1, other[y], y), owner


FACES = {
    "label": ("label", label),
    "quantity": ("quantity", quantity),
    "noise": ("feature", noise),
    "sensor": ("feature", sensor),
    "concept": ("concept", concept),
    "swap": ("concept", swap),
}
"""A name -> the face it is, and how it is made."""

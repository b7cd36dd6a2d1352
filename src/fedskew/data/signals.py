"""Features of windows of motion signals, in time and in frequency, like the features of UCI-HAR's authors.

They are the same kinds of features as in Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones"
(ESANN 2013, tables 2 and 3), but from the raw windows. Without the authors' filters and normalisation, the values differ.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BANDS = 8
"""Number of bands of equal width into which a spectrum is divided."""
ORDER = 4
"""Number of coefficients of a signal's autoregressive model."""
TINY = 1e-12


def motion_features(windows: NDArray[np.floating]) -> NDArray[np.float32]:
    """Compute 491 features (n, 491) of windows (n, 9, 128); they are not standardised.

    The nine channels are three axes each of body acceleration, angular speed and total acceleration. Five triples of axes are
    used: gravity (total minus body acceleration), body acceleration, angular speed, and the derivatives of the last two. Each
    triple has four signals: its axes and its length.
    - For each of the 20 signals: mean, deviation, median absolute deviation, maximum, minimum, logarithm of the energy,
      interquartile range, entropy, four autoregressive coefficients.
    - For each triple: correlations of its axes, mean absolute sum.
    - For the spectra of all signals but gravity: mean, deviation, maximum, position of the maximum, centroid, skewness, kurtosis,
      entropy; for axes also the energy in eight bands.
    - Cosines of gravity with the mean of each other triple, and with the axes.
    """
    parts = [block(windows[lo : lo + 1024].astype(np.float64)) for lo in range(0, len(windows), 1024)]
    return np.concatenate(parts).astype(np.float32)


def block(windows: Array) -> Array:
    body, turn = windows[:, 0:3], windows[:, 3:6]
    gravity = windows[:, 6:9] - body
    triples = [gravity, body, np.diff(body), turn, np.diff(turn)]
    lengths = [np.linalg.norm(t, axis=1, keepdims=True) for t in triples]
    columns: list[Array] = []
    for triple, length in zip(triples, lengths, strict=True):
        columns += [in_time(triple), in_time(length), correlations(triple), np.abs(triple).sum(1).mean(-1)[:, None]]
    for triple, length in zip(triples[1:], lengths[1:], strict=True):
        columns += [in_frequency(triple), in_frequency(length), bands(triple)]
    down = gravity.mean(-1)
    columns += [cosine(down, t.mean(-1)) for t in triples[1:]]
    columns += [down / (np.linalg.norm(down, axis=1, keepdims=True) + TINY)]
    return np.concatenate(columns, axis=1)


def in_time(x: Array) -> Array:
    """Compute 12 features in time of each signal: (n, signals, samples) to (n, signals * 12)."""
    from scipy import stats

    mean, median = x.mean(-1), np.median(x, -1)
    found = [
        *(mean, x.std(-1), np.median(np.abs(x - median[..., None]), -1), x.max(-1), x.min(-1)),
        *(np.log((x**2).mean(-1) + TINY), stats.iqr(x, axis=-1), entropy(x**2)),
        *np.moveaxis(autoregression(x - mean[..., None], ORDER), -1, 0),
    ]
    return np.concatenate(found, axis=1)


def in_frequency(x: Array) -> Array:
    """Compute 8 features of each signal's spectrum without its constant part: (n, signals, samples) to (n, signals * 8)."""
    from scipy import stats

    a = amplitudes(x)
    at = np.arange(1, a.shape[-1] + 1) / a.shape[-1]
    found = [
        *(a.mean(-1), a.std(-1), a.max(-1), at[a.argmax(-1)], (a * at).sum(-1) / (a.sum(-1) + TINY)),
        *(stats.skew(a, axis=-1), stats.kurtosis(a, axis=-1), entropy(a**2)),
    ]
    return np.concatenate([np.nan_to_num(part) for part in found], axis=1)


def bands(x: Array) -> Array:
    """Return the logarithm of the energy in each band of the spectrum, (n, signals * bands)."""
    parts = [(part**2).mean(-1) for part in np.array_split(amplitudes(x), BANDS, axis=-1)]
    return np.log(np.concatenate(parts, axis=1) + TINY)


def amplitudes(x: Array) -> Array:
    return np.abs(np.fft.rfft(x)[..., 1:]) / x.shape[-1]


def entropy(power: Array) -> Array:
    """Return the entropy (0..1) of the shares on the last axis."""
    share = power / (power.sum(-1, keepdims=True) + TINY)
    value: Array = -(share * np.log(share + TINY)).sum(-1) / np.log(power.shape[-1])
    return value


def correlations(x: Array) -> Array:
    """Return the correlations (n, 3) of the three pairs of axes; 0 if an axis is constant."""
    z = x - x.mean(-1, keepdims=True)
    z = z / (np.linalg.norm(z, axis=-1, keepdims=True) + TINY)
    return np.stack([(z[:, i] * z[:, j]).sum(-1) for i, j in ((0, 1), (0, 2), (1, 2))], axis=1)


def cosine(a: Array, b: Array) -> Array:
    value = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1) + TINY)
    return np.asarray(value)[:, None]


def autoregression(x: Array, order: int) -> Array:
    """Estimate by Burg's method, from (..., samples), coefficients a (..., order) with x_t = - sum_i a_i x_{t-i} + noise."""
    ahead, behind = x[..., 1:], x[..., :-1]
    a = np.ones((*x.shape[:-1], 1))
    for _ in range(order):
        power = (ahead**2 + behind**2).sum(-1)
        k = -2 * (ahead * behind).sum(-1) / (power + TINY)
        longer = np.concatenate([a, np.zeros_like(a[..., :1])], axis=-1)
        a = longer + k[..., None] * longer[..., ::-1]
        ahead, behind = (ahead + k[..., None] * behind)[..., 1:], (behind + k[..., None] * ahead)[..., :-1]
    return a[..., 1:]

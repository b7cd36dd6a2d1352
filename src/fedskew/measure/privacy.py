"""Differential privacy of a run: a bound on epsilon for the Gaussian mechanism on Poisson samples."""

import importlib.util
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.records import Privacy

ORDERS = (*range(2, 257), 512, 1024)
"""Rényi orders over which the bound is minimised. They are integers, because their moments are finite sums."""


def epsilon(privacy: Privacy, rounds: int) -> float:
    """Return epsilon of (epsilon, delta) differential privacy after ``rounds``, for adding or removing one client.

    It is an upper bound by Rényi differential privacy (Mironov, Talwar, Zhang 2019, arXiv:1908.10530), and infinite without
    noise. Raises `BadInput` if the package dp-accounting is not installed.
    """
    if privacy.noise == 0:
        return math.inf
    check_installed()
    from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(ORDERS, rounds * divergence(privacy.q, privacy.noise), privacy.delta)[0])


@lru_cache(maxsize=16)
def divergence(q: float, noise: float) -> NDArray[np.float64]:
    """Return the Rényi divergence of one round at each of `ORDERS`."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    return np.asarray(RdpAccountant(ORDERS).compose(PoissonSampledDpEvent(q, GaussianDpEvent(noise))).rdp)


def check_installed() -> None:
    """Raise `BadInput` if dp-accounting is not installed."""
    require(
        importlib.util.find_spec("dp_accounting") is not None,
        "a privacy loss needs the package dp-accounting; pip install dp-accounting",
    )

"""Differential privacy of a run: a bound on epsilon for the Gaussian mechanism on Poisson samples."""

import importlib.util
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput
from fedskew.core.records import Privacy

ORDERS = (*range(2, 257), 512, 1024)
"""Rényi orders over which the bound is minimised. They are integers, because their moments are finite sums."""


GRID = 100
"""Number of steps of the grid of privacy losses in epsilon / sqrt(rounds). Ten times as many lower the bound by less than 2 %."""


@lru_cache(maxsize=1024)
def epsilon(privacy: Privacy, rounds: int) -> float:
    """Return epsilon of (epsilon, delta) differential privacy after ``rounds``, for adding or removing one client.

    It is infinite without noise. It is the smaller of two upper bounds: by Rényi differential privacy (Mironov, Talwar, Zhang
    2019, arXiv:1908.10530), and by the privacy loss distribution (Sommer, Meiser, Mohammadi 2019, doi:10.2478/popets-2019-0029),
    whose losses are rounded up to a grid. Raises `BadInput` if the package dp-accounting is not installed.
    """
    if privacy.noise == 0:
        return math.inf
    check_installed()
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
    from dp_accounting.rdp import compute_epsilon

    bound = float(compute_epsilon(ORDERS, rounds * divergence(privacy.q, privacy.noise), privacy.delta)[0])
    if not bound:
        return bound
    step = bound / (GRID * math.sqrt(rounds))
    loss = from_gaussian_mechanism(privacy.noise, value_discretization_interval=step, sampling_prob=privacy.q)
    return min(bound, float(loss.self_compose(rounds).get_epsilon_for_delta(privacy.delta)))


@lru_cache(maxsize=16)
def divergence(q: float, noise: float) -> NDArray[np.float64]:
    """Return the Rényi divergence of one round at each of `ORDERS`."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    return np.asarray(RdpAccountant(ORDERS).compose(PoissonSampledDpEvent(q, GaussianDpEvent(noise))).rdp)


def check_installed() -> None:
    """Raise `BadInput` if dp-accounting is not installed."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise BadInput("a privacy loss needs the package dp-accounting; pip install dp-accounting")

"""Student's t distribution. `scipy.stats` gives the same numbers, but its import is several times slower."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def t_quantile(freedom: ArrayLike, probability: float = 0.975) -> NDArray[np.float64]:
    """Return the quantile for each number of degrees of ``freedom``; probability 0.975 gives 95 % intervals."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.asarray(freedom, dtype=float), probability))


def t_tail(value: float, freedom: float) -> float:
    """Return the probability that t is above ``value``."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -value))

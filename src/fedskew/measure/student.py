"""Student's t distribution. `scipy.stats` gives the same numbers, but its import takes several times as long."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def t_quantile(freedom: ArrayLike, probability: float = 0.975) -> NDArray[np.float64]:
    """Quantile for each number of degrees of ``freedom``; 0.975 gives 95 % intervals."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.asarray(freedom, dtype=float), probability))


def t_tail(value: float, freedom: float) -> float:
    """Probability that t is above ``value``."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -value))

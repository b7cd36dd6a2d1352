"""Rows of each class with noise, so that no answer depends much on a single row, and the faces that such counts show.

Noise: two-sided geometric (Ghosh, Roughgarden and Sundararajan, 2012). A site names a class only if its count with noise reaches
a threshold, so that a class of few rows does not appear by its name (Korolova, Kenthapadi, Mishra and Ntoulas, 2009).
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedskew.core.seeding import stream
from fedskew.measure.heterogeneity.diagnose import TABLES, Diagnosis, check, compared, label_chance
from fedskew.measure.heterogeneity.label import label_measures
from fedskew.measure.heterogeneity.quantity import size_distance
from fedskew.measure.heterogeneity.rows import Ints

DELTA = 1e-6
"""Largest probability that a class of a single row appears."""


def noisy(counts: NDArray[np.integer], epsilon: float, rng: np.random.Generator) -> Ints:
    """Add noise to counts; a result below 0 becomes 0.

    It is ``epsilon``-differentially private for adding or removing one row, which changes one count by 1.
    """
    p = -math.expm1(-epsilon)
    made = counts + rng.geometric(p, counts.shape) - rng.geometric(p, counts.shape)
    return np.asarray(np.maximum(made, 0), dtype=np.int64)


def frequent(counts: NDArray[np.integer], epsilon: float, rng: np.random.Generator) -> Ints:
    """Add noise as `noisy` does, but a count of 0 stays 0, and a result below `threshold` becomes 0.

    It is (``epsilon``, `DELTA`)-differentially private even if only the classes of this site are counted.
    """
    made = noisy(counts, epsilon, rng)
    return np.where((counts > 0) & (made >= threshold(epsilon)), made, 0)


def threshold(epsilon: float) -> int:
    """Return the lowest T that a count of 1 reaches with a probability of at most `DELTA`.

    The probability is a^(T - 1) / (1 + a), with a = exp(-epsilon).
    """
    return 1 + math.ceil(-math.log(DELTA * (1 + math.exp(-epsilon))) / epsilon)


def faces_of_counts(counts: Ints, changed: Callable[[Ints, np.random.Generator], Ints], seed: int) -> Diagnosis:
    """Return the label and quantity faces of counts (clients, classes). ``changed`` does to a table what was done to the counts."""
    sizes = counts.sum(1)
    check(sizes)
    rng = stream(seed, "diagnose")
    clients, pooled = len(sizes), counts.sum(0) / counts.sum()
    equal = rng.multinomial(int(sizes.sum()), np.full(clients, 1 / clients), TABLES)
    by_chance = {
        "label": label_chance(counts, rng, changed=lambda table: changed(table, rng)),
        "quantity": [size_distance(changed(rng.multinomial(n, pooled), rng).sum(1)) for n in equal],
    }
    each = {"label": label_measures(counts)["total variation"]}
    return Diagnosis(compared(each, by_chance, sizes, rng), counts, int(sizes.sum()), 0)

"""The drift of one cohort's updates, which a round measures from their moments."""

from torch import Tensor

from fedskew.core.trees import dispersion
from fedskew.measure.updates import drift_measures


def drift(deltas: Tensor, num_examples: Tensor) -> dict[str, Tensor]:
    """Measure updates (C, P), weighted by ``num_examples`` (C,)."""
    n = num_examples.double()
    return drift_measures(dispersion(n / n.sum(), deltas))

"""One face of heterogeneity at a time, planted by the skews that users have."""

from fedskew.experiment.config import Experiment
from fedskew.experiment.diagnose import from_experiment
from fedskew.measure.heterogeneity.diagnose import Diagnosis, diagnose

FACES = {
    "label-dirichlet:alpha=0.5": "label",
    "label-classes:k=3": "label",
    "quantity-lognormal:sigma=0.8": "quantity",
    "feature-noise:level=0.1": "feature",
    "feature-affine:strength=0.3": "feature",
    "concept-swap:clusters=2": "concept",
    "concept-swap:clusters=2,strength=0.4": "concept",
}
"""A skew -> the face it is."""


def diagnosed(dataset: str, skew: str, seed: int, permutations: int) -> Diagnosis:
    """What `fedskew diagnose --dataset ... --skew ... --clients 10` measures."""
    experiment = Experiment(dataset=dataset, skew=skew, clients={"number": 10, "partition_seed": seed})
    subject = from_experiment(experiment, skew)
    return diagnose(subject.x, subject.y, subject.client, counts=subject.counts, permutations=permutations, seed=seed)

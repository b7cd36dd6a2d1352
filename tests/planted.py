"""One face of heterogeneity at a time, planted by the skews that users have."""

import numpy as np

from fedskew.data.dataset import Dataset
from fedskew.experiment.config import Experiment
from fedskew.experiment.deal import client_data
from fedskew.experiment.diagnose import from_experiment
from fedskew.measure.heterogeneity.diagnose import Diagnosis, diagnose
from fedskew.skew.values import quantile_bins

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
    """Return the result of `fedskew diagnose --dataset ... --skew ... --clients 10`."""
    experiment = Experiment(dataset=dataset, skew=skew, clients={"number": 10, "partition_seed": seed})
    subject = from_experiment(experiment, skew)
    return diagnose(subject.x, subject.y, subject.client, counts=subject.counts, permutations=permutations, seed=seed)


NUMBERS = {
    "quantile-dirichlet:alpha=0.5": "label",
    "quantity-lognormal:sigma=0.8": "quantity",
    "feature-noise:level=2": "feature",
    "feature-affine:strength=0.3": "feature",
    "concept-turned": "concept",
    "concept-weights": "concept",
}
"""A difference of clients whose targets are numbers -> the face it is."""


def numbers(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """2,000 rows of twelve columns and a target, a linear function of them with noise: R2 is 0.8."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((2000, 12)).astype(np.float32), rng.standard_normal(12)
    return x, x @ w / np.linalg.norm(w) + 0.5 * rng.standard_normal(2000)


def planted_numbers(skew: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and clients of ten clients. In odd ones a planted concept turns targets around, or has further weights."""
    x, y = numbers(seed)
    data = Dataset(x=x, y=y, x_test=x[:9], y_test=y[:9])
    dealt = "iid" if skew.startswith("concept") else skew
    held = client_data(Experiment(skew=dealt, clients={"number": 10, "partition_seed": seed}), data)
    rows, client = held.partition.indices, np.repeat(np.arange(10), held.partition.sizes)
    x, y = held.x[rows], y[rows]
    if skew == "concept-turned":
        y = np.where(client % 2, -y, y)
    if skew == "concept-weights":
        w = np.random.default_rng(seed).standard_normal((2, 12))
        y = y + (x * w[client % 2]).sum(1) / 3
    return x, y, client


def diagnosed_numbers(skew: str, seed: int, permutations: int) -> Diagnosis:
    x, y, client = planted_numbers(skew, seed)
    return diagnose(x, quantile_bins(y, 10), client, response=y, permutations=permutations, seed=seed)

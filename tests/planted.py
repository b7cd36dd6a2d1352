"""One face of heterogeneity at a time, planted by the skews that users have."""

from dataclasses import replace

import numpy as np

from fedskew.data.dataset import Dataset
from fedskew.diagnosis.diagnose import faces_of
from fedskew.diagnosis.subject import ClientRows, Source, from_experiment
from fedskew.execution.deal import client_data
from fedskew.experiment.config import Experiment
from fedskew.measure.heterogeneity.columns import listed, tests
from fedskew.measure.heterogeneity.faces import Diagnosis

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


def diagnosed(dataset: str, skew: str, seed: int) -> Diagnosis:
    """Return the faces that `fedskew diagnose --dataset ... --skew ... --clients 10` shows."""
    experiment = Experiment(dataset=dataset, skew=skew, clients={"number": 10, "partition_seed": seed})
    return faces_of(from_experiment(experiment, skew), seed)


def subject(x: np.ndarray, y: np.ndarray, client: np.ndarray) -> ClientRows:
    """Rows (n, d) of clients, with classes if ``y`` (n,) are whole numbers from 0, else with numbers as targets."""
    names = tuple(f"client {k}" for k in range(client.max() + 1))
    source = Source("rows", clients=names)
    if y.dtype.kind == "f":
        counts = np.bincount(client)[:, None]
        return ClientRows(source, x, y, client, counts, (), kind="number", targets=y, response=y)
    counts = np.zeros((len(names), y.max() + 1), dtype=np.int64)
    np.add.at(counts, (client, y), 1)
    return ClientRows(source, x, y, client, counts, tuple(map(str, range(counts.shape[1]))))


def faces(x: np.ndarray, y: np.ndarray, client: np.ndarray, seed: int = 0) -> Diagnosis:
    return faces_of(subject(x, y, client), seed)


def explained(facts: list, client: np.ndarray, names: tuple[str, ...]) -> tuple[list, list]:
    """The columns that differ, over all clients and by client."""
    return listed([part for fact in facts for part in tests(fact, client, len(names))], names)[:2]


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


def diagnosed_numbers(skew: str, seed: int) -> Diagnosis:
    return faces(*planted_numbers(skew, seed), seed)


def label_skewed(seed: int, offset: float = 0.0) -> ClientRows:
    """1,200 rows of six clients with label skew. Columns follow the class only; ``offset`` is added to c0 at client 2."""
    rng = np.random.default_rng(seed)
    y = rng.choice(4, 1200, p=[0.4, 0.3, 0.2, 0.1])
    client = np.empty(1200, dtype=np.int64)
    for label in range(4):
        client[y == label] = rng.choice(6, (y == label).sum(), p=rng.dirichlet(np.full(6, 1.0)))
    client[:6] = np.arange(6)
    x = rng.normal(size=(1200, 9)) + 1.5 * rng.normal(size=(4, 9))[y]
    x[:, 8] = 50 + rng.normal(size=1200) * np.array([1, 2, 3, 4])[y]
    x[client == 2, 0] += offset
    word = rng.random(1200) < np.array([0.1, 0.3, 0.6, 0.9])[y]
    bmi = np.where(rng.random(1200) < np.array([0.5, 0.1, 0.0, 0.0])[y], np.nan, rng.normal(size=1200))
    facts = [(f"c{at}", "mean", "", values) for at, values in enumerate(x.T)]
    facts += [("sex", "share", name, (word == at).astype(float)) for at, name in enumerate(("female", "male"))]
    facts += [("bmi", "mean", "", bmi), ("bmi", "missing", "", np.isnan(bmi).astype(float))]
    return replace(subject(x, y, client), facts=tuple(facts))
